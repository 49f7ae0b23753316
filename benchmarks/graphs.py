"""Compiled graphs of operators beside other operations: plain Inductor, our kernels as nodes, and the choice of each.

Each graph is a function of a namespace of operations, PyTorch's or ours, and of tensors. It is compiled and timed as inference
and as a training step (forward and gradients of all inputs):

    python -m benchmarks.graphs --out FILE [--graphs NAME ...] [--small]
    python -m benchmarks.graphs --from FILE [--into PAGE]

The times are medians of interleaved rounds with a cold L2 cache, on a GPU. ``SEEN`` names the graphs that have been looked at while
the choice was written, the others judge it.
"""

import argparse
import fcntl
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import autograd_bridge as ours

from . import results_file
from .table import between

__all__ = ["GRAPHS", "SEEN"]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns the heads turned by the angles, as transformers writes it."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


TORCH = SimpleNamespace(
    gelu=F.gelu,
    layer_norm=F.layer_norm,
    rms_norm=F.rms_norm,
    softmax=F.softmax,
    log_softmax=F.log_softmax,
    swiglu=lambda gate, up: F.silu(gate) * up,
    geglu=lambda gate, up: F.gelu(gate) * up,
    rotary_embedding=_rotated,
)
OURS = SimpleNamespace(**{name: getattr(ours, name) for name in vars(TORCH)})


def norm_gelu_add(o: Any, x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return o.gelu(o.layer_norm(x, w.shape, w, b)) + r


def norm_between_additions(o: Any, x: Tensor, r: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    s = x + r
    return s, z + 0.5 * o.rms_norm(s, w.shape, w, 1e-6)


def masked_softmax(o: Any, scores: Tensor, mask: Tensor) -> Tensor:
    return o.softmax(scores * 0.125 + mask, -1)


def swiglu_layer(o: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(o.swiglu(F.linear(x, gate), F.linear(x, up)), down)


def norm_and_rotary(o: Any, x: Tensor, q: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    heads = F.linear(x, q).unflatten(-1, (-1, w.shape[0])).transpose(1, 2)
    return o.rotary_embedding(o.rms_norm(heads, w.shape, w, 1e-6), cos, sin)


def transformer_block(
    o: Any, x: Tensor, qkv: Tensor, out: Tensor, a: Tensor, b: Tensor, w: Tensor, v: Tensor
) -> Tensor:
    n = o.layer_norm(x, w.shape, w, v)
    q, k, values = F.linear(n, qkv).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, values, is_causal=True).transpose(1, 2).flatten(-2)
    x = x + F.linear(y, out)
    return x + F.linear(o.gelu(F.linear(o.layer_norm(x, w.shape, w, v), a)), b)


def post_norms(o: Any, x: Tensor, y: Tensor, z: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = o.layer_norm(x + y, w.shape, w, b)
    return o.layer_norm(x + torch.relu(z) * 0.7, w.shape, w, b)


def convnext_block(
    o: Any, x: Tensor, kernel: Tensor, w: Tensor, b: Tensor, up: Tensor, down: Tensor, gamma: Tensor
) -> Tensor:
    y = F.conv2d(x, kernel, padding=3, groups=x.shape[1]).permute(0, 2, 3, 1)
    y = F.linear(o.gelu(F.linear(o.layer_norm(y, w.shape, w, b), up)), down) * gamma
    return x + y.permute(0, 3, 1, 2)


def distillation(o: Any, student: Tensor, teacher: Tensor) -> Tensor:
    return (o.softmax(teacher * 0.5, -1) * o.log_softmax(student * 0.5, -1)).sum(-1).mul(-1)


def geglu_with_scales(o: Any, gate: Tensor, up: Tensor, scale: Tensor, r: Tensor) -> Tensor:
    return o.geglu(gate + 0.5, up * scale) * 2 + r


def _normal(*shape: int, scale: float = 1.0) -> Callable[[Any], Tensor]:
    return lambda options: torch.randn(shape, **options) * scale


def _block(rows: Sequence[int], width: int, inner: int) -> list[Any]:
    s = width**-0.5
    weights = (3 * width, width), (width, width), (inner, width), (width, inner)
    return [_normal(*rows, width), *(_normal(*w, scale=s) for w in weights), _normal(width), _normal(width)]


# By name: the function, and what makes its tensors. The sizes are those of models of 1 to 8 billion parameters.
GRAPHS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "norm_gelu_add": (norm_gelu_add, [_normal(16384, 2048), _normal(16384, 2048), _normal(2048), _normal(2048)]),
    "norm_between_additions": (norm_between_additions, [*[_normal(8192, 4096)] * 3, _normal(4096)]),
    "masked_softmax": (masked_softmax, [_normal(4, 16, 1024, 1024), _normal(4, 1, 1024, 1024)]),
    "swiglu_layer": (
        swiglu_layer,
        [_normal(4096, 2048), *[_normal(5632, 2048, scale=0.02)] * 2, _normal(2048, 5632, scale=0.02)],
    ),
    "norm_and_rotary": (
        norm_and_rotary,
        [_normal(4, 2048, 2048), _normal(2048, 2048, scale=0.02), _normal(128), *[_normal(2048, 128)] * 2],
    ),
    "transformer_block": (transformer_block, _block((8, 1024), 1024, 4096)),
    "post_norms": (post_norms, [*[_normal(16384, 1024)] * 3, _normal(1024), _normal(1024)]),
    "convnext_block": (
        convnext_block,
        [
            *(_normal(32, 192, 28, 28), _normal(192, 1, 7, 7, scale=0.1), _normal(192), _normal(192)),
            *(_normal(768, 192, scale=0.05), _normal(192, 768, scale=0.05), _normal(192)),
        ],
    ),
    "distillation": (distillation, [_normal(4096, 32000)] * 2),
    "geglu_with_scales": (geglu_with_scales, [*[_normal(8192, 5504)] * 2, _normal(5504), _normal(8192, 5504)]),
}
SEEN = ("norm_gelu_add", "norm_between_additions", "masked_softmax", "swiglu_layer", "norm_and_rotary")
_NUMBERS = itertools.count()
VARIANTS = "torch", "kernels", "chosen"
WITHOUT_GRADIENT = {"masked_softmax": [1], "norm_and_rotary": [3, 4], "distillation": [1]}


def tensors_of(name: str, device: str, dtype: torch.dtype, small: bool) -> list[Tensor]:
    """Returns the tensors of a graph. Without a GPU, ``small`` cuts the sizes for a trial."""
    _, makers = GRAPHS[name]
    torch.manual_seed(0)
    made = [maker({"device": device, "dtype": dtype}) for maker in makers]
    if small:
        made = [x[tuple(slice(0, 64 if n > 4096 else 96 if n == 192 else n) for n in x.shape)] for x in made]
    keep = WITHOUT_GRADIENT.get(name, ())
    return [x.clone().requires_grad_(i not in keep) for i, x in enumerate(made)]


def compiled(name: str, operations: Any, tensors: Sequence[Tensor], trains: bool) -> Callable[[], Any]:
    """Returns a call of the compiled graph: the results, or in training the gradients."""
    function = GRAPHS[name][0]

    def call(*args: Tensor) -> Any:
        return function(operations, *args)

    # Dynamo keeps graphs by the code of a function: with code of its own, each variant has graphs of its own.
    code = call.__code__.replace(co_name=f"call_{next(_NUMBERS)}")
    own = types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
    graph = torch.compile(own, fullgraph=True, dynamic=False)
    if not trains:

        def infer() -> Any:
            with torch.no_grad():
                return graph(*tensors)

        return infer
    with torch.no_grad():
        results = function(TORCH, *tensors)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(1)
    gradients = [torch.randn_like(y) for y in results]
    wanted = [x for x in tensors if x.requires_grad]

    def train() -> Any:
        found = graph(*tensors)
        return torch.autograd.grad(found if isinstance(found, tuple) else (found,), wanted, gradients)

    return train


def as_list(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def measured(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the median microseconds of each call, as CUDA graphs that run in turn."""
    from cupyops.torch.bench.timing import GraphTimer

    timers: dict[str, Any] = {}
    for name, call in calls.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        timers[name] = GraphTimer([call], torch.cuda.graph_pool_handle())
        timers[name].outputs = []
        timers[name].calibrate()
    return {name: statistics.median(s) for name, s in _samples(timers, rounds).items()}


def _samples(timers: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            found[name].append(timer.sample())
    return found


_LOCKED = set[Path]()  # by this process


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process has the lock. A measurement inside a measurement has it already."""
    if path in _LOCKED:
        yield
        return
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _LOCKED.add(path)
        try:
            yield
        finally:
            _LOCKED.remove(path)


def alone_on_the_gpu(path: Path) -> None:
    """Has each measurement of Inductor's, also those of the choices, wait until no other process measures."""
    from torch._inductor.runtime.benchmarking import benchmarker

    kind: Any = type(benchmarker)
    benchmark = kind.benchmark_gpu

    def benchmark_gpu(*args: Any, **kwargs: Any) -> Any:
        with locked(path):
            return benchmark(*args, **kwargs)

    kind.benchmark_gpu = benchmark_gpu


def one(
    name: str, folder: Path, device: str, dtype: torch.dtype, small: bool, rounds: int, variants: Sequence[str]
) -> None:
    """Compiles the variants of a graph, while other processes compile theirs, and times them alone on the GPU."""
    torch._inductor.config.force_disable_caches = True
    alone_on_the_gpu(folder / "lock")
    rows = list[dict[str, Any]]()
    tensors = tensors_of(name, device, dtype, small)
    for trains in (False, True):
        calls, first = dict[str, Callable[[], Any]](), list[Tensor]()
        for variant in variants:
            os.environ["CUPYOPS_CHOICES"] = "0" if variant == "kernels" else "1"
            begun = time.time()
            calls[variant] = call = compiled(name, TORCH if variant == "torch" else OURS, tensors, trains)
            found = as_list(call())
            first = first or found
            worst = max(
                float((a - b).abs().max() / b.abs().max().clamp_min(1e-9)) for a, b in zip(found, first, strict=True)
            )
            row = {"graph": name, "trains": trains, "variant": variant, "differs": worst, "seen": name in SEEN}
            rows.append({**row, "seconds": round(time.time() - begun, 1)})
            print(rows[-1], flush=True)
            del found
        first.clear()
        if device == "cuda":
            with locked(folder / "lock"):
                for row in rows[-len(variants) :]:
                    row["peak"] = peak_of(calls[str(row["variant"])])
                for row, time_of in zip(rows[-len(variants) :], measured(calls, rounds).values(), strict=True):
                    row["us"] = time_of
        (folder / f"{name}.json").write_text(json.dumps(rows))


def peak_of(call: Callable[[], Any]) -> int:
    """Returns the bytes that a call allocates at once, its results included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def markdown(document: dict[str, Any]) -> str:
    """Returns the table of a document: microseconds, the choice as a part of the faster of the two others, and memory."""
    cells = {(r["graph"], r["trains"], r["variant"]): r for r in document["rows"]}
    lines = [["graph", "", "PyTorch", "kernels", "chosen", "time", "MiB"], ["---"] * 7]
    for trains, name in itertools.product((False, True), GRAPHS):
        rows = [cells.get((name, trains, v), {}) for v in VARIANTS]
        if all("us" in r for r in rows):
            us, peaks = [r["us"] for r in rows], [str(r["peak"] >> 20) for r in rows]
            kind = "training" if trains else "inference"
            part = f"{us[2] / min(us[:2]):.2f}"
            lines.append([f"`{name}`", kind, *(f"{x:.1f}" for x in us), part, ", ".join(peaks)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0; 1 if a graph could not be measured."""
    parser = argparse.ArgumentParser("python -m benchmarks.graphs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="the file of the results")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: show this file")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="with --from: write the table into this page")
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1800.0, help="after which the results so far are written")
    parser.add_argument("--small", action="store_true", help="small tensors")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.source is not None:
        text = markdown(json.loads(given.source.read_text(encoding="utf-8")))
        if given.into is None:
            print(text, end="")
        else:
            given.into.write_text(between(given.into.read_text(encoding="utf-8"), text, "graphs"), encoding="utf-8")
        return 0
    if given.out is None:
        parser.error("--out or --from is needed")
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, given.dtype)
    if given.one:
        one(given.one, given.out, device, dtype, given.small, given.rounds, given.variants)
        return 0
    document: dict[str, Any] = {"environment": results_file.environment() if device == "cuda" else {}}
    end = time.time() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        passed = ["--out", folder, "--dtype", given.dtype, "--rounds", str(given.rounds), *["--small"] * given.small]
        command = [sys.executable, "-m", "benchmarks.graphs", *passed, "--variants", *given.variants]
        running = [subprocess.Popen([*command, "--one", name]) for name in given.graphs]
        for process in running:
            try:
                process.wait(max(0.0, end - time.time()))
            except subprocess.TimeoutExpired:
                process.kill()
        document["rows"] = [row for path in sorted(Path(folder).glob("*.json")) for row in json.loads(path.read_text())]
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(markdown(document), end="")
    measured = {row["graph"] for row in document["rows"] if row["trains"]}
    return 0 if measured == set(given.graphs) else 1


if __name__ == "__main__":
    sys.exit(main())
