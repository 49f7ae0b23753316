"""Kernels of HeCBench in which races were reported, and others of the same programs, which have none.

The folder has ``src/PROGRAM-cuda/*.cu``, at a commit before the reported races were mended. The reports are issues 133, 253 to 256, 261
and 263 of the repository ORNL/HeCBench. Sizes and launches are those of the programs, cut to what the simulator runs in seconds; the
data are random numbers. Each file is compiled as it is, host code and all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CASES", "INPUTS", "TITLE", "function", "here", "names", "planted", "prepared"]

TITLE = "HeCBench"
INPUTS = ("",)
BARRIER, WARP = "a missing barrier", "a missing barrier of a warp"


@dataclass(frozen=True)
class Case:
    """A kernel and its launch.

    Attributes:
        program: the program, whose file is ``src/PROGRAM-cuda/FILE``.
        kernel: the kernel, with template arguments.
        race: the reported race in words, or "".
        launch: makes the launch configuration and the arguments from a generator of random numbers.
        file: the file.
        options: options for the compiler.
    """

    program: str
    kernel: str
    race: str
    launch: Callable[[np.random.Generator], tuple[Any, tuple[Any, ...]]]
    file: str = "main.cu"
    options: tuple[str, ...] = ()


def _surfel(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    count, width, height = 600, 32, 32
    surfels = random.uniform(0.3, 5, 7 * count).astype(np.float32)
    return ((2, 2), (16, 16)), (surfels, count, 0.02, width, height, np.zeros(width * height, np.float32))


def _aidw(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    data, points = 1024, 512
    x, y, z = random.uniform(0, 2000, (3, data)).astype(np.float32)
    at_x, at_y, distance = random.uniform(0, 2000, (3, points)).astype(np.float32)
    return (points // 256, 256), (x, y, z, data, at_x, at_y, np.zeros(points, np.float32), points, 4e6, distance)


def _scan(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    width, height, size = 128, 4, 64
    image = random.integers(0, 256, width * height, np.uint8)
    return ((width // size, height), size, 4 * size), (np.zeros_like(image), image, width, height, size)


def _vertical_scan(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    width, height, size = 4, 128, 64
    image = random.integers(0, 256, width * height, np.uint8)
    return ((width, height // size), (1, size), 4 * size), (np.zeros_like(image), image, width, height, size)


def _sosfil(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    signals, samples, sections, conditions = 2, 128, 64, 2
    sections_of, state = np.ones(6 * sections, np.float32), np.ones(sections * signals * conditions, np.float32)
    shared = 4 * (sections + state.size + sections_of.size)
    data = random.standard_normal(signals * samples).astype(np.float32)
    return (signals, sections, shared), (signals, samples, sections, conditions, sections_of, state, data)


def _floyd(kernel: str) -> Callable[[np.random.Generator], tuple[Any, tuple[Any, ...]]]:
    # Three tiles: in one of the four remaining blocks lies the next diagonal tile.
    blocks = {"FW0_64": 1, "FWrem_64": 4}[kernel]

    def launch(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
        upper = 3 * 64
        matrix, rows, columns = random.integers(0, 1000, (3, upper * upper), np.int32)
        return (blocks, 1024), (matrix, upper, rows, columns, *((0, 2) if kernel == "FWrem_64" else ()))

    return launch


def _dxtc(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    blocks = 4
    permutations = random.integers(0, 2**32, 1024, np.uint32)
    image = random.integers(0, 2**32, 16 * blocks, np.uint32)
    return (blocks, 64), (permutations, image, np.zeros((blocks, 2), np.uint32), 0)


def _cubes(random: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    blocks = 4
    counts = [np.zeros(1, np.uint32) for _ in range(2)]
    edges = random.integers(0, 2**16, 256, np.uint16)
    triangles, positions = random.integers(0, 12, 16 * 256, np.int32), random.integers(0, 2, (12, 4), np.uint8)
    coordinates = [np.zeros(128 * blocks * 8, np.float32) for _ in range(4)]
    # Blocks at the corner of the grid, in which the function has both signs.
    indices = random.integers(0, 10_000, blocks, np.uint32)
    given = (indices, edges, triangles, positions, *counts, np.zeros(1, np.uint64), *coordinates)
    return (blocks, (4, 4, 8)), (0.0, *given)


CASES = {
    case.kernel.partition("<")[0]: case
    for case in (
        Case("surfel", "surfel_render_tile<float, 256>", BARRIER, _surfel),
        Case("surfel", "surfel_render<float>", "", _surfel),
        Case("aidw", "AIDW_Kernel_Tiled", "", _aidw),
        Case("aidw", "AIDW_Kernel", "", _aidw),
        Case("morphology", "vhgw_horiz<(MorphOpType)0>", BARRIER, _scan, "morphology.cu"),
        Case("morphology", "vhgw_vert<(MorphOpType)0>", BARRIER, _vertical_scan, "morphology.cu"),
        Case("sosfil", "sosfilt<float>", BARRIER, _sosfil),
        Case("floydwarshall2", "FWrem_64", BARRIER, _floyd("FWrem_64")),
        Case("floydwarshall2", "FW0_64", "", _floyd("FW0_64")),
        Case("marchingCubes", "generatingTriangles", BARRIER, _cubes),
        Case(
            "hungarian",
            "calc_min_in_rows",
            WARP,
            lambda random: ((512 // 2, 256), ()),
            options=("-D_n_=512", "-D_range_=512"),
        ),
        Case(
            "hungarian",
            "calc_min_in_cols",
            WARP,
            lambda random: ((512 // 2, 256), ()),
            options=("-D_n_=512", "-D_range_=512"),
        ),
        Case("hungarian", "init", "", lambda random: ((512 // 64, 64), ()), options=("-D_n_=512", "-D_range_=512")),
        Case("dxtc2", "compress", WARP, _dxtc),
    )
}


def here(folder: Path) -> bool:
    """Returns whether a folder has the suite."""
    return (folder / "src" / "surfel-cuda").is_dir()


def names(folder: Path) -> list[str]:
    """Returns the names of the kernels."""
    return sorted(CASES)


def planted(name: str) -> str:
    """Returns the reported race of a kernel, in words, or ""."""
    return CASES[name].race


def function(name: str, place: int) -> str:
    """Returns the name that a kernel has in reports."""
    return name


def prepared(folder: Path, name: str, given: str, place: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """Returns a kernel, its launch configuration, and its arguments."""
    from cupyops import Kernel

    case = CASES[name]
    path = folder / "src" / f"{case.program}-cuda" / case.file
    text = path.read_text(encoding="utf-8")
    kernel = Kernel(text, case.kernel, filename=path.name, options=(f"-I{path.parent}", *case.options))
    configuration, arguments = case.launch(np.random.default_rng(0))
    return kernel, configuration, arguments
