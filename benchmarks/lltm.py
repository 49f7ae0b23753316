"""The LLTM compared with its peers: a cell compared with PyTorch eager, ``torch.compile`` and a C++ extension, and sequences compared with cuDNN's
LSTM and GRU of the same sizes, by time waited for; and the pointwise kernels as a share of a copy::

    python -m benchmarks.lltm                                        # into benchmarks/results/lltm-<gpu>.json
    python -m benchmarks.lltm --steps 128 --into docs/lltm.md        # and the tables into the page
    python -m benchmarks.lltm --cases sequence --dtypes float16 --merge   # these again, and the other rows as they were
    python -m benchmarks.lltm --from benchmarks/results/lltm-nvidia-h200.json --into docs/lltm.md

Cells and sequences are measured by the time of a call, not by memory traffic, so their rows are not among those of
``python -m benchmarks``.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .choices import LLTM_CASES, LLTM_DTYPES

__all__ = ["CELLS", "POINTWISE", "SEQUENCES", "main"]

STEPS = (32, 128, 1024)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.lltm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: benchmarks/results/lltm-<name of the GPU>.json"
    )
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, metavar="T", help="of the sequences")
    parser.add_argument("--cases", nargs="+", choices=LLTM_CASES, default=LLTM_CASES, help="default: all of them")
    parser.add_argument(
        "--dtypes", nargs="+", choices=LLTM_DTYPES, default=LLTM_DTYPES, help="of sequences and kernels; default: all"
    )
    parser.add_argument("--merge", action="store_true", help="keep the file's rows that are not measured now")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: show this file")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the tables into this Markdown page")
    return parser


if __name__ == "__main__":
    build_parser().parse_args()  # --help and mistakes are answered here, before PyTorch is imported

import torch
from torch import Tensor, nn

from autograd_bridge import lltm, lltm_cell
from cupyops.errors import MissingDependencyError
from cupyops.ops.lltm.cell import StepGradients, step, step_backward
from cupyops.torch.bench.timing import GraphTimer, copy_bandwidth, gigabytes_per_second, interleave, spread
from examples.lltm_timing import Step, Timing, cell_step, graph_step, inputs_for, measure

from . import lltm_report
from .peers import Unavailable, compiled
from .peers.lltm_extension import cuda_cell, python_cell

CELLS = ((16, 32, 128), (64, 512, 1024), (256, 1024, 4096), (100_000, 32, 128))  # rows, features, units
SEQUENCES = ((16, 128), (64, 128), (16, 256), (16, 512), (16, 768), (64, 1024))  # rows, units
POINTWISE = ((400_000, 128), (50_000, 1024))  # rows, units: ten times the caches
FEATURES = 32  # of a sequence
RUNS, SOME, FEW, ROUNDS = (
    200,
    60,
    10,
    9,
)  # of a small cell, of a sequence, of a large or long case, and of the kernels alone

Row = dict[str, Any]


def row(case: str, sizes: Sequence[int], dtype: torch.dtype, timing: Timing) -> Row:
    """Medians of a version, and the spread of both directions together; 0 for a backward that is part of the forward."""
    both = spread([f + b for f, b in zip(timing.forward, timing.backward, strict=True)])
    return {
        "case": case,
        "sizes": list(sizes),
        "dtype": str(dtype).removeprefix("torch."),
        "implementation": timing.name,
        "forward": statistics.median(timing.forward),
        "backward": statistics.median(timing.backward),
        "both": both.median,
        "p10": both.p10,
        "p90": both.p90,
        "samples": both.samples,
    }


def cell_rows(sizes: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Forward and backward of a cell in each version, in turn; and replayed as a graph."""
    batch, features, state = sizes
    inputs = inputs_for(batch, features, state, device, 0)
    found: list[tuple[str, Step]] = [("eager", cell_step(python_cell, inputs)), ("ours", cell_step(lltm_cell, inputs))]
    makers: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("extension", cuda_cell),
        ("compile", lambda: compiled(python_cell)),
    )
    for name, make in makers:
        try:
            found.append((name, cell_step(make(), inputs)))
        except Unavailable as reason:
            print(f"{name}: left out: {reason}")
    found.append(("ours, graph", graph_step(lltm_cell, inputs)))
    large = batch * state * (features + state) > 2**28
    for timing in measure(found, FEW if large else RUNS):
        yield row("cell", sizes, torch.float32, timing)


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    """Within the block, the float32 products of PyTorch and of cuDNN may take TF32, or may not.

    PyTorch's defaults differ: its recurrent layers may, and its matrix products may not.
    """
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = allowed
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def sequence_rows(
    steps: int, batch: int, state: int, dtype: torch.dtype, device: torch.device, tf32: bool = False
) -> Iterator[Row]:
    """Forward and backward of a sequence, compared with cuDNN's recurrent layers; and, on a GPU, replayed as graphs.

    Args:
        tf32: whether the float32 products of all implementations may take TF32.
    """
    parameters = [x.detach().to(dtype).requires_grad_() for x in inputs_for(batch, FEATURES, state, device, 0)[1:]]
    x = torch.randn(steps, batch, FEATURES, device=device, dtype=dtype).requires_grad_()
    peers = {"cuDNN LSTM": nn.LSTM(FEATURES, state), "cuDNN GRU": nn.GRU(FEATURES, state)}

    def ours(x: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor]:
        return (lltm(x, (h0, c0), weights, bias)[0],)

    def by(layer: nn.Module) -> tuple[Callable[..., tuple[Tensor]], list[Tensor]]:
        layer.to(device, dtype)
        return lambda x, *_: (layer(x)[0],), [x, *layer.parameters()]

    calls: dict[str, tuple[Callable[..., tuple[Tensor]], list[Tensor]]] = {"ours": (ours, [x, *parameters])}
    calls |= {name: by(layer) for name, layer in peers.items()}
    with tf32_allowed(tf32):
        found = [(name, cell_step(call, leaves)) for name, (call, leaves) in calls.items()]
        if device.type == "cuda":
            found += [(f"{name}, graph", graph_step(*calls[name])) for name in ("ours", "cuDNN LSTM")]
        # Enough calls in a turn that most follow a call of the same version, as in a training loop.
        timings = list(measure(found, SOME if steps <= 128 else FEW))
    for timing in timings:
        found_row = row("sequence", (steps, batch, FEATURES, state), dtype, timing)
        yield found_row | {"dtype": "float32, TF32"} if tf32 else found_row


def pointwise_rows(rows: int, state: int, dtype: torch.dtype, device: torch.device, copy: float) -> Iterator[Row]:
    """The kernels between the products, alone: graph replays over rows that are larger than the caches.

    Args:
        copy: GB/s of a copy, measured in this run.
    """
    name = str(dtype).removeprefix("torch.")
    gates, grad_z = (torch.randn(rows, 3 * state, device=device).to(dtype) for _ in range(2))
    cell, other, grad_h, grad_cell = (torch.randn(rows, state, device=device).to(dtype) for _ in range(4))
    forward = partial(step, gates, cell, other, grad_h, name)
    given = StepGradients(grad_h, grad_cell, None)
    backward = partial(step_backward, given, gates, cell, grad_z, other, name, torch.empty_like(gates[0]))
    for direction, call, each in (("forward", forward, 6), ("backward", backward, 10)):
        call()
        timer = GraphTimer([call, call], torch.cuda.graph_pool_handle())
        timer.calibrate()
        found = interleave({direction: timer}, ROUNDS)[direction]
        rate = gigabytes_per_second(each * cell.numel() * cell.element_size(), found.median)
        yield {
            "case": "pointwise",
            "sizes": [rows, state],
            "dtype": name,
            "implementation": direction,
            "both": found.median,
            "p10": found.p10,
            "p90": found.p90,
            "samples": found.samples,
            "share_of_copy": rate / copy,
        }


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0, or 2 for wrong options."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        if options.source is None:
            if not torch.cuda.is_available():
                parser.error(f"measuring needs a CUDA GPU, and PyTorch {torch.__version__} sees none")
            document = _measured(options)
        else:
            document = lltm_report.load(options.source)
        if options.into is not None:
            page = options.into.read_text(encoding="utf-8")
            options.into.write_text(lltm_report.insert(page, document), encoding="utf-8")
        elif options.source is not None:
            print(lltm_report.markdown(document), end="")
    except (OSError, ValueError, MissingDependencyError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """The document of this run, saved after every case."""
    device = torch.device("cuda", torch.cuda.current_device())
    copy, nbytes = copy_bandwidth(device)
    document = lltm_report.new({"gb_per_s": copy.median, "p10": copy.p10, "p90": copy.p90, "bytes": nbytes})
    path = options.out or lltm_report.default_path(document["environment"]["gpu"])
    if options.merge and path.exists():
        lltm_report.keep(document, lltm_report.load(path))
    cases: list[tuple[str, Iterator[Row]]] = [("cell", cell_rows(sizes, device)) for sizes in CELLS]
    for name in options.dtypes:
        tf32 = name == "tf32"
        dtype = torch.float32 if tf32 else getattr(torch, name)
        if not tf32:  # these kernels have no products
            cases += [("pointwise", pointwise_rows(*sizes, dtype, device, copy.median)) for sizes in POINTWISE]
        cases += [
            ("sequence", sequence_rows(steps, *sizes, dtype, device, tf32))
            for steps in options.steps
            for sizes in SEQUENCES
        ]
    for case, rows in cases:
        if case in options.cases:
            found = list(rows)
            print(lltm_report.table(found), end="\n\n", flush=True)
            lltm_report.add(document, found)
            lltm_report.save(path, document)
    print(f"written to {path}")
    return document


if __name__ == "__main__":
    raise SystemExit(main())
