"""The time of the simulator's launches with its default checks of bounds, compared with that without checks::

    python -m benchmarks.simulator                              # prints the table; needs a C++ compiler, and no GPU
    python -m benchmarks.simulator --ops gelu --elements 2^20
    python -m benchmarks.simulator --into docs/simulator.md     # and writes it into the page

The two ways run in turns, on a warm cache. The time is that of the launches of a call, without PyTorch's part of it.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "main", "measure", "table"]

REPEATS, ELEMENTS, LONGEST_SECONDS = 7, 2**18, 20.0


@dataclass(frozen=True)
class Row:
    """The medians of a call's launches, in seconds.

    Attributes:
        title: the operator and what it does.
        shape: the shape of its first tensor.
    """

    title: str
    shape: tuple[int, ...]
    unchecked: float
    checked: float

    @property
    def ratio(self) -> float:
        return self.checked / self.unchecked


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.simulator", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ops", nargs="+", metavar="OP", help="names of families, such as gelu, or own; default: all")
    parser.add_argument("--elements", type=_size, default=ELEMENTS, metavar="N", help="also as 2^K; default: 2^18")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help=f"default: {REPEATS}")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the table into this Markdown page")
    return parser


def _size(text: str) -> int:
    base, _, exponent = text.partition("^")
    return int(base) ** int(exponent or 1)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 without a compiler."""
    options = build_parser().parse_args(argv)
    # PyTorch is imported late, so that a wrong argument gets its error at once.
    from cupyops.simulator import host

    from .table import between

    if missing := host.missing():
        print(missing, file=sys.stderr)
        return 2
    rows, machine = [], _machine()  # asked before the measurement, which is a load itself
    for row in measure(options.ops, options.elements, options.repeats):
        rows.append(row)
        print(f"{row.title}, {row.shape}: {row.unchecked:.4f} s, {row.checked:.4f} s, {row.ratio:.2f}", flush=True)
    command = shlex.join(["python", "-m", "benchmarks.simulator", *(sys.argv[1:] if argv is None else argv)])
    text = (
        f"{machine}; `{command}`; milliseconds of a call's launches, medians of {options.repeats}:\n\n{table(rows)}\n"
    )
    print(text)
    if options.into is not None:
        options.into.write_text(between(options.into.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


def table(rows: Sequence[Row]) -> str:
    """The geometric mean of the ratios, and a line for each call whose checks cost most and least."""
    if not rows:
        return "No call has been measured."
    mean = statistics.geometric_mean([row.ratio for row in rows])
    lines = ["| call in float32 | first tensor | unchecked | default | ratio |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: -row.ratio)[:: max(len(rows) - 1, 1)]:
        shape = " x ".join(map(str, row.shape))
        lines.append(
            f"| {row.title} | {shape} | {1000 * row.unchecked:.1f} | {1000 * row.checked:.1f} | {row.ratio:.2f} |"
        )
    return "\n".join([*lines, f"| geometric mean of {len(rows)} calls | | | | {mean:.2f} |"])


def measure(ops: Sequence[str] | None, elements: int = ELEMENTS, repeats: int = REPEATS) -> Iterator[Row]:
    """Times the calls of the operators' families; a call without a launch has no row."""
    import torch

    import cupyops

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for title, shape, make in _calls(ops, elements, generator):
        seconds: dict[bool | None, list[float]] = {False: [], None: []}
        launches: list[float] = []
        with _timed(launches):
            calls = {}
            for sanitize in seconds:
                with cupyops.simulate(sanitize=sanitize):
                    calls[sanitize] = make()  # runs the forward of a backward
                    launches.clear()
                    calls[sanitize]()
            if not launches:
                continue
            for _ in range(repeats):
                for sanitize, times in seconds.items():
                    with cupyops.simulate(sanitize=sanitize):
                        launches.clear()
                        calls[sanitize]()
                        times.append(sum(launches))
                if sum(sum(times) for times in seconds.values()) > LONGEST_SECONDS and len(seconds[None]) >= 3:
                    break
        yield Row(title, shape, statistics.median(seconds[False]), statistics.median(seconds[None]))


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    """Notes the seconds of each launch in the block."""
    from cupyops.simulator.simulated import Simulated

    run: Any = Simulated.run

    def timed(self: Any, *arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return run(self, *arguments, **options)
        finally:
            seconds.append(time.perf_counter() - begin)

    Simulated.run = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Simulated.run = run  # type: ignore[method-assign]


Call = Callable[[], object]


def _calls(
    ops: Sequence[str] | None, elements: int, generator: Any
) -> Iterator[tuple[str, tuple[int, ...], Callable[[], Call]]]:
    """Yields a title, a shape, and a function that makes a call, for each variant and direction of each family."""
    from .cases import OPERATORS, ROWWISE, device_cases

    for op in OPERATORS if ops is None else [op for op in OPERATORS if op in ops]:
        met = set()
        for case in device_cases(op, (elements,), (1024,) if op in ROWWISE else ()):
            key = case.variant, case.direction
            whole = case.direction in ("forward", "backward", "tangent") and case.dtype.startswith("float32")
            # TF32 is a mode of the product, which is PyTorch's. The first case of a variant has the rows that are asked for.
            if key in met or not whole or "TF32" in case.variant or case.variant.endswith("K=2"):
                continue
            met.add(key)
            if op == "linear" and case.variant.endswith("K=4096"):
                continue
            inputs = case.inputs(generator)
            function = case.implementations["ours"]()
            yield (
                f"`{op}` {case.variant}, {case.direction}",
                tuple(case.operands[0].shape),
                lambda case=case, function=function, inputs=inputs: case.bind(function, inputs),  # type: ignore[misc]
            )
    if ops is None or "lltm" in ops:
        yield from _lltm(elements, generator)
    if ops is None or "own" in ops:
        yield from _own(elements, generator)


# Kernels as a reader of the guide writes them: an access is of one element, and little is computed beside it.
OWN = r"""
extern "C" __global__ void transpose(
    const float* __restrict__ x,  // (M, N)
    float* __restrict__ y,        // (N, M)
    long long M, long long N, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i % N * M + i / N] = x[i];
}
extern "C" __global__ void row_sum(
    const float* __restrict__ x,  // (M, N)
    float* __restrict__ y,        // (M)
    long long M, long long N) {
    __shared__ float part[BLOCK_THREADS];
    float s = 0;
    for (long long j = threadIdx.x; j < N; j += BLOCK_THREADS) s += x[blockIdx.x * N + j];
    part[threadIdx.x] = s;
    for (int half = BLOCK_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
extern "C" __global__ void product(
    const float* __restrict__ a,  // (M, M)
    const float* __restrict__ b,  // (M, M)
    float* __restrict__ y,        // (M, M)
    long long M, long long n) {
    __shared__ float s[16][16], t[16][16];
    const long long i = blockIdx.x / (M / 16) * 16 + threadIdx.x / 16, j = blockIdx.x % (M / 16) * 16 + threadIdx.x % 16;
    float sum = 0;
    for (long long k = 0; k < M; k += 16) {
        s[threadIdx.x / 16][threadIdx.x % 16] = a[i * M + k + threadIdx.x % 16];
        t[threadIdx.x / 16][threadIdx.x % 16] = b[(k + threadIdx.x / 16) * M + j];
        __syncthreads();
        for (int l = 0; l < 16; ++l) sum += s[threadIdx.x / 16][l] * t[l][threadIdx.x % 16];
        __syncthreads();
    }
    y[i * M + j] = sum;
}
"""


def _own(elements: int, generator: Any) -> Iterator[tuple[str, tuple[int, ...], Callable[[], Call]]]:
    import torch

    from cupyops import Kernel, Rows, Threads

    rows = max(1, elements // 1024)
    x, y, sums = torch.randn(rows, 1024, generator=generator), torch.empty(1024, rows), torch.empty(rows)
    transpose = Kernel(OWN, "transpose", Threads("n"))
    row_sum = Kernel(OWN, "row_sum", Rows("M", block=256))
    yield "a transpose of one element a thread", tuple(x.shape), lambda: lambda: transpose(x, y, rows, 1024, x.numel())
    yield "a sum of rows in shared memory", tuple(x.shape), lambda: lambda: row_sum(x, sums, rows, 1024)
    size = max(16, 16 * round(elements ** (1 / 3) * 2 / 16))  # 8 multiplications an element
    a, b, c = (torch.randn(size, size, generator=generator) for _ in range(3))
    product = Kernel(OWN, "product", Threads("n", block=256))
    yield "a product in tiles of shared memory", (size, size), lambda: lambda: product(a, b, c, size, size * size)


def _lltm(elements: int, generator: Any) -> Iterator[tuple[str, tuple[int, ...], Callable[[], Call]]]:
    import torch

    from autograd_bridge import lltm, lltm_cell

    state, features = 128, 64
    batch = elements // (3 * state)
    for title, steps in (("cell", 0), ("sequence of 16 steps", 16)):
        rows = batch // steps if steps else batch
        shape = (steps, rows, features) if steps else (rows, features)
        x = torch.randn(shape, generator=generator)
        weights = torch.randn(3 * state, state + features, generator=generator) / 16
        bias, h, c = torch.zeros(3 * state), torch.zeros(rows, state), torch.zeros(rows, state)

        def call(x: Any, weights: Any, bias: Any, steps: int = steps, h: Any = h, c: Any = c) -> Any:
            return lltm(x, (h, c), weights, bias)[0] if steps else lltm_cell(x, weights, bias, h, c)[0]

        given = x, weights, bias

        def forward(call: Any = call, given: Any = given) -> Call:
            return lambda: call(*given)

        def backward(call: Any = call, given: Any = given) -> Call:
            leaves = [t.clone().requires_grad_() for t in given]
            y = call(*leaves)
            return lambda: torch.autograd.grad(y, leaves, torch.ones_like(y), retain_graph=True)

        yield f"`lltm` {title}, forward", shape, forward
        yield f"`lltm` {title}, backward", shape, backward


def _machine() -> str:
    from cupyops.simulator import host

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    tool = host.compiler()
    return f"{cpu}, {os.cpu_count()} cores, {Path(tool.command[0]).name} {tool.major}, load average {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
