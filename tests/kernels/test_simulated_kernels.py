"""Each shipped kernel in the simulator, on arrays of every length and alignment that its text distinguishes."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import cupyops
from cupyops import Threads
from cupyops.ops.add2 import ALIKE, NUMBERS, SCALAR, strided
from cupyops.ops.gelu import BACKWARD, FORWARD
from cupyops.tiling.broadcasting import collapse, divider, strided_loop
from tests.accuracy import added_as_on_a_gpu, spacing
from tests.naive import naive_kernel
from tests.operators.test_gelu import exact, exact_derivative
from tests.support import EACH_FLOAT, with_floats

pytestmark = pytest.mark.simulator
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Around the elements of a tile, for 16-bit floats and for doubles, and whole tiles with something after.
LENGTHS = (1, 7, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 5000)
EVERY_DTYPE = pytest.mark.parametrize("dtype", EACH_FLOAT)
FORMS = pytest.mark.parametrize("form", ["none", "tanh"])


@pytest.fixture(autouse=True)
def _simulated():  # type: ignore[no-untyped-def]
    with cupyops.simulate(sanitize=True):
        yield


def values(n: int, dtype: torch.dtype, offset: int, seed: int = 0) -> Tensor:
    """n numbers that lie `offset` elements after an address that is a multiple of 64."""
    memory = torch.empty(n + 64, dtype=dtype)
    start = -memory.data_ptr() // memory.element_size() % (64 // memory.element_size()) + offset
    view = memory[start : start + n]
    return view.copy_(torch.linspace(-7.5, 7.5, n, dtype=torch.float64).roll(seed) * (1 + seed))


def layouts(arrays: int) -> list[tuple[int, ...]]:
    """Lengths, and by how many elements each array is off its alignment: all aligned, one of them not, none."""
    offsets = [(0,) * arrays, *(tuple(int(i == j) for i in range(arrays)) for j in range(arrays)), (3,) * arrays]
    return [(n, *o) for n, o in itertools.product(LENGTHS, offsets)]


@EVERY_DTYPE
@FORMS
def test_gelu_forward(dtype: torch.dtype, form: str) -> None:
    for n, a, b in layouts(2):
        x, y = values(n, dtype, a), values(n, dtype, b)
        FORWARD[form](x, y, n)
        torch.testing.assert_close(y, torch.nn.functional.gelu(x, approximate=form))


@pytest.mark.parametrize(("form", "dtype"), with_floats(["none", "tanh"]))
def test_gelu_is_what_the_naive_kernels_give(dtype: torch.dtype, form: str) -> None:
    options = {"constants": {"TANH": int(form == "tanh")}, "dtypes": (str(dtype)[6:],)}
    naive = naive_kernel("gelu", "gelu_naive", Threads("n"), **options)
    naive_backward = naive_kernel("gelu", "gelu_backward_naive", Threads("n"), **options)
    eps = torch.finfo(dtype).eps
    rtol, atol = {torch.float32: 4e-6}.get(dtype, 2 * eps), max(8 * eps, 1e-14)
    for n in LENGTHS[-3:]:
        x, grad = values(n, dtype, 0), values(n, dtype, 0, seed=1) / 8
        results = [torch.full_like(x, torch.nan) for _ in range(4)]
        FORWARD[form](x, results[0], n)
        naive(x, results[1], n)
        BACKWARD[form](grad, x, results[2], n)
        naive_backward(grad, x, results[3], n)
        for fast, slow in (results[:2], results[2:]):
            torch.testing.assert_close(fast, slow, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "types", [("float16", "bfloat16", "float32"), ("int8", "int64", "int64"), ("int16", "float64", "float64")], ids=str
)
def test_add2_gives_the_bits_of_the_naive_kernel(types: tuple[str, str, str]) -> None:
    """Operands of one layout, a number in place of an operand, and an operand that is broadcast."""
    naive = naive_kernel("add2", "add2_naive", Threads("n"), dtypes=NUMBERS)
    n, (a, b, out) = 2050, (torch.arange(2050).to(getattr(torch, t)) for t in types)
    wanted, row = torch.empty_like(out), b[:41]
    naive(a, b, wanted, 3, n)
    ALIKE(a, b, out, 3, n)
    assert torch.equal(out, wanted)
    naive(a, torch.full_like(b, 5), wanted, 3, n)
    SCALAR[False](a, out, 5, 3, n)
    assert torch.equal(out, wanted)
    naive(a, row.repeat(50), wanted, 3, n)
    strided(2, 1, False)(a, row, out, 3, n, (41, 50), (divider(41), divider(50)), (1, 41), (1, 0))
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@FORMS
def test_gelu_forward_is_exact_to_the_rounding_of_16_bits(dtype: torch.dtype, form: str) -> None:
    """The error for numbers from -6.5 to 14 is at most half a ULP and a few roundings to float32. Farther out, the
    polynomial's term is negligible, and the polynomial was not fitted."""
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[(x >= -6.5) & (x <= 14)]
    y = torch.empty_like(x)
    FORWARD[form](x, y, x.numel())
    wanted = exact(x, form)
    error = (y.double() - wanted).abs() / spacing(wanted, dtype)
    assert error.max() <= 0.56, (x[error.argmax()], error.max())


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@FORMS
def test_gelu_backward_is_within_a_rounding_of_16_bits(dtype: torch.dtype, form: str) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[x.abs() <= 14]
    grad_x = torch.empty_like(x)
    BACKWARD[form](torch.ones_like(x), x, grad_x, x.numel())
    wanted = exact_derivative(x, form)
    # Where the derivative crosses zero it has no scale of its own.
    error = (grad_x.double() - wanted).abs() / (spacing(wanted, dtype) + 1e-6)
    assert error.max() <= 0.85, (x[error.argmax()], error.max())


@pytest.mark.parametrize(("dtype", "far", "rtol"), [(torch.float32, -12, 1e-5), (torch.float64, -37, 1e-12)], ids=str)
def test_the_negative_tail_keeps_its_accuracy(dtype: torch.dtype, far: float, rtol: float) -> None:
    x = torch.linspace(far, -2, 3001, dtype=torch.float64).to(dtype)
    y = torch.empty_like(x)
    FORWARD["none"](x, y, x.numel())
    torch.testing.assert_close(y.double(), exact(x, "none"), rtol=rtol, atol=0)


@EVERY_DTYPE
@FORMS
def test_gelu_backward(dtype: torch.dtype, form: str) -> None:
    for n, a, b, c in layouts(3):
        grad_y, x, grad_x = values(n, dtype, a, seed=1), values(n, dtype, b), values(n, dtype, c)
        BACKWARD[form](grad_y, x, grad_x, n)
        wanted = torch.ops.aten.gelu_backward(grad_y.double(), x.double(), approximate=form)
        eps = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            grad_x.double(), wanted, rtol=max(eps, 4e-6 if eps > 1e-12 else 0), atol=max(eps, 1e-12)
        )


@EVERY_DTYPE
@pytest.mark.parametrize("alpha", [1.0, -0.3])
def test_add2_of_one_layout(dtype: torch.dtype, alpha: float) -> None:
    for n, a, b, c in layouts(3):
        x, y, out = values(n, dtype, a), values(n, dtype, b, seed=2), values(n, dtype, c)
        ALIKE(x, y, out, alpha, n)
        assert torch.equal(out, added_as_on_a_gpu(x, y, alpha=alpha)), (n, a, b, c)


@EVERY_DTYPE
@pytest.mark.parametrize("first", [False, True])
def test_add2_with_a_number(dtype: torch.dtype, first: bool) -> None:
    number, alpha = 2.70000005, -0.3
    for n, a, b in layouts(2):
        x, out = values(n, dtype, a), values(n, dtype, b)
        SCALAR[first](x, out, number, alpha, n)
        wanted = added_as_on_a_gpu(x, number, alpha=alpha)
        if first:  # number + alpha·x, where the number is as wide as the arithmetic
            whole = torch.full((n,), number, dtype=torch.promote_types(dtype, torch.float32))
            wanted = added_as_on_a_gpu(whole, x, alpha=alpha).to(dtype)
        assert torch.equal(out, wanted), (n, a, b)


def test_add2_of_integers_beyond_32_bits() -> None:
    for n in LENGTHS:
        x, out = torch.arange(n) * 2**40, torch.empty(n, dtype=torch.int64)
        ALIKE(x, x, out, 2**20 + 1, n)
        assert torch.equal(out, x + (2**20 + 1) * x)


# The width of the indices, the types of the elements and the loops have no code in common, and each pair of types compiles ten
# kernels: float32 shows all loops with indices of either width, and the other types a third of the loops each.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("dtypes", "wide"),
    [
        (("float32", "float32"), False),
        (("float16", "float32"), False),
        (("int16", "float16"), False),
        (("int8", "bfloat16"), False),
        (("float32", "float32"), True),
        (("int8", "bfloat16"), True),
    ],
    ids=str,
)
def test_add2_of_views(dtypes: tuple[str, str], wide: bool) -> None:
    """Views whose loops have one to five dimensions, with innermost strides of 0, 1 and more."""
    first, second = (getattr(torch, d) for d in dtypes)
    numbers = torch.arange(2 * 3 * 5 * 7 * 32).reshape(2, 3, 5, 7, 32)
    a, b = (numbers % 251 - 80).to(first), (numbers % 199 * 64 - 33).to(second)
    pairs = [
        (a[0, 0, 0], b[0, 0, 0, 0]),
        (a[0, 0, 0], b[0, 0, 0, :, :1]),
        (a[0, 0, 0, :, 1::2], b[0, 0, 0, :, ::2]),
        (a[0, 0, 0, :, 1:], b[0, 0, 0, 1:, :31][:1]),
        (a[0, 0, 0, :, 1:9], b[0, 0, 0, :, 8:16]),
        (a.transpose(0, 4), b.permute(4, 1, 2, 3, 0)),
        (a[:, :, :, :, :8].transpose(1, 3), b[:, :1, :, :1, :8]),
        (a[:, 1:2, ::2, :, ::3], b[0, :, :3, :1, 5:6]),
        (a[1].expand(4, 3, 5, 7, 32), b[0, 0, 0, 0, 0]),
    ]
    first_pair = {"float32": 0, "int8": 0, "float16": 1, "int16": 2}[dtypes[0]]
    for x, y in pairs if dtypes[0] == "float32" else pairs[first_pair::3]:
        for p, q in ((x, y), (y, x)):
            shape = torch.broadcast_shapes(p.shape, q.shape)
            out = torch.empty(shape, dtype=torch.result_type(p.reshape(-1), q.reshape(-1)))
            p, q = p.expand(shape), q.expand(shape)
            widest = max(t.element_size() for t in (p, q, out))
            vector_width, _, sizes, _, *_ = strided_loop(shape, (p.stride(), q.stride()), widest)
            _, at_p, at_q = collapse(shape, p.stride(), q.stride())
            kernel = strided(len(sizes), vector_width, wide)
            dividers = tuple(0 if wide else divider(n) for n in sizes)
            kernel(p, q, out, 3.0, math.prod(sizes), sizes, dividers, at_p, at_q)
            assert torch.equal(out, added_as_on_a_gpu(p.reshape(-1), q.reshape(-1), alpha=3).reshape(shape))


def test_what_a_launch_leaves_alone() -> None:
    """Elements beyond the length of an array keep their values, also where the array is part of a larger one."""
    memory = np.full(4096, 7, np.float32)
    for n in LENGTHS[:-1]:
        FORWARD["none"](memory[:n], memory[:n], n)
        assert (memory[n:] == 7).all()
        memory[:n] = 7
