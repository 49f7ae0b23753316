"""The Indigo suite: kernels on graphs, in files whose names say which faults were planted.

The folder has ``indigo/indigo_sources/*/*.cu``, ``indigo/indigo_include``, their header; and ``indigo/input/*.egr``, graphs. Each file
is compiled as it is, host code and all.
"""

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["INPUTS", "TITLE", "function", "here", "names", "planted", "prepared"]

TITLE = "The Indigo suite"
INPUTS = ("counterDAG_5n_5e", "DAG_5n_5e", "DAG_100n_200e", "power_law_200n_1000e")
# A thread, a warp or a block for each of 200 nodes.
BLOCKS, THREADS = 256, 64
WORDS = {
    "atomicBug": "a plain access for an atomic one",
    "guardBug": "a plain read that guards an atomic one",
    "syncBug": "a missing barrier",
    "raceBug": "a plain update by several threads",
    "boundsBug": "an access out of bounds",
}


def here(folder: Path) -> bool:
    """Returns whether a folder has the suite."""
    return (folder / "indigo").is_dir()


def names(folder: Path) -> list[str]:
    """Returns the names of the suite's kernels, which are those of their files."""
    return sorted(path.stem for path in folder.glob("indigo/indigo_sources/*/*.cu"))


def planted(name: str) -> str:
    """Returns the faults that the name of a kernel says, in words, or ""."""
    bugs = [part for part in name.split("_") if part.endswith("Bug")]
    return " and ".join(WORDS[bug] for bug in sorted(bugs, key=lambda bug: bug == "boundsBug"))


def function(name: str, place: int) -> str:
    """Returns the name that the kernel at a place has in reports. All kernels of the suite have one name."""
    return f"suite_kernel_{place}"


def prepared(folder: Path, name: str, graph: str, place: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """Returns a kernel, its launch configuration, and its arguments for a graph: offsets, neighbours, random numbers and the size."""
    from cupyops import Kernel, Threads

    (path,) = folder.glob(f"indigo/indigo_sources/*/{name}.cu")
    kernel = Kernel(
        path.read_text(encoding="utf-8").replace("test_kernel", function(name, place)),
        function(name, place),
        Threads(block=THREADS),
        filename=path.name,
        options=(f"-I{folder / 'indigo' / 'indigo_include'}",),
    )
    numbers = np.fromfile(folder / "indigo" / "input" / f"{graph}.egr", np.int32)
    nodes, edges = (int(n) for n in numbers[:2])
    offsets, neighbours = numbers[2 : 3 + nodes], numbers[3 + nodes : 3 + nodes + edges]
    random = np.random.default_rng(0)
    data = [random.integers(0, most, max(nodes, edges), np.int32) for most in (nodes, edges)]
    data[0][0] = data[1][0] = 0  # as the suite's own program does
    return kernel, BLOCKS * THREADS, (offsets, neighbours, *data, nodes)
