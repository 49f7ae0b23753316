"""The benchmark of PyTorch's tutorial on extensions, with the GPU synchronized: forward and backward of an LLTM cell in
each version.

Every version is warmed up. The versions take turns. Forward and backward are timed separately, and the clock stops when
the GPU is idle. The backward computes the gradients of all five inputs. The table has medians with the tenth and the
ninetieth percentile::

    python -m examples.lltm_benchmark                  # batch 16, 32 features, 128 units
    python -m examples.lltm_benchmark -b 64 -f 512 -s 1024 --plot lltm.svg
    python -m examples.lltm_benchmark -t 128           # a sequence, beside torch.nn.LSTM
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .command import Parser, at_least, run_command

# Microseconds forward and backward on a GTX 1080 Ti, as the tutorial prints them.
PUBLISHED = {
    "Python, CPU": (1587.342, 2777.944),
    "C++, CPU": (1256.375, 5522.965),
    "Python, CUDA": (1233.025, 2303.220),
    "C++, CUDA": (946.013, 3679.143),
    "C++ and CUDA kernels": (826.400, 1838.094),
}
OURS, GRAPH = "cupyops", "cupyops, in a CUDA graph"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser, default = Parser("lltm_benchmark", __doc__, "seed", "plot"), "(default: %(default)s)"
    add, whole = parser.add_argument, at_least(1)
    add("-b", "--batch", type=whole, default=16, metavar="N", help=f"rows {default}")
    add("-f", "--features", type=whole, default=32, metavar="N", help=default)
    add("-s", "--state", type=whole, default=128, metavar="N", help=f"units {default}")
    add("-t", "--steps", type=whole, metavar="N", help="a sequence of so many steps instead of a cell")
    add("-r", "--runs", type=whole, default=500, metavar="N", help=f"of each version {default}")
    add("--no-build", action="store_true", help="leave out the versions in C++, whose build takes a minute")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
from torch import Tensor, nn

from autograd_bridge import lltm, lltm_cell

from .command import Progress, describe_device
from .lltm_timing import Cell, Step, Timing, cell_step, graph_step, inputs_for, measure, python_cell
from .pictures import new_figure, picture, write_figure


class LeftOut(RuntimeError):
    """This machine cannot run a version. The message has the reason."""


def built(name: str) -> Cell:
    """A cell of the tutorial's extension: its sources are in a checkout, and PyTorch builds them."""
    try:
        from benchmarks.peers import Unavailable, lltm_extension
    except ModuleNotFoundError:
        raise LeftOut("its sources are in a checkout of cupyops, in benchmarks/peers") from None
    print(f"{name}: building takes about a minute; --no-build leaves it out", file=sys.stderr)
    try:
        cell: Cell = getattr(lltm_extension, name)()
    except Unavailable as reason:
        raise LeftOut(str(reason)) from reason
    return cell


def versions(batch: int, features: int, state: int, seed: int, *, build: bool = True) -> Iterator[tuple[str, Step]]:
    """The name and the step of each version that this machine can run. The other versions are named on stderr."""
    on_cpu = inputs_for(batch, features, state, torch.device("cpu"), seed)
    on_gpu = inputs_for(batch, features, state, torch.device("cuda"), seed) if torch.cuda.is_available() else None
    makers: list[tuple[str, Callable[[], Cell], list[Tensor] | None]] = [
        ("Python, CPU", lambda: python_cell, on_cpu),
        ("C++, CPU", lambda: built("cpp_cell"), on_cpu),
        ("Python, CUDA", lambda: python_cell, on_gpu),
        ("C++, CUDA", lambda: built("cpp_cell"), on_gpu),
        ("C++ and CUDA kernels", lambda: built("cuda_cell"), on_gpu),
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
            except LeftOut as reason:
                _leave_out(name, str(reason))
    if on_gpu is not None:
        yield GRAPH, graph_step(lltm_cell, on_gpu)


def sequence_versions(steps: int, batch: int, features: int, state: int, seed: int) -> Iterator[tuple[str, Step]]:
    """The versions of a sequence: cell after cell, all steps in one launch, and torch.nn.LSTM of the same sizes."""
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


def _spread(values: list[float]) -> str:
    if not any(values):
        return "–"
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return f"{statistics.median(values):.1f} ({low:.1f} to {high:.1f})"


def table(timings: list[Timing], published: bool) -> str:
    """The table in Markdown: medians, percentiles, and the tutorial's figures of a GTX 1080 Ti."""
    head = ["version", "forward, us", "backward, us", "both, us", *(["published, us"] if published else [])]
    rows = []
    for t in timings:
        known = PUBLISHED.get(t.name)
        theirs = f"{known[0]:.1f} / {known[1]:.1f}" if known else "–"
        found = [t.name, _spread(t.forward), _spread(t.backward), f"{t.total:.1f}"]
        rows.append([*found, theirs] if published else found)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def plot(path: Path, timings: list[Timing], title: str) -> None:
    """Bars of the medians."""
    figure = new_figure(8, 0.5 * len(timings) + 1.2)
    axes = figure.subplots()
    names = [t.name for t in timings][::-1]
    forward = [statistics.median(t.forward) for t in timings][::-1]
    axes.barh(names, forward, label="forward")
    axes.barh(names, [statistics.median(t.backward) for t in timings][::-1], left=forward, label="backward")
    axes.set(xlabel="microseconds, median", title=title)
    figure.legend(loc="outside right upper")  # beside no bar
    write_figure(figure, path)


def run(options: argparse.Namespace) -> None:
    """Measure the versions, and print the tutorial's lines, a table, and the path of the bar chart."""
    sizes = (options.batch, options.features, options.state)
    where = describe_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    title = f"LLTM, batch {sizes[0]}, {sizes[1]} features, {sizes[2]} units"
    title += "" if options.steps is None else f", {options.steps} steps"
    print(f"{title}, float32, on {where}")
    if options.steps is None:
        found = list(versions(*sizes, options.seed, build=not options.no_build))
    else:
        found = list(sequence_versions(options.steps, *sizes, options.seed))
    with Progress("Measuring", len(found) * options.runs, "runs") as bar:
        timings = measure(found, options.runs, bar.update)
    for timing in timings:
        print(f"{timing.name:24} {timing.line()}")
    print(f"\n{table(timings, options.steps is None)}")
    picture(options.plot, plot, timings, title)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when done, 2 if an option is wrong."""
    options = parse(argv)
    return run_command("lltm_benchmark", lambda: run(options))


if __name__ == "__main__":
    raise SystemExit(main())
