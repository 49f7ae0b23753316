"""The puzzles, and the check of an answer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cupyops import GridStride, Kernel, Rows, Threads
from cupyops.torch import Operator, check_op

HERE = Path(__file__).parent
CHECKS = ("sanitizer", "written", "values")


@dataclass(frozen=True)
class Puzzle:
    """A text with a hole.

    Attributes:
        schema: arguments and result, as PyTorch writes them.
        reference: what the kernel computes.
        geometry: the launch policy.
        samples: the shapes of the inputs, a tuple for each call.
        sizes: the numbers that the kernel takes after the tensors, from the inputs.
        shape: the shape of the result, from the inputs.
    """

    name: str
    schema: str
    reference: Callable[..., Tensor]
    geometry: Any
    samples: tuple[tuple[tuple[int, ...], ...], ...]
    sizes: Callable[..., tuple[int, ...]]
    shape: Callable[..., tuple[int, ...]]
    scalars: tuple[float, ...] = ()
    dtype: str = "float32"

    @property
    def text(self) -> Path:
        return HERE / f"{self.name}.cu"


def shape_of(x: Tensor, *_: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def rows_of(x: Tensor) -> tuple[int, ...]:
    return (x.shape[0],)


def tiles_of(a: Tensor, b: Tensor) -> tuple[int, ...]:
    M, K, N = *a.shape, len(b)
    return M // 16 * (N // 8), M, K, N


PUZZLES = (
    Puzzle(
        "01_double",
        "(Tensor x) -> Tensor",
        lambda x: 2 * x,
        Threads("n", block=64),
        (((19, 7),), ((128,),)),
        lambda x: (x.numel(),),
        shape_of,
    ),
    Puzzle(
        "02_stride",
        "(Tensor x, Tensor b, float factor) -> Tensor",
        lambda x, b, factor: factor * x + b,
        GridStride("n", block=32, blocks_per_multiprocessor=1),
        (((1000,), (1000,)), ((7,), (7,))),
        lambda x, b, factor: (x.numel(),),
        shape_of,
        scalars=(0.5,),
    ),
    Puzzle(
        "03_outer",
        "(Tensor a, Tensor b) -> Tensor",
        lambda a, b: a[:, None] + b,
        Threads("N", "M", block=(16, 8, 1)),
        (((19,), (37,)),),
        lambda a, b: (len(a), len(b)),
        lambda a, b: (len(a), len(b)),
    ),
    Puzzle(
        "04_reverse",
        "(Tensor x) -> Tensor",
        lambda x: x.flip(1),
        Rows("M", block=64),
        (((5, 64),),),
        rows_of,
        shape_of,
    ),
    Puzzle(
        "05_row_sum",
        "(Tensor x) -> Tensor",
        lambda x: x.sum(1),
        Rows("M", block=64),
        (((3, 200),), ((2, 37),)),
        lambda x: tuple(x.shape),
        rows_of,
    ),
    Puzzle(
        "06_warp_sum",
        "(Tensor x) -> Tensor",
        lambda x: x.sum(1),
        Rows("M", block=128, each=4),
        (((6, 100),), ((5, 7),)),
        lambda x: tuple(x.shape),
        rows_of,
    ),
    Puzzle(
        "07_scan",
        "(Tensor x) -> Tensor",
        lambda x: x.cumsum(1),
        Rows("M", block=32),
        (((3, 32),),),
        rows_of,
        shape_of,
    ),
    Puzzle(
        "08_transpose",
        "(Tensor x) -> Tensor",
        lambda x: x.T.contiguous(),
        Threads("N", "M", block=(16, 16, 1)),
        (((19, 37),), ((33, 16),)),
        lambda x: tuple(x.shape),
        lambda x: tuple(x.T.shape),
    ),
    Puzzle(
        "09_product",
        "(Tensor a, Tensor b) -> Tensor",
        lambda a, b: a @ b,
        Threads("N", "M", block=(16, 16, 1)),
        (((19, 21), (21, 37)),),
        lambda a, b: (*a.shape, b.shape[1]),
        lambda a, b: (len(a), b.shape[1]),
    ),
    Puzzle(
        "10_tensor_cores",
        "(Tensor a, Tensor b) -> Tensor",
        lambda a, b: a @ b.T,
        Rows("tiles", block=32),
        (((32, 64), (24, 64)),),
        tiles_of,
        lambda a, b: (len(a), len(b)),
        dtype="float16",
    ),
)


def aligned(x: Tensor) -> Tensor:
    """Returns x, or a copy if accesses of 16 bytes cannot read it."""
    return x if x.data_ptr() % 16 == 0 else x.clone()


def operator_of(puzzle: Puzzle, text: str, filename: str) -> Operator:
    """Returns the operator that launches the answer's kernel."""
    since = 80 if puzzle.dtype == "float16" else 0
    kernel = Kernel(text, "puzzle", puzzle.geometry, dtypes=(puzzle.dtype,), filename=filename, since=since)

    def body(*args: Any) -> Tensor:
        tensors = [aligned(x.contiguous()) for x in args if isinstance(x, Tensor)]
        y = tensors[0].new_empty(puzzle.shape(*args))
        kernel(*tensors, y, *args[len(tensors) :], *puzzle.sizes(*args))
        return y

    return Operator(f"puzzles::puzzle_{puzzle.name}{puzzle.schema}", body, reference=puzzle.reference)


def judge(puzzle: Puzzle, answer: Operator) -> Any:
    """Prints and returns the report of `check_op` on an answer, whose kernel runs in the simulator."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, puzzle.dtype)
    samples = [
        (*(torch.randn(shape, generator=generator).to(dtype) for shape in shapes), *puzzle.scalars)
        for shapes in puzzle.samples
    ]
    return check_op(answer, samples, checks=CHECKS, backends=["simulator"], dtypes=puzzle.dtype, raises=False)
