"""Tiles of rows in shared memory: bulk copies bring rows of any length, and threads read and write their elements there."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops.programs.program_config import unit_of
from cupyops.programs.row_config import ProgramConfig, config_of, kernel_of, work_of
from cupyops.programs.row_source import text_of
from cupyops.programs.rows import RowProgram
from cupyops.torch import row_reduce

pytestmark = pytest.mark.simulator
SOFTMAX = row_reduce(
    "m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r",
    "d = sum(grad_y * y); grad_x = y * (grad_y - d)",
    name="row_tiles::softmax",
)
# Two results, one of them in the dtype of the arithmetic, which has a place of its own; a value for each row, and an index.
NORM = row_reduce(
    "s = rounded(x + u); r = rsqrt(sum(s * s) / N + eps); at = x[t] * gain; y = s * r * weight + at",
    rows=["gain"],
    indices=["t"],
    columns=["weight"],
    scalars=["eps"],
    results=["y", "s"],
    wide=["y"],
    name="row_tiles::norm",
)
SUMS = row_reduce(
    "r = rsqrt(sum(x * x) / N + eps); y = x * r * weight",
    """
        r = rsqrt(sum(x * x) / N + eps)
        d = sum(grad_y * weight * x) / N * r * r
        grad_x = r * fma(-x, d, grad_y * weight)
        grad_weight = column_sum(grad_y * x * r)
    """,
    columns=["weight"],
    scalars=["eps"],
    name="row_tiles::sums",
)
# Rows, elements of a row, threads of a row, teams of a block, rows of a tile, and stages. Rows of less than a piece of 16 bytes; of
# a part of a warp, of a warp and of several; a last tile with fewer rows; one stage; and more teams than tiles.
TILINGS = [
    (5, 1, 8, 2, 8, 2),
    (37, 5, 8, 2, 7, 3),
    (9, 50, 16, 4, 4, 2),
    (21, 197, 32, 2, 4, 2),
    (11, 99, 32, 1, 3, 1),
    (10, 333, 96, 1, 2, 2),
    (7, 1025, 128, 1, 1, 3),
]
# By default: rows of parts of a warp in one dtype each, of a warp in one stage, and of several warps.
DEFAULT = ((5, torch.bfloat16), (9, torch.float32), (11, torch.float32), (10, torch.bfloat16))
IN_TURN = [
    pytest.param(m, n, rest, dtype, marks=[] if (m, dtype) in DEFAULT else [pytest.mark.thorough])
    for m, n, *rest in TILINGS
    for dtype in (torch.bfloat16, torch.float32)
]


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def config_for(program: RowProgram, n: int, dtype: torch.dtype, tiling: tuple[int, ...]) -> ProgramConfig:
    threads, teams, rows, stages = tiling
    work = work_of(program, dict.fromkeys(program.inputs, dtype.itemsize))
    vectors = -(-n // threads)
    slots = sum((rows * n * size + 30) // 16 * 16 for size in work.slots)
    return ProgramConfig(
        teams * max(32, threads),
        threads,
        1,
        vectors,
        rows_each=rows,
        stages=stages,
        min_blocks=1,
        full=False,
        stream=False,
        unit=unit_of(threads, vectors),
        late=2,
        inside=n // threads,
        shared=teams * stages * slots,
    )


def run(
    program: RowProgram, config: ProgramConfig, inputs: dict[str, Tensor], *scalars: float, off: int = 0, out: int = 0
):  # type: ignore[no-untyped-def]
    """Runs a kernel of two blocks. The arrays begin ``off``, and the results ``out`` elements off their alignment."""
    lead = inputs[program.lead]
    m, n = lead.shape

    def placed(x: Tensor, off: int) -> Tensor:
        memory = torch.empty(x.numel() + off, dtype=x.dtype)
        return memory[off:].view(x.shape).copy_(x)

    kinds, outs = program.kinds(), []
    shapes = {"element": (m, n), "row": (m,), "column": (2, n)}
    for y in program.results:
        dtype = torch.float32 if y in program.wide or kinds[y] == "column" else lead.dtype
        outs.append(placed(torch.full(shapes[kinds[y]], float("nan"), dtype=dtype), out))
    kernel = kernel_of(program, text_of(program), config, str(lead.dtype).removeprefix("torch."))
    given = [placed(inputs[x], off if x in program.elements else 0) for x in program.inputs]
    kernel(*given, *outs, *scalars, m, n, 2, *([2] if "column" in kinds.values() else []))
    return outs


def close(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 2**-7, "atol": 2**-8} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("m", "n", "tiling", "dtype"), IN_TURN)
def test_rows_of_any_length_wherever_they_begin(m: int, n: int, tiling: tuple[int, ...], dtype: torch.dtype) -> None:
    """Rows have the same bits with tiles and without, and at every offset of their storage."""
    x, g = torch.randn(2, m, n).to(dtype).unbind()
    program = SOFTMAX.programs[0]
    config = config_for(program, n, dtype, tiling)
    (y,) = run(program, config, {"x": x})
    torch.testing.assert_close(y.double(), torch.softmax(x.double(), -1), **close(dtype))
    for off, out in ((1, 1), (3, 0), (0, 2)):
        assert torch.equal(run(program, config, {"x": x}, off=off, out=out)[0], y)
    assert torch.equal(run(program, config.untiled(), {"x": x})[0], y)
    back = SOFTMAX.programs[1]
    (grad,) = run(back, config_for(back, n, dtype, tiling), {"grad_y": g, "y": y}, off=1)
    exact = y.double() * (g.double() - (g.double() * y.double()).sum(-1, keepdim=True))
    torch.testing.assert_close(grad.double(), exact, **close(dtype))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("threads", "n"), [(32, 197), (64, 513), (96, 1025)])
def test_each_pass_reads_a_row_that_no_registers_hold_in_its_tile(threads: int, n: int) -> None:
    x, g = torch.randn(2, 5, n).bfloat16().unbind()
    for program, inputs in zip(SOFTMAX.programs, ({"x": x}, {"grad_y": g, "y": torch.softmax(x, -1)}), strict=True):
        held = config_for(program, n, torch.bfloat16, (threads, 1, 2, 2))
        streamed = replace(held, vectors=2, unit=2, stream=True, inside=0, late=1)
        found = run(program, streamed, inputs, off=1)[0]
        torch.testing.assert_close(found, run(program, held, inputs)[0], **close(torch.bfloat16))
        assert torch.equal(run(program, streamed.untiled(), inputs)[0], found)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("m", "n", "tiling", "dtype"), IN_TURN)
def test_sums_over_the_rows_of_tiles(m: int, n: int, tiling: tuple[int, ...], dtype: torch.dtype) -> None:
    x, g = torch.randn(2, m, n).to(dtype).unbind()
    weight, program = torch.rand(n).to(dtype), SUMS.programs[1]
    config = config_for(program, n, dtype, tiling)
    inputs = {"grad_y": g, "x": x, "weight": weight}
    grad_x, grad_weight = run(program, config, inputs, 1e-5, off=1)
    a, b = x.double().requires_grad_(), weight.double().requires_grad_()
    F.rms_norm(a, (n,), b, 1e-5).backward(g.double())
    torch.testing.assert_close(grad_x.double(), a.grad, rtol=close(dtype)["rtol"], atol=4 * close(dtype)["atol"])
    torch.testing.assert_close(grad_weight.sum(0).double(), b.grad, rtol=1e-5, atol=1e-5)
    assert torch.equal(run(program, config.untiled(), inputs, 1e-5)[0], grad_x)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("m", "n", "tiling"), [(m, n, rest) for m, n, *rest in TILINGS[1::2]])
def test_several_results_values_of_rows_and_an_element_at_an_index(m: int, n: int, tiling: tuple[int, ...]) -> None:
    x, u, weight = torch.randn(m, n).bfloat16(), torch.randn(m, n).bfloat16(), torch.rand(n).bfloat16()
    gain, t = torch.rand(m).bfloat16(), torch.randint(-1, n + 1, (m,))
    (program,) = NORM.programs
    assert program.slots == {"y": 2, "s": 3}  # x is read at an index, and u may have another dtype
    inputs = {"x": x, "u": u, "gain": gain, "t": t, "weight": weight}
    config = config_for(program, n, torch.bfloat16, tiling)
    for off in (0, 1):
        y, s = run(program, config, inputs, 1e-5, off=off)
        exact = (x.float() + u.float()).bfloat16()
        assert torch.equal(s, exact)
        at = torch.where((t >= 0) & (t < n), x.double().gather(1, t.clamp(0, n - 1)[:, None])[:, 0] * gain.double(), 0)
        norm = exact.double() * torch.rsqrt(exact.double().square().mean(-1, keepdim=True) + 1e-5)
        torch.testing.assert_close(y.double(), norm * weight.double() + at[:, None], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [37, 150, 257])
def test_the_operator_has_tiles_for_many_rows_of_an_odd_length(n: int) -> None:
    """Few rows have the same bits, and a kernel without tiles, whose threads share the accesses of a thread."""
    # The bits of sums of x³ tell their order, and those of a sum of exponentials, the maximum that each of them follows.
    text = "m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s; z = sum(x * x * x); a = min(x)"
    op = row_reduce(text, wide=["s", "z", "a"], results=["y", "s", "z", "a"], name=f"row_tiles::many{n}")
    work = work_of(op.programs[0], {"x": 2})
    config = config_of(n, "bfloat16", work, 90)
    assert config.stages > 0
    assert config.untiled().few_rows(n, work, 4, 90).spread > 1
    x = torch.randn(1500, n).bfloat16()
    x[1], x[2, 5] = -torch.inf, torch.inf
    with cupyops.simulate():
        every = op(x)
        torch.testing.assert_close(every[0][3:].double(), torch.softmax(x[3:].double(), -1), **close(x.dtype))
        for rows in (40, 600):
            for few, many in zip(op(x[:rows].clone()), every, strict=True):
                assert torch.equal(few.view(torch.uint8), many[:rows].view(torch.uint8))


@pytest.mark.parametrize(("n", "dtype"), [(4096, "bfloat16"), (400, "float32"), (1000, "bfloat16")])
def test_rows_of_whole_accesses_have_no_tiles(n: int, dtype: str) -> None:
    work = work_of(SOFTMAX.programs[0], {"x": 2 if dtype == "bfloat16" else 4})
    assert config_of(n, dtype, work, 90).stages == 0
    assert config_of(n + 1, dtype, work, 80).stages == 0
    assert config_of(n + 1, dtype, work, 90).stages > 0


def test_the_longest_rows_in_tiles_are_streamed() -> None:
    """Each pass reads a row in its tile if the compiler has no registers for it."""
    work = work_of(SOFTMAX.programs[0], {"x": 2})

    def resident(config: ProgramConfig) -> float:
        return config.min_blocks if config.vectors * config.row_threads <= 16384 else 0

    held, streamed, longest = (config_of(n, "bfloat16", work, 90, resident) for n in (12289, 50257, 131071))
    assert (held.stages > 0, held.stream) == (True, False)
    assert (streamed.stages > 0, streamed.stream) == (True, True)
    assert longest.stages == 0


def test_fewer_results_and_wider_ones_have_the_bits_of_all() -> None:
    """A result of a wider dtype has a place of its own in a tile, which then has fewer rows."""
    work = work_of(SOFTMAX.programs[0], {"x": 2})
    config = config_of(197, "bfloat16", work, 90)
    assert config.with_tiles(197, work.slots) == config
    wide = config.with_tiles(197, (2, 4))
    assert 0 < wide.rows_each * wide.stages < config.rows_each * config.stages
    assert wide.shared <= config.shared
    of_bits = ("row_threads", "vector_width", "vectors", "unit", "late", "stream", "block")
    assert all(getattr(wide, field) == getattr(config, field) for field in of_bits)
    assert config.with_tiles(197, (2, 2000)) == config.untiled()
