"""Run random trials of the library, and count what held.

::

    python -m tests.campaign --minutes 60
    python -m tests.campaign --minutes 10 --areas operators derivatives --backends simulator
    python -m tests.campaign --repeat "declarations, reference, 17"      # one slice again, as it was
"""

import argparse
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = (
    *("declarations", "mutated texts", "operators", "errors", "derivatives", "threads", "streams"),
    *("traits", "programs", "offsets", "exports", "lanes"),
    *("forks", "kills", "damaged caches", "damaged bundles"),
)
BACKENDS = ("reference", "simulator", "cuda")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m tests.campaign", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, metavar="N", help="default: %(default)s")
    add("--areas", nargs="+", choices=NAMES, default=NAMES, metavar="AREA", help=f"of {', '.join(NAMES)}; default: all")
    add("--backends", nargs="+", choices=BACKENDS, help="default: all that this machine has")
    add("--record", type=Path, metavar="FILE", help="keep the counts in this file, and go on from those that it has")
    add("--repeat", metavar="AREA, BACKEND, SLICE", help="run one slice again, and nothing else")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0 if all trials passed, 1 if one failed, 2 for wrong options."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        from .engine import Record, run
    except ModuleNotFoundError as error:
        print(f"{parser.prog}: error: {error}; pip install -c constraints.txt hypothesis", file=sys.stderr)
        return 2
    from .areas import AREAS, present

    here = present()
    wanted = options.backends or here
    if missing := [b for b in wanted if b not in here]:
        parser.error(f"--backends: this machine lacks {', '.join(missing)}")
    if options.repeat is not None:
        return _repeat(parser, options.repeat, AREAS)
    pairs = [(a, b) for a in AREAS if a.name in options.areas for b in a.backends if b in wanted]
    if not pairs:
        parser.error("none of these areas runs on these backends")
    try:
        record = Record(options.record, _about())
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"--record: {error}")
    try:
        run(pairs, 60 * options.minutes, record, echo=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print("stopped; the record holds the whole slices", file=sys.stderr)
    print(record.table())
    print(f"{len(record.failures)} failures")
    return int(bool(record.failures))


def _repeat(parser: argparse.ArgumentParser, which: str, areas: Sequence[Any]) -> int:
    parts = [part.strip() for part in which.split(",")]
    found = [a for a in areas if a.name == parts[0]]
    if len(parts) != 3 or not found or parts[1] not in found[0].backends or not parts[2].isdecimal():
        parser.error(f"--repeat: expected the name of an area, a backend of it and a number, got {which!r}")
    tried, held, failure = found[0].slice(parts[1], int(parts[2]))
    print(failure or f"{tried} trials, {held} held")
    return int(failure is not None)


def _about() -> dict[str, Any]:
    """Machine and versions: counts of others are not added to these."""
    import torch

    from cupyops.compile import toolchain

    try:
        nvrtc: str | None = ".".join(map(str, toolchain.nvrtc_version()))
    except Exception:  # no CuPy: only the backends without NVRTC run
        nvrtc = None
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "nvrtc": nvrtc,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


if __name__ == "__main__":
    raise SystemExit(main())
