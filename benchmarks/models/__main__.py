"""Time training steps of whole models: PyTorch's modules, ``cupyops.torch.optimize()`` and ``cupyops.torch.Fusions()``.

::

    python -m benchmarks --ops models                                       # into benchmarks/results/models-<gpu>.json
    python -m benchmarks --ops models --models ViT-B/16 --modes eager --merge
    python -m benchmarks --ops models --parallel                            # models compile at once, on all GPUs
    python -m benchmarks --ops models --losses 200 --merge                  # and the losses compared with float64's
    python -m benchmarks --ops models --chains --merge                      # and the host time of single modules
    python -m benchmarks --ops models --from FILE --into docs/benchmarks_models.md --plot docs/plots/models.svg
"""

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

__all__ = ["main"]

NAMES = (
    *("ViT-B/16", "BERT-base", "GPT-2 124M", "ConvNeXt-T", "SigLIP-so400m", "Whisper-small", "Pythia-410M"),
    "ESM-2 150M",
)
MODES = ("eager", "autocast", "compile", "graphs")
BATCHES = ("full", "one")
VARIANTS = ("torch", "again", "optimize", "fusions")
# A step of a batch of one is short, and its times scatter. 2n rounds of n variants are balanced: 4 of two, 6 of three, 8 of four.
ROUNDS = {"full": 24, "one": 96}
CHAIN_ROUNDS = 72


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks --ops models",
        description="Time training steps of whole models, built from configurations with random weights.",
        epilog="The variants of a model take turns. --from needs no GPU.",
    )
    add = parser.add_argument
    add("--models", nargs="+", choices=NAMES, default=NAMES, metavar="MODEL", help=f"default: {', '.join(NAMES)}")
    add("--modes", nargs="+", choices=MODES, default=MODES, help="default: all")
    add("--batches", nargs="+", choices=BATCHES, default=BATCHES, help="default: both")
    add("--variants", nargs="+", choices=VARIANTS, help="default: all, and 'again' for a batch of one alone")
    add("--rounds", type=_positive, metavar="N", help="turns of each variant; default: 24, 96 for a batch of one")
    add("--parallel", action="store_true", help="two processes for each model, on all GPUs; a GPU times one at a time")
    add("--losses", type=_positive, metavar="STEPS", help="compare the losses of so many steps instead of timing")
    add("--chains", action="store_true", help="measure the host time of chains of modules instead of models")
    add("--out", type=Path, metavar="FILE", help="default: benchmarks/results/models-<name of the GPU>.json")
    add("--merge", action="store_true", help="keep the file's rows that are not measured now")
    add("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: show this file")
    add("--into", type=Path, metavar="PAGE", help="write the tables into this Markdown page")
    add("--table", choices=("all", "short"), default="all", help="for --into: all tables, or the means over the models")
    add("--plot", type=Path, metavar="FILE", help="draw the speedups into this SVG file")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0; 1 if a model could not be measured; 2 for wrong options."""
    parser = build_parser()
    options = parser.parse_args(argv)
    # PyTorch is imported late, so that a wrong argument gets its error at once.
    from cupyops.errors import MissingDependencyError

    from . import report

    try:
        document = report.load(options.source) if options.source is not None else _measured(options)
        if options.plot is not None:
            report.draw(document, options.plot)
        if options.into is not None:
            page = options.into.read_text(encoding="utf-8")
            options.into.write_text(report.insert(page, document, options.table), encoding="utf-8")
        elif options.plot is None or options.source is None:
            print(report.markdown(document), end="")
    except (OSError, ValueError, ModuleNotFoundError, MissingDependencyError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return int(options.source is None and bool(document["failed"]))


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """The document of this run, saved after every case."""
    import torch

    from . import report

    if not torch.cuda.is_available():
        raise ValueError(f"measuring needs a CUDA GPU, and PyTorch {torch.__version__} sees none; --from works without")
    fresh = report.new()
    path = options.out or report.default_path(fresh["environment"]["gpu"])
    document = fresh
    if options.merge and path.exists():
        document = report.load(path)
        if document["environment"]["gpu"] != fresh["environment"]["gpu"]:
            raise ValueError(f"{path} was measured on another GPU, {document['environment']['gpu']}")
        document = {**fresh, **{section: document[section] for section in report.SECTIONS}}
    device = torch.device("cuda", torch.cuda.current_device())
    for section, rows in _cases(options, device):
        report.add(document, section, rows)
        report.save(path, document)
        gc.collect()
        torch.cuda.empty_cache()
    print(f"written to {path}")
    return document


def _cases(options: argparse.Namespace, device: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    from . import chains
    from .steps import losses, variants_of
    from .zoo import MODELS

    if options.chains:
        modes = [mode for mode in options.modes if mode != "graphs"]  # a graph's host time is that of one launch
        for row in chains.measure(device, modes, options.rounds or CHAIN_ROUNDS):
            both, least = row["both"], row["both_least"]
            print(f"{row['chain']}, {row['mode']}, {row['variant']}: {both:.1f} ({least:.1f}) us a module", flush=True)
            yield "chains", [row]
        return

    models = [m for m in MODELS if m.name in options.models]
    if options.losses:
        for model in models:
            variants = variants_of("eager", options.variants or [v for v in VARIANTS if v != "again"])
            found = losses(model, 2, variants, device, options.losses)
            rows = [{"model": model.name, "variant": v, "steps": options.losses, **r} for v, r in found.items()]
            yield "losses", rows
        return
    for model, case, found in _timings(options, models, device):
        named = {"model": model.name, "batch": "full" if case.batch == model.full else "one"}
        named |= {"size": case.batch, "mode": case.mode}
        if isinstance(found, str):
            print(f"{model.name}, batch {case.batch}, {case.mode}: {found}", file=sys.stderr, flush=True)
            yield "failed", [{**named, "reason": found}]
            continue
        rows = [{**named, "variant": v, **row} for v, row in found.items()]
        line = ", ".join(f"{r['variant']} {r['wall']:.2f} ({r['host']:.1f}, {r['gpu']})" for r in rows)
        print(f"{model.name}, batch {case.batch}, {case.mode}: {line} ms", flush=True)
        yield "rows", rows


def _timings(options: argparse.Namespace, models: Sequence[Any], device: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yields (model, case, rows by variant or the text of an error).

    With ``--parallel`` a model has two processes, which take the modes in pairs: eager and autocast, then the compiled
    ones. The two compilations of a model run side by side, and the GPUs hold two modes of all models at a time.
    """
    import torch

    from .steps import variants_of
    from .workers import Case, Worker, measured

    def case(model: Any, batch: str, mode: str) -> Case:
        asked = options.variants or [v for v in VARIANTS if v != "again" or batch == "one"]
        size, rounds = model.full if batch == "full" else 1, options.rounds or ROUNDS[batch]
        return Case(size, mode, variants_of(mode, asked), rounds)

    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if options.parallel else [str(device)]
    each = 2 if options.parallel else 1
    pairs = [options.modes[i : i + each] for i in range(0, len(options.modes), each)]
    by_name = {model.name: model for model in models}
    for part in [models] if options.parallel else [[model] for model in models]:
        processes = [[Worker(m.name, gpus[(i + n) % len(gpus)]) for n in range(each)] for i, m in enumerate(part)]
        for batch in options.batches:
            for pair in pairs:
                asked = [
                    (worker, case(model, batch, mode))
                    for model, workers in zip(part, processes, strict=True)
                    for worker, mode in zip(workers, pair, strict=False)  # the last pair may be one mode
                ]
                for worker, taken, found in measured(asked):
                    yield by_name[worker.name], taken, found
        for worker in chain(*processes):
            worker.close()


if __name__ == "__main__":
    raise SystemExit(main())
