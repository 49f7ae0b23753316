"""Time training on several GPUs of one machine: PyTorch's modules and cupyops, under DDP, FSDP2 and tensor parallelism.

::

    python -m benchmarks --ops scale                              # into benchmarks/results/scale-<gpu>.json
    python -m benchmarks --ops scale --models char_gpt --modes eager --merge
    python -m benchmarks --ops scale --models "Llama 0.4B" ViT-L/16 --modes eager compiled --no-weak-scaling
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
from typing import Any, NamedTuple

__all__ = ["Chosen", "main", "run"]

NAMES = ("char_gpt", "ViT-L/16", "Llama 0.4B")
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
    add(
        "--models",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        metavar="MODEL",
        help=f"in this order; default: {', '.join(NAMES)}",
    )
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
    add(
        "--timeout",
        type=_positive,
        default=150,
        metavar="N",
        help="end a case that takes so many seconds, and go on with the next; default: 150",
    )
    add(
        "--weak-scaling",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure one GPU alone, too; default: yes",
    )
    add("--out", type=Path, metavar="FILE", help="default: benchmarks/results/scale-<name of the GPU>.json")
    add("--merge", action="store_true", help="keep the file's rows that are not measured now")
    add("--from", dest="source", type=Path, nargs="+", metavar="FILE", help="measure nothing: show these files")
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
    """The command. Returns 0; 1 if a case could not be measured; 2 for wrong options."""
    parser = build_parser()
    options = parser.parse_args(argv)
    # PyTorch is imported late, so that a wrong argument gets its error at once.
    from cupyops.errors import MissingDependencyError

    from . import report

    try:
        if options.collectives:
            from .collectives import table

            print(table(), end="")
            return 0
        measures = options.source is None
        documents = [_measured(options)] if measures else [report.load(path) for path in options.source]
        if options.into is not None:
            page = options.into.read_text(encoding="utf-8")
            options.into.write_text(report.insert(page, *documents), encoding="utf-8")
        else:
            print(report.markdown(*documents), end="")
    except (OSError, ValueError, ModuleNotFoundError, MissingDependencyError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return int(measures and bool(documents[0]["failed"]))


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
    environment = results_file.environment() | {name: results_file.version(name) for name in ("timm", "transformers")}
    path = options.out or report.default_path(environment["gpu"])
    document = report.new(environment, ranks)
    if options.merge and path.exists():
        old = report.load(path)
        if (old["environment"]["gpu"], old["ranks"]) != (environment["gpu"], ranks):
            raise ValueError(f"{path} was measured on {old['ranks']} x {old['environment']['gpu']}")
        document |= {"rows": old["rows"], "failed": old["failed"]}
    chosen = Chosen(options.models, options.ways, options.modes, options.rounds, options.weak_scaling)
    run(document, path, "cuda", chosen, options.seconds, options.timeout)
    print(f"written to {path}")
    return report.load(path)


class Chosen(NamedTuple):
    """The cases to measure: the names of models, ways and modes, the timed steps, and whether one rank is measured
    alone.

    Attributes:
        zoo: the name of the Python module whose ``MODELS`` has the models.
    """

    models: Sequence[str]
    ways: Sequence[str]
    modes: Sequence[str]
    rounds: int
    weak_scaling: bool = True
    zoo: str = ZOO

    def cases(self, world: int) -> list[Any]:
        from .steps import cases

        known = {m.name: m for m in importlib.import_module(self.zoo).MODELS}
        models = [known[name] for name in self.models]
        return cases(models, self.ways, self.modes, world, self.weak_scaling)


def run(
    document: dict[str, Any],
    path: Path,
    device: str,
    chosen: Chosen,
    seconds: float | None = None,
    timeout: float | None = None,
) -> None:
    """Measures in as many processes as the document has ranks, and saves the document at `path` after every case.

    If a process dies, or a case takes too long, the case has failed, and new processes go on with the next one.

    Args:
        device: "cuda", or "cpu" for a test.
        seconds: no case begins later.
        timeout: how long a case may take, with the start of the processes.
    """
    from . import report

    report.save(path, document)
    todo, first = chosen.cases(document["ranks"]), 0
    ends = None if seconds is None else time.monotonic() + seconds
    while first < len(todo):
        with tempfile.TemporaryDirectory() as folder:
            reason = _watched((document, path, device, chosen, first, ends, folder), document["ranks"], timeout)
            first = _begun(folder, first)
        if reason is None:
            return
        document = report.load(path)
        report.add(document, "failed", [{**_named(todo[first]), "reason": reason}])
        report.save(path, document)
        print(f"{', '.join(map(str, _named(todo[first]).values()))}: {reason}", flush=True)
        first += 1


def _watched(arguments: tuple[Any, ...], ranks: int, timeout: float | None) -> str | None:
    """Runs the ranks, and returns why they ended before they were done, or None."""
    import torch.multiprocessing as mp

    _, *_, first, _, folder = arguments
    context: Any = mp.start_processes(_rank, arguments, nprocs=ranks, join=False, start_method="spawn")
    now, since = first - 1, time.monotonic()
    try:
        while not context.join(timeout=0.5):
            if (begun := _begun(folder, first - 1)) != now:
                now, since = begun, time.monotonic()
            if timeout is not None and time.monotonic() - since > timeout:
                return f"ended after {timeout:.0f} seconds"
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
    finally:
        for process in context.processes:
            process.kill()
            process.join()
    return None


def _begun(folder: str, otherwise: int) -> int:
    """Returns the number of the case that the ranks began last."""
    try:
        return int(Path(folder, "begun").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # nothing yet, or the file is being written
        return otherwise


def _named(case: Any) -> dict[str, Any]:
    return {"model": case.model.name, "way": case.way, "mode": case.mode, "ranks": case.ranks}


def _rank(
    rank: int,
    document: dict[str, Any],
    path: Path,
    kind: str,
    chosen: Chosen,
    first: int,
    ends: float | None,
    folder: str,
) -> None:
    """Measures the cases from a number on, on one of the ranks."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast is not there on every host
    import torch
    import torch.distributed as dist

    from . import report
    from .steps import measure

    world = document["ranks"]
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    if kind == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=dist.FileStore(str(Path(folder, "store")), world),
        rank=rank,
        world_size=world,
        device_id=device if kind == "cuda" else None,
    )
    for number, case in enumerate(chosen.cases(world)):
        if number < first:
            continue
        if rank == 0:
            Path(folder, "begun").write_text(str(number), encoding="utf-8")
        late = [ends is not None and time.monotonic() > ends]
        dist.broadcast_object_list(late, 0)
        reason, rows, began = "", [], time.monotonic()
        if late[0]:
            reason = "not begun: the time was over"
        else:
            try:
                rows = measure(case, device, chosen.rounds, warm_up=4 if kind == "cuda" else 1)
            except Exception as error:  # a way that PyTorch does not allow; every rank fails in the same way
                if rank == 0:
                    traceback.print_exc()
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                dist.barrier()  # raises if another rank has died instead: the case is over for this process, too
        if rank == 0:
            named = _named(case)
            report.add(document, "failed" if reason else "rows", [{**named, "reason": reason}] if reason else rows)
            report.save(path, document)
            print(f"[{time.monotonic() - began:4.0f} s] {report.line(named, rows, reason)}", flush=True)
        gc.collect()
        if kind == "cuda":
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(main())
