"""The LLTM beside its peers, by time waited for: a cell beside PyTorch eager, ``torch.compile`` and a C++ extension, sequences
beside cuDNN's LSTM and GRU of the same sizes, and the pointwise kernels as a share of a copy::

    python -m benchmarks.lltm                     # prints Markdown tables
    python -m benchmarks.lltm --out lltm.json     # and keeps the medians

What is measured here is not memory traffic but the time of a call, so the rows are not among those of
``python -m benchmarks``.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autograd_bridge import lltm, lltm_cell
from cupyops.lltm import step
from cupyops.torch.timing import copy_bandwidth
from examples.lltm_benchmark import Step, cell_step, graph_step, inputs_for, measure

from .peers import Unavailable, compiled
from .peers.lltm_extension import cuda_cell, python_cell

__all__ = ["CELLS", "SEQUENCES", "main"]

CELLS = ((16, 32, 128), (64, 512, 1024), (256, 1024, 4096), (100_000, 32, 128))  # rows, features, units
STEPS = (32, 128, 1024)
SEQUENCES = ((16, 128), (64, 128), (16, 256), (16, 512), (16, 768), (64, 1024))  # rows, units
FEATURES = 32  # of a sequence
DTYPES = (torch.float32, torch.bfloat16)
RUNS, FEW = 200, 20  # of a small case, and of a large one

Row = dict[str, Any]


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
    large = batch * state * (features + state) > 2**24
    for timing in measure(found, FEW if large else RUNS):
        yield {
            "case": "cell",
            "sizes": list(sizes),
            "dtype": "float32",
            "implementation": timing.name,
            "forward": statistics.median(timing.forward),
            "backward": statistics.median(timing.backward),
        }


def sequence_rows(steps: int, batch: int, state: int, dtype: torch.dtype, device: torch.device) -> Iterator[Row]:
    """Forward and backward of a sequence, beside cuDNN's recurrent layers."""
    ours = [x.detach().to(dtype).requires_grad_() for x in inputs_for(batch, FEATURES, state, device, 0)]
    x = torch.randn(steps, batch, FEATURES, device=device, dtype=dtype).requires_grad_()
    peers = {"cuDNN LSTM": nn.LSTM(FEATURES, state), "cuDNN GRU": nn.GRU(FEATURES, state)}

    def all_steps() -> Tensor:
        return lltm(x, (ours[3], ours[4]), ours[1], ours[2])[0]

    def by(layer: nn.Module) -> Callable[[], Tensor]:
        layer.to(device, dtype)
        return lambda: layer(x)[0]

    calls = {"ours": all_steps, **{name: by(layer) for name, layer in peers.items()}}
    leaves = [x, *ours, *(p for layer in peers.values() for p in layer.parameters())]

    def timed(call: Callable[[], Tensor]) -> Step:
        def run() -> tuple[float, float]:
            for leaf in leaves:
                leaf.grad = None
            torch.cuda.synchronize()
            began = time.perf_counter()
            output = call()
            torch.cuda.synchronize()
            between = time.perf_counter()
            output.sum().backward()
            torch.cuda.synchronize()
            return (between - began) * 1e6, (time.perf_counter() - between) * 1e6

        return run

    for timing in measure([(name, timed(call)) for name, call in calls.items()], FEW):
        yield {
            "case": "sequence",
            "sizes": [steps, batch, FEATURES, state],
            "dtype": str(dtype).removeprefix("torch."),
            "implementation": timing.name,
            "forward": statistics.median(timing.forward),
            "backward": statistics.median(timing.backward),
        }


def share_of_copy(device: torch.device, dtype: torch.dtype) -> float:
    """Of the pointwise forward, on rows that are larger than the caches: bytes moved in the time that a copy takes."""
    rows, state = 400_000, 128
    gates = torch.randn(rows, 3 * state, device=device, dtype=dtype)
    old_cell, new_h, new_cell = (torch.zeros(rows, state, device=device, dtype=dtype) for _ in range(3))
    name = str(dtype).removeprefix("torch.")

    def once() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step(gates, old_cell, new_h, new_cell, name)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    seconds = statistics.median([once() for _ in range(FEW)][FEW // 4 :])
    rates, _ = copy_bandwidth(device)
    return 6 * old_cell.numel() * old_cell.element_size() / seconds / 1e9 / rates.median


def table(rows: Sequence[Row]) -> str:
    """Markdown, one line a case: forward / backward in microseconds."""
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = [["case", "sizes", "dtype", *names], ["---"] * (3 + len(names))]
    for case in dict.fromkeys((row["case"], tuple(row["sizes"]), row["dtype"]) for row in rows):
        mine = {r["implementation"]: r for r in rows if (r["case"], tuple(r["sizes"]), r["dtype"]) == case}
        cells = [f"{mine[n]['forward']:.1f} / {mine[n]['backward']:.1f}" if n in mine else "–" for n in names]
        lines.append([case[0], "×".join(map(str, case[1])), case[2], *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 without a GPU."""
    parser = argparse.ArgumentParser("python -m benchmarks.lltm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the medians in this JSON file")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, metavar="T", help="of the sequences")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error(f"measuring needs a CUDA GPU, and PyTorch {torch.__version__} sees none")
    device = torch.device("cuda", torch.cuda.current_device())
    cells = [row for sizes in CELLS for row in cell_rows(sizes, device)]
    print(table(cells), end="\n\n", flush=True)
    sequences: list[Row] = []
    for dtype in DTYPES:
        for steps in options.steps:
            for batch, state in SEQUENCES:
                sequences += sequence_rows(steps, batch, state, dtype, device)
    print(table(sequences), end="\n\n")
    shares = {str(dtype).removeprefix("torch."): share_of_copy(device, dtype) for dtype in DTYPES}
    for name, share in shares.items():
        print(f"pointwise forward, {name}: {share:.1%} of a copy")
    if options.out is not None:
        found = {"gpu": torch.cuda.get_device_name(device), "rows": cells + sequences, "share_of_copy": shares}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
