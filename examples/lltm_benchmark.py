"""The benchmark of PyTorch's tutorial on extensions, made honest: forward and backward of an LLTM cell in each version.

Every version is warmed up and waited for, forward and backward apart, rounds taken in turn, gradients made for all five
inputs; medians are shown with the tenth and ninetieth percentile::

    python -m examples.lltm_benchmark                  # batch 16, 32 features, 128 units
    python -m examples.lltm_benchmark -b 64 -f 512 -s 1024 --plot lltm.svg
    python -m examples.lltm_benchmark -t 128           # a sequence, beside torch.nn.LSTM
"""

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from autograd_bridge import lltm, lltm_cell
from benchmarks.peers import Unavailable
from benchmarks.peers.lltm_extension import Cell, cpp_cell, cuda_cell, python_cell
from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install
from examples.console import UserError, describe_device, report_error
from examples.files import Unwritable, write_whole

__all__ = ["PUBLISHED", "Timing", "main", "measure", "versions"]

# Microseconds forward and backward on a GTX 1080 Ti, as the tutorial prints them.
PUBLISHED = {
    "Python, CPU": (1587.342, 2777.944),
    "C++, CPU": (1256.375, 5522.965),
    "Python, CUDA": (1233.025, 2303.220),
    "C++, CUDA": (946.013, 3679.143),
    "C++ and CUDA kernels": (826.400, 1838.094),
}
OURS, GRAPH = "cupyops", "cupyops, in a CUDA graph"
ROUNDS = 10

Step = Callable[[], tuple[float, float]]
Outputs = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one version: all its measurements, forward and backward (0 where they are one)."""

    name: str
    forward: list[float]
    backward: list[float]

    @property
    def total(self) -> float:
        """Median of both together."""
        return statistics.median(f + b for f, b in zip(self.forward, self.backward, strict=True))

    def line(self) -> str:
        """The tutorial's line."""
        return f"Forward: {statistics.median(self.forward):.3f} us | Backward {statistics.median(self.backward):.3f} us"


def inputs_for(batch: int, features: int, state: int, device: torch.device, seed: int) -> list[Tensor]:
    """input, weights, bias, old_h, old_cell, all of which want gradients."""
    generator = torch.Generator().manual_seed(seed)
    bound = state**-0.5
    drawn = [
        torch.randn(batch, features, generator=generator),
        torch.empty(3 * state, features + state).uniform_(-bound, bound, generator=generator),
        torch.empty(3 * state).uniform_(-bound, bound, generator=generator),
        *(torch.randn(batch, state, generator=generator) for _ in range(2)),
    ]
    return [x.to(device).requires_grad_() for x in drawn]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _sum(outputs: tuple[Tensor, ...]) -> Tensor:
    total = outputs[0].sum()
    for output in outputs[1:]:
        total = total + output.sum()
    return total


def cell_step(cell: Outputs, inputs: list[Tensor]) -> Step:
    """One forward and one backward from the sum of all outputs, each waited for."""
    device = inputs[0].device

    def step() -> tuple[float, float]:
        for x in inputs:
            x.grad = None
        _wait(device)
        began = time.perf_counter()
        outputs = cell(*inputs)
        _wait(device)
        between = time.perf_counter()
        _sum(outputs).backward()
        _wait(device)
        return (between - began) * 1e6, (time.perf_counter() - between) * 1e6

    return step


def graph_step(cell: Outputs, inputs: list[Tensor]) -> Step:
    """Both together, replayed as a CUDA graph."""

    def run() -> None:
        for x in inputs:
            x.grad = None
        _sum(cell(*inputs)).backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def step() -> tuple[float, float]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e6, 0.0

    return step


def versions(batch: int, features: int, state: int, seed: int, *, build: bool = True) -> Iterator[tuple[str, Step]]:
    """(name, what to measure) of each version that this machine can run; the others are named on stderr."""
    on_cpu = inputs_for(batch, features, state, torch.device("cpu"), seed)
    on_gpu = inputs_for(batch, features, state, torch.device("cuda"), seed) if torch.cuda.is_available() else None
    makers: list[tuple[str, Callable[[], Cell], list[Tensor] | None]] = [
        ("Python, CPU", lambda: python_cell, on_cpu),
        ("C++, CPU", cpp_cell, on_cpu),
        ("Python, CUDA", lambda: python_cell, on_gpu),
        ("C++, CUDA", cpp_cell, on_gpu),
        ("C++ and CUDA kernels", cuda_cell, on_gpu),
        (OURS, lambda: lltm_cell, on_gpu),
    ]
    for name, make, inputs in makers:
        if inputs is None:
            _leave_out(name, "PyTorch sees no CUDA GPU")
        elif not build and name.startswith("C++"):
            _leave_out(name, "--no-build")
        else:
            try:
                yield name, cell_step(make(), inputs)
            except Unavailable as reason:
                _leave_out(name, str(reason))
    if on_gpu is not None:
        yield GRAPH, graph_step(lltm_cell, on_gpu)


def sequence_versions(steps: int, batch: int, features: int, state: int, seed: int) -> Iterator[tuple[str, Step]]:
    """The same for a sequence: cell after cell, all steps in one launch, and torch.nn.LSTM of the same sizes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _, *parameters = inputs_for(batch, features, state, device, seed)
    weights, bias, h0, c0 = parameters
    x = torch.randn(steps, batch, features, generator=torch.Generator().manual_seed(seed)).to(device).requires_grad_()
    peer = nn.LSTM(features, state).to(device)

    def by_cells(cell: Cell) -> Cell:
        def run(input: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            outputs = []
            for x in input:
                h, c = cell(x, weights, bias, h, c)
                outputs.append(h)
            return torch.stack(outputs), c

        return run

    def at_once(input: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
        output, (_, c) = lltm(input, (h0, c0), weights, bias)
        return output, c

    def by_lstm(input: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        output, (_, c) = peer(input, (h0.unsqueeze(0), c0.unsqueeze(0)))
        return output, c

    inputs = [x, weights, bias, h0, c0]
    yield "Python, step by step", cell_step(by_cells(python_cell), inputs)
    yield f"{OURS}, step by step", cell_step(by_cells(lltm_cell), inputs)
    yield OURS, cell_step(at_once, inputs)
    yield "torch.nn.LSTM", cell_step(by_lstm, inputs)


def _leave_out(name: str, reason: str) -> None:
    print(f"{name}: left out: {' '.join(reason.split())[:300]}", file=sys.stderr)


def measure(steps: list[tuple[str, Step]], runs: int) -> list[Timing]:
    """So many runs of each, in rounds that take turns, after some that do not count."""
    timings = [Timing(name, [], []) for name, _ in steps]
    for number in range(-1, min(ROUNDS, runs)):
        each = max(3, runs // ROUNDS) if number < 0 else runs // min(ROUNDS, runs)
        for timing, (_, step) in zip(timings, steps, strict=True):
            for _ in range(each):
                forward, backward = step()
                if number >= 0:
                    timing.forward.append(forward)
                    timing.backward.append(backward)
    return timings


def _spread(values: list[float]) -> str:
    if not any(values):
        return "–"
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return f"{statistics.median(values):.1f} ({low:.1f} to {high:.1f})"


def table(timings: list[Timing], published: bool) -> str:
    """Markdown: medians and spread, and what the tutorial prints of a GTX 1080 Ti."""
    head = ["version", "forward, us", "backward, us", "both, us", *(["published, us"] if published else [])]
    rows = []
    for t in timings:
        known = PUBLISHED.get(t.name)
        theirs = f"{known[0]:.1f} / {known[1]:.1f}" if known else "–"
        rows.append(
            [t.name, _spread(t.forward), _spread(t.backward), f"{t.total:.1f}", *([theirs] if published else [])]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def plot(timings: list[Timing], path: Path, title: str) -> None:
    """Bars of the medians.

    Raises:
        UserError: matplotlib is missing, or does not know the kind of file.
        Unwritable: the file cannot be written; one that is there stays.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise UserError(f"--plot needs matplotlib ({error}); {pip_install('examples', 'matplotlib')}") from None
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(timings) + 1.2))
    names = [t.name for t in timings][::-1]
    forward = [statistics.median(t.forward) for t in timings][::-1]
    backward = [statistics.median(t.backward) for t in timings][::-1]
    axes.barh(names, forward, label="forward")
    axes.barh(names, backward, left=forward, label="backward")
    axes.set_xlabel("microseconds, median")
    axes.set_title(title)
    axes.legend()
    figure.tight_layout()
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=path.suffix[1:] or "png")
    except ValueError as error:
        raise UserError(f"--plot: cannot write {path}: {error}") from None
    finally:
        plt.close(figure)
    write_whole(path, drawn.getbuffer())


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m examples.lltm_benchmark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-b", "--batch", type=int, default=16, metavar="N", help="rows (default: %(default)s)")
    parser.add_argument("-f", "--features", type=int, default=32, metavar="N", help="(default: %(default)s)")
    parser.add_argument("-s", "--state", type=int, default=128, metavar="N", help="units (default: %(default)s)")
    parser.add_argument("-t", "--steps", type=int, metavar="N", help="a sequence of so many steps instead of a cell")
    parser.add_argument(
        "-r", "--runs", type=int, default=500, metavar="N", help="of each version (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--no-build", action="store_true", help="leave out the versions in C++, whose build takes a minute"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw bars into this file, .svg or .png")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the example; 0 if all went well, 2 for a mistake in the options."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        for name in ("batch", "features", "state", "runs"):
            if getattr(options, name) < 1:
                raise UserError(f"--{name} must be at least 1, got {getattr(options, name)}")
        if options.steps is not None and options.steps < 1:
            raise UserError(f"--steps must be at least 1, got {options.steps}")
        sizes = (options.batch, options.features, options.state)
        where = describe_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        title = f"LLTM, batch {sizes[0]}, {sizes[1]} features, {sizes[2]} units"
        title += "" if options.steps is None else f", {options.steps} steps"
        print(f"{title}, float32, on {where}")
        if options.steps is None:
            found = list(versions(*sizes, options.seed, build=not options.no_build))
        else:
            found = list(sequence_versions(options.steps, *sizes, options.seed))
        timings = measure(found, options.runs)
        for timing in timings:
            print(f"{timing.name:24} {timing.line()}")
        print()
        print(table(timings, options.steps is None))
        if options.plot is not None:
            plot(timings, options.plot, title)
            print(f"drawn to {options.plot}")
    except (UserError, MissingDependencyError, Unwritable) as error:
        return report_error(parser.prog, error)
    except KeyboardInterrupt:
        print("Interrupted.")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
