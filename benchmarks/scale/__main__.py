"""Time training on several GPUs of one machine: PyTorch's modules and cupyops, under DDP, FSDP2 and tensor parallelism.

::

    python -m benchmarks --ops scale                              # into benchmarks/results/scale-<gpu>.json
    python -m benchmarks --ops scale --models char_gpt --modes eager --merge
    python -m benchmarks --ops scale --seconds 240                # begin no case after four minutes
    python -m benchmarks --ops scale --from FILE --into docs/scale.md
    python -m benchmarks --ops scale --collectives                # what 64 and 1024 ranks communicate; needs no GPU
"""

import argparse
import gc
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "run"]

NAMES = ("char_gpt", "ViT-L/16")
WAYS = ("ddp", "fsdp", "tp")
MODES = ("eager", "compiled", "checkpointing", "graphs")
ZOO = "benchmarks.scale.models"


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks --ops scale",
        description="Time training steps on several GPUs, of models with random weights.",
        epilog="The variants of a model take turns, one step at a turn. --from and --collectives need no GPU.",
    )
    add = parser.add_argument
    add("--models", nargs="+", choices=NAMES, default=NAMES, metavar="MODEL", help=f"default: {', '.join(NAMES)}")
    add("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all")
    add("--modes", nargs="+", choices=MODES, default=MODES, help="default: all")
    add("--ranks", type=_positive, metavar="N", help="GPUs; default: all")
    add("--rounds", type=_positive, default=12, metavar="N", help="timed steps of each variant; default: 12")
    add(
        "--seconds",
        type=_positive,
        metavar="N",
        help="begin no case after so many seconds; the file names what is left",
    )
    add("--out", type=Path, metavar="FILE", help="default: benchmarks/results/scale-<name of the GPU>.json")
    add("--merge", action="store_true", help="keep the file's rows that are not measured now")
    add("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: show this file")
    add("--into", type=Path, metavar="PAGE", help="write the table into this Markdown page")
    add(
        "--collectives", action="store_true", help="print what 64 and 1024 ranks would communicate, and measure nothing"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0; 1 if a case could not be measured; 2 for what cannot be asked."""
    parser = build_parser()
    options = parser.parse_args(argv)
    # PyTorch is imported once there is something to do with it: a wrong argument is answered before.
    from cupyops.errors import MissingDependencyError

    from . import report

    try:
        if options.collectives:
            from .collectives import table

            print(table(), end="")
            return 0
        document = report.load(options.source) if options.source is not None else _measured(options)
        if options.into is not None:
            page = options.into.read_text(encoding="utf-8")
            options.into.write_text(report.insert(page, document), encoding="utf-8")
        else:
            print(report.markdown(document), end="")
    except (OSError, ValueError, ModuleNotFoundError, MissingDependencyError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return int(options.source is None and bool(document["failed"]))


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """The document of this run; the first rank saves it after every case."""
    import torch

    from benchmarks import results_file

    from . import report

    found = torch.cuda.device_count()
    if not found:
        raise ValueError(f"measuring needs CUDA GPUs, and PyTorch {torch.__version__} sees none; --from works without")
    ranks = options.ranks or found
    if ranks > found:
        raise ValueError(f"--ranks {ranks}: this machine has {found} GPUs")
    environment = {**results_file.environment(), "timm": results_file.version("timm")}
    path = options.out or report.default_path(environment["gpu"])
    document = report.new(environment, ranks)
    if options.merge and path.exists():
        old = report.load(path)
        if (old["environment"]["gpu"], old["ranks"]) != (environment["gpu"], ranks):
            raise ValueError(f"{path} was measured on {old['ranks']} x {old['environment']['gpu']}")
        document |= {"rows": old["rows"], "failed": old["failed"]}
    run(document, path, "cuda", options.models, options.ways, options.modes, options.rounds, options.seconds)
    print(f"written to {path}")
    return report.load(path)


def run(
    document: dict[str, Any],
    path: Path,
    device: str,
    models: Sequence[str],
    ways: Sequence[str],
    modes: Sequence[str],
    rounds: int,
    seconds: float | None = None,
    zoo: str = ZOO,
) -> None:
    """Measures in as many processes as the document has ranks, and saves the document at `path`.

    Args:
        device: "cuda", or "cpu" for a test.
        seconds: no case begins later.
        zoo: the name of the Python module whose ``MODELS`` has the models.
    """
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        chosen = (models, ways, modes, rounds, seconds)
        arguments = (document, path, device, chosen, zoo, str(Path(folder, "store")))
        mp.start_processes(_rank, arguments, nprocs=document["ranks"], start_method="spawn")


def _rank(rank: int, document: dict[str, Any], path: Path, kind: str, chosen: Any, zoo: str, store: str) -> None:
    import torch
    import torch.distributed as dist

    from . import report
    from .steps import cases, measure

    models, ways, modes, rounds, seconds = chosen
    began, world = time.perf_counter(), document["ranks"]
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast is not there on every host
    if kind == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=dist.FileStore(store, world),
        rank=rank,
        world_size=world,
        device_id=device if kind == "cuda" else None,
    )
    known = [m for m in importlib.import_module(zoo).MODELS if m.name in models]
    for case in cases(known, ways, modes, world):
        named = {"model": case.model.name, "way": case.way, "mode": case.mode, "ranks": case.ranks}
        late = [seconds is not None and time.perf_counter() - began > seconds]
        dist.broadcast_object_list(late, 0)
        reason, rows = "", []
        if late[0]:
            reason = f"not begun after {seconds} seconds"
        else:
            try:
                rows = measure(case, device, rounds, warm_up=4 if kind == "cuda" else 1)
            except Exception as error:  # a way that PyTorch does not allow; every rank fails alike
                if rank == 0:
                    traceback.print_exc()
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if rank == 0:
            report.add(document, "failed" if reason else "rows", [{**named, "reason": reason}] if reason else rows)
            report.save(path, document)
            told = ", ".join(f"{r['variant']} {r['per_second']:,.0f} {r['unit']}/s" for r in rows) or reason
            spent = time.perf_counter() - began
            print(f"[{spent:5.0f} s] {', '.join(str(x) for x in named.values())}: {told}", flush=True)
        gc.collect()
        if kind == "cuda":
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(main())
