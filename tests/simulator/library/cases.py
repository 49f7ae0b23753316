"""The kernels of the texts in this folder, with their arrays and launches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tests.simulator.library.expected import (
    Arrays,
    Expected,
    barriers,
    cluster,
    collectives,
    draws,
    grid,
    groups,
    intrinsics,
    memory,
    mma_narrow,
    mma_sync,
    numbers,
    ptx,
    reals,
    small,
    wmma_shapes,
    words,
)
from tests.simulator.library.expected_floats import bytes_, drawn, halves, points, special

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A kernel of a text.

    Attributes:
        arrays: makes the arrays, in the order of the parameters.
        expected: returns the expected values from the arrays before the launch.
        count: the last argument: rows of the grid, or numbers if `rows` is false.
        tolerance: by array, the relative and absolute tolerance; 0 for arrays that are not named.
        since: the compute capability that the kernel needs.
    """

    text: str
    kernel: str
    arrays: Callable[[], Arrays]
    expected: Callable[[Arrays], Expected]
    count: int
    block: int = 64
    rows: bool = True
    cooperative: bool = False
    constants: Mapping[str, int] = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=dict)
    since: tuple[int, int] = (8, 0)


CASES = (
    Case(
        "groups",
        "groups",
        lambda: {"x": numbers(2, 64), "y": np.zeros((2, 14, 64), np.int32)},
        groups,
        2,
        constants={"SLOTS": 14},
    ),
    Case(
        "groups",
        "grid",
        lambda: {"x": numbers(6, 64), "peaks": np.zeros(6, np.int32), "y": np.zeros((6, 64), np.int32)},
        grid,
        6,
        cooperative=True,
        constants={"SLOTS": 14},
    ),
    Case(
        "groups",
        "cluster",
        lambda: {"x": numbers(4, 64), "y": np.zeros((4, 64), np.int32)},
        cluster,
        4,
        constants={"SLOTS": 14},
        since=(9, 0),
    ),
    Case(
        "intrinsics",
        "intrinsics",
        lambda: {"x": words(), "y": np.zeros((107, len(words())), np.uint32)},
        intrinsics,
        256,
        rows=False,
        constants={"SLOTS": 107},
    ),
    Case(
        "ptx",
        "ptx",
        lambda: {"x": words(), "y": np.zeros((31, len(words())), np.uint32)},
        ptx,
        256,
        rows=False,
        constants={"SLOTS": 31, "PENDING": 0},
    ),
    Case(
        "ptx",
        "memory",
        lambda: {"x": reals(2, 64), "y": np.zeros((2, 64), np.float32), "count": np.zeros(2, np.int32)},
        memory,
        2,
        constants={"SLOTS": 31, "PENDING": 0},
        tolerance={"y": 1e-5},
    ),
    Case(
        "tensor_cores",
        "mma_sync",
        lambda: {"a": small(16, 16, seed=0), "b": small(16, 8, seed=1), "d": np.zeros((5, 16, 8), np.float32)},
        mma_sync,
        1,
        block=32,
    ),
    Case(
        "tensor_cores_narrow",
        "mma_narrow",
        lambda: {
            "a": np.random.default_rng(4).integers(-8, 8, (16, 64), np.int32),
            "b": np.random.default_rng(5).integers(-8, 8, (64, 8), np.int32),
            "bits": np.random.default_rng(6).integers(0, 1 << 32, (24, 8), np.uint32),
            "x": small(16, 16, seed=7).astype(np.float64),
            "z": small(16, 8, seed=8).astype(np.float64),
            "d": np.zeros((6, 16, 8), np.int32),
            "e": np.zeros((4, 16, 8), np.float64),
        },
        mma_narrow,
        1,
        block=32,
        since=(9, 0),
    ),
    Case(
        "tensor_cores",
        "wmma_shapes",
        lambda: {"a": small(32, 16, seed=2), "b": small(16, 32, seed=3), "d": np.zeros((6, 256), np.float32)},
        wmma_shapes,
        1,
        block=32,
    ),
    Case(
        "collectives",
        "collectives",
        lambda: {
            "x": numbers(2, 256),
            "f": reals(2, 256),
            "y": np.zeros((2, 14, 256), np.int32),
            "z": np.zeros((2, 256), np.float32),
        },
        collectives,
        2,
    ),
    Case(
        "barriers",
        "barriers",
        lambda: {"x": reals(3, 256), "y": np.zeros((3, 5, 256), np.float32), "totals": np.zeros(4, np.int32)},
        barriers,
        3,
    ),
    Case(
        "random",
        "draws",
        lambda: {
            "bits": np.zeros((2, 64, 8), np.uint32),
            "numbers": np.zeros((3, 64, 8), np.float32),
            "wide": np.zeros((2, 64, 2)),
        },
        draws,
        1,
        tolerance={"numbers": 1e-5, "wide": 1e-13},
    ),
    *(
        Case(
            "halves",
            name,
            lambda: {**drawn(256), "y": np.zeros((59, 256)), "z": np.zeros((9, 256))},
            halves(digits),
            256,
            rows=False,
            constants={"SLOTS": 59},
            tolerance={"z": 2.0 ** (2 - digits)},
        )
        for name, digits in (("halves", 11), ("bfloats", 8))
    ),
    Case(
        "halves",
        "bytes",
        lambda: {"x": drawn(256)["x"], "y": np.zeros((2, 256), np.int32), "z": np.zeros((2, 256), np.float32)},
        bytes_,
        256,
        rows=False,
        constants={"SLOTS": 59},
    ),
    Case(
        "special",
        "special",
        lambda: {"x": points(256), "y": np.zeros((27, 256)), "z": np.zeros((27, 256), np.float32)},
        special,
        256,
        rows=False,
        constants={"SLOTS": 27},
        tolerance={"y": 1e-11, "z": 4e-5},
    ),
    # The names that the other texts do not use. The values are of no interest.
    Case(
        "surface",
        "surface",
        lambda: {"x": numbers(64), "y": np.zeros(64, np.int32)},
        lambda _: {},
        1,
    ),
)
