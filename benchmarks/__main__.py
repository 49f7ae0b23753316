"""Measure the operators compared with their peers, and show what was measured.

::

    python -m benchmarks                                  # every operator, into benchmarks/results/<gpu>.json
    python -m benchmarks --ops gelu --kinds device --merge
    python -m benchmarks --ops layer_norm --row-lengths 1024 8192 --dtypes bfloat16 --merge
    python -m benchmarks --ops lenet5 --mnist DIR --merge
    python -m benchmarks --ops models
    python -m benchmarks --ops scale                      # on several GPUs
    python -m benchmarks --ops rows --half first          # into benchmarks/results/rows-<gpu>.json
    python -m benchmarks --ops rows --half second --merge
    python -m benchmarks --ops own_ops tutorial --sizes 2^28 --out benchmarks/results/own-ops.json
    python -m benchmarks --from benchmarks/results/nvidia-h200.json --table all --into docs/benchmarks.md
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install

from .choices import (
    DTYPE_NAMES,
    EXTRA,
    FORMS,
    HALVES,
    IMPLEMENTATIONS,
    OPERATORS,
    RECIPES,
    ROW_IMPLEMENTATIONS,
    ROW_SCALE,
    ROWS,
    SIZES,
    families,
)

__all__ = ["main"]

KINDS = ("device", "host", "build")
DIRECTIONS = ("forward", "backward", "tangent")


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0 for success, 1 if a measurement failed, 2 for wrong options."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:2] == ["--ops", "models"]:
        from .models.__main__ import main as models

        return models(argv[2:])
    if argv[:2] == ["--ops", "scale"]:
        from .scale.__main__ import main as scale

        return scale(argv[2:])
    parser = build_parser()
    options = parser.parse_args(argv)
    problem = _misuse(options)
    if problem:
        parser.error(problem)
    options.of_rows = ROWS in (options.ops or ())
    if options.of_rows:
        _take_rows(options)
    # PyTorch is imported late, so that a wrong argument gets its error at once.
    from . import results_file

    try:
        if options.source is not None:
            document, failed = results_file.load(options.source), False
        else:
            document, failed = _measure(options)
        _show(options, document)
    except (results_file.ResultsError, CannotMeasure, MissingDependencyError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return int(failed)


class CannotMeasure(RuntimeError):
    """This machine or this command cannot run the requested measurement."""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Time the operators beside PyTorch eager, torch.compile, Triton and a C++ extension.",
        epilog="Each result is checked against float64 before it is timed. --from needs no GPU.",
    )
    parser.add_argument(
        "--ops",
        nargs="+",
        choices=(*OPERATORS, *EXTRA, ROWS, "lenet5", "models", "scale"),
        help=f"default: {' '.join(OPERATORS)}; rows: the operators on rows, at many lengths; models and scale come first and"
        " alone, and have options of their own (--ops models --help)",
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help=f"default: {' '.join(KINDS)}")
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, help="default: all")
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=_size,
        metavar="N",
        help="numbers of elements, also as 2^K; default: 2^10 2^16 2^20 2^24 2^28; layer_norm takes the largest",
    )
    parser.add_argument(
        "--row-lengths", nargs="+", type=_size, metavar="N", help="of layer_norm; default: 15 from 64 to 2^18"
    )
    parser.add_argument("--half", choices=HALVES, help="with --ops rows: every other row length")
    parser.add_argument(
        "--within",
        type=_positive,
        metavar="SECONDS",
        help="with --ops rows: begin no further row length after so many seconds",
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPE_NAMES, help="of the rows on the GPU; default: all")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, help="of the rows on the GPU; default: both")
    parser.add_argument(
        "--full", action="store_true", help="layer_norm: float16, no weight and the addition at every row length"
    )
    parser.add_argument(
        "--warm-up",
        type=_positive,
        metavar="JOBS",
        help="first compile what has to be compiled, in so many processes at a time",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/results/<name of the GPU>.json")
    parser.add_argument("--merge", action="store_true", help="keep the file's rows that are not measured now")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: show this file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw SVG plots into this folder")
    parser.add_argument(
        "--table",
        nargs="?",
        const="largest",
        choices=FORMS,
        help="print Markdown tables: of a line an operator, of the largest sizes, of all, or of --ops rows",
    )
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the tables into this Markdown page")
    parser.set_defaults(of_rows=False)
    lenet5 = parser.add_argument_group("lenet5")
    lenet5.add_argument("--mnist", type=Path, metavar="DIR", help="folder with the four MNIST files")
    lenet5.add_argument("--lenet5-epochs", type=_positive, metavar="N", help="default: the example's own")
    lenet5.add_argument("--lenet5-seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default: 0 1 2")
    lenet5.add_argument("--lenet5-recipes", nargs="+", choices=RECIPES, default=RECIPES, help="default: both")
    lenet5.add_argument(
        "--lenet5-jobs",
        type=_positive,
        default=1,
        metavar="N",
        help="runs at a time; beyond 1, only the first seed's runs are timed",
    )
    return parser


def _take_rows(options: argparse.Namespace) -> None:
    """Replaces ``--ops rows`` by the operators on rows, the time on the GPU, and the row lengths that are measured."""
    options.ops = list(families("rows"))
    options.kinds = options.kinds or ["device"]
    options.sizes = options.sizes or [max(SIZES)]
    options.implementations = options.implementations or list(ROW_IMPLEMENTATIONS)
    options.warm_up = options.warm_up or max(1, min(12, (os.cpu_count() or 1) - 2))
    lengths = options.row_lengths or ROW_SCALE
    options.row_lengths = list(lengths[HALVES.index(options.half) :: 2] if options.half else lengths)


def _size(text: str) -> int:
    base, power, exponent = text.partition("^")
    try:
        n = int(base) ** int(exponent) if power else int(base)
    except ValueError:
        n = 0
    if not 2 <= n <= 2**31:
        raise argparse.ArgumentTypeError(f"expected a number of elements from 2 to 2^31, such as 2^20, got {text!r}")
    return int(n)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _misuse(options: argparse.Namespace) -> str:
    """Returns the error of a combination of options that argparse accepts one by one, or an empty string."""
    names = ("ops", "kinds", "implementations", "sizes", "row_lengths", "dtypes", "directions", "full", "warm_up")
    measuring = [f"--{name.replace('_', '-')}" for name in (*names, "out", "merge") if getattr(options, name)]
    if ROWS in (options.ops or ()) and len(options.ops) > 1:
        return "--ops rows stands alone: it has a file of its own"
    for name in ("half", "within"):
        if getattr(options, name) and ROWS not in (options.ops or ()):
            return f"--{name} is for --ops rows"
    for name in {"models", "scale"} & set(options.ops or ()):
        return f"--ops {name} comes first and alone: python -m benchmarks --ops {name} --help shows its options"
    if options.source is not None:
        if measuring:
            return f"--from measures nothing, so {measuring[0]} has no meaning beside it; leave one of them out"
        if options.plots is None and options.table is None and options.into is None:
            return "--from FILE needs --plots DIR, --table or --into PAGE, to say what to show"
    elif "lenet5" in (options.ops or ()) and options.mnist is None:
        return "--ops lenet5 needs --mnist DIR, the folder with the four MNIST files"
    return ""


def _measure(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The document of this run, merged where asked for, and whether something failed. Saved after every section."""
    import torch

    from cupyops.torch.bench.timing import copy_bandwidth, repeatable_backward

    from . import results_file
    from .merging import merged

    if not torch.cuda.is_available():
        raise CannotMeasure(
            f"measuring needs a CUDA GPU, and PyTorch {torch.__version__} sees none; "
            "--plots DIR or --table, with --from FILE, work without one"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    environment = results_file.environment()
    path = options.out or results_file.default_path(f"{'rows ' if options.of_rows else ''}{environment['gpu']}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotMeasure(f"--out: cannot make the folder {path.parent}: {error.strerror}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise CannotMeasure(f"--out must name a file in a folder that can be written, got {path}")
    old = results_file.load(path) if options.merge and path.exists() else None
    rates, nbytes = copy_bandwidth(device)
    copy = {"gb_per_s": round(rates.median, 1), "p10": round(rates.p10, 1), "p90": round(rates.p90, 1), "bytes": nbytes}
    fresh = results_file.new(environment, *results_file.commit(), copy)
    print(f"{environment['gpu']}: copies {copy['gb_per_s'] / 1000:.3f} TB/s", flush=True)
    if old is not None:
        merged(old, fresh)  # refuses another machine's file before anything is measured
    document, failed = fresh, False
    with repeatable_backward():
        for section, name, findings in _sections(options, device, copy["gb_per_s"]):
            results_file.add(fresh, section, name, findings)
            document = fresh if old is None else merged(old, fresh)
            results_file.save(path, document)
            failed |= findings.failed
    print(f"written to {path}")
    for line in _closing(fresh):
        print(line)
    return document, failed


def _sections(options: argparse.Namespace, device: Any, copy_gb_per_s: float) -> Any:
    """(section, list of the document, findings), one after the other."""
    from . import warm_up
    from .build_time import measure_build
    from .cases import Choice, host_cases
    from .lenet5 import Plan, measure_lenet5
    from .measure import measure_device, measure_host

    began = time.monotonic()
    chosen = options.ops or OPERATORS
    operators = [op for op in (*OPERATORS, *EXTRA) if op in chosen]
    kinds = options.kinds or KINDS
    names = [name for name in IMPLEMENTATIONS if name in (options.implementations or IMPLEMENTATIONS)]
    choice = Choice(
        tuple(options.sizes or SIZES),
        tuple(options.row_lengths or ()),
        tuple(options.dtypes or ()),
        tuple(options.directions or ()),
        options.full,
        options.of_rows,
    )
    if options.warm_up:
        # The extension's build time is a figure, to be measured with nothing beside it.
        ahead = [name for name in names if name != "extension" or "build" not in kinds]
        warm_up.run(choice, operators, kinds, ahead, options.warm_up, echo=_echo)
    if options.of_rows and "device" in kinds:
        yield from _row_sections(choice, operators, device, copy_gb_per_s, names, began, options.within)
    for op in operators:
        if "host" in kinds:
            yield f"{op}.host", "host", measure_host(host_cases(op), device, names, echo=_echo)
        if "device" in kinds and not options.of_rows:
            # Row length by row length, so that an interrupted run keeps whole lengths.
            for _, cases in itertools.groupby(choice.cases(op), lambda case: case.shape[-1]):
                yield f"{op}.device", "rows", measure_device(cases, device, copy_gb_per_s, names, echo=_echo)
    if set(operators) & set(OPERATORS) and "build" in kinds:
        yield "build", "build", measure_build(names, echo=_echo)
    if "lenet5" in chosen:
        plan = Plan(
            options.mnist, options.lenet5_seeds, options.lenet5_epochs, options.lenet5_recipes, jobs=options.lenet5_jobs
        )
        yield "lenet5", "lenet5", measure_lenet5(plan, echo=_echo)


def _row_sections(
    choice: Any, ops: Sequence[str], device: Any, copy: float, names: Sequence[str], began: float, within: int | None
) -> Any:
    """The sections of the operators on rows, row length by row length."""
    from . import rows
    from .measure import Findings, measure_device

    for n in choice.row_lengths:
        found = rows.cases(n, max(choice.sizes), dtypes=choice.dtypes, directions=choice.directions, ops=ops)
        late = within is not None and time.monotonic() - began > within
        for op, cases in itertools.groupby(found, lambda case: case.op):
            if late:
                findings = Findings()
                findings.skip(f"{op}.device", f"rows of {n}", f"not begun within {within} s", failed=False)
            else:
                findings = measure_device(cases, device, copy, names, rounds=rows.ROUNDS, echo=_echo)
            yield f"{op}.device", "rows", findings


def _echo(line: str) -> None:
    print(line, flush=True)


def _closing(document: dict[str, Any]) -> list[str]:
    from .table import losing_rows

    lines = []
    for entry in document["skipped"]:
        word = "failed" if entry["failed"] else "skipped"
        lines.append(f"{word}: {entry['section']}, {entry['what']}: {entry['reason']}")
    return lines + [f"slower: {line}" for line in losing_rows(document)]


def _show(options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Draws the requested plots and tables."""
    if options.plots is not None:
        from .plots import draw

        try:
            for path in draw(document, options.plots, of_rows=options.table == "rows"):
                print(path)
        except ModuleNotFoundError as error:
            raise CannotMeasure(
                f"--plots needs matplotlib ({error}); {pip_install('examples', 'matplotlib')}"
            ) from None
        except OSError as error:
            raise CannotMeasure(f"--plots: cannot write to {options.plots}: {error.strerror}") from None
    if options.into is not None:
        from .table import insert

        try:
            page = options.into.read_text(encoding="utf-8")
            options.into.write_text(insert(page, document, options.table or "largest"), encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CannotMeasure(f"--into {options.into}: {error}") from None
    elif options.table is not None:
        from .table import markdown

        print(markdown(document, options.table), end="")


if __name__ == "__main__":
    raise SystemExit(main())
