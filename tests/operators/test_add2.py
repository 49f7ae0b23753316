"""add2: the bits of torch.add, its promotion and broadcasting, its errors; the loop planning behind it."""

import itertools
import random
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

import cupyops
from autograd_bridge import add2
from cupyops.tiling.broadcasting import broadcast_shape, collapse, divider, spread, strided_loop
from tests.accuracy import added_as_on_a_gpu
from tests.cases import FLOATS
from tests.support import EACH_FLOAT, alike

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SHAPES = [
    ((37, 19), (37, 19)),
    ((37, 19), (19,)),
    ((37, 19), (37, 1)),
    ((1, 19), (37, 1)),
    ((16, 32), (32,)),
    ((16, 32), (16, 1)),
    ((5, 1, 7, 8), (4, 1, 8)),
    ((3, 4, 5, 6), (3, 1, 5, 1)),
    ((2, 3, 2, 3, 2, 3), (2, 1, 2, 1, 2, 1)),
    ((4,), ()),
    ((), ()),
    ((0, 3), (1, 3)),
    ((70_000, 2), (2,)),
]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
        return x.to(dtype).to(device)
    low = 0 if dtype == torch.uint8 else -(2**40)
    return torch.randint(low, 2**40, shape, generator=generator).to(dtype).to(device)


@pytest.fixture
def torch_add(backend: str) -> Callable[..., Tensor]:
    """torch.add of the GPU, which the kernel is held to bit by bit; the reference is PyTorch's own of the CPU."""
    return added_as_on_a_gpu if backend == "simulator" else torch.add


# With a GPU, every dtype has every shape. Without one, a dtype has the first shape and every second of the others: the simulator
# compiles a kernel for each dtype, number of loops and width of an access.
@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        pytest.param(shapes, dtype, id=f"{shapes}-{dtype}", marks=[] if i == 0 or (i + j) % 2 else pytest.mark.gpu)
        for i, shapes in enumerate(SHAPES)
        for j, dtype in enumerate([*FLOATS, *INTEGERS])
    ],
)
def test_bits_of_torch_add(
    device: str,
    torch_add: Callable[..., Tensor],
    dtype: torch.dtype,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    a, b = (numbers(s, dtype, device, i) for i, s in enumerate(shapes))
    for alpha in (1, 0.3, -7.25) if dtype.is_floating_point else (1, 3):
        assert alike(add2(a, b, alpha=alpha), torch_add(a, b, alpha=alpha))
        assert alike(add2(b, a, alpha=alpha), torch_add(b, a, alpha=alpha))


@pytest.mark.parametrize("alpha", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("turn", [5, *(pytest.param(n, marks=pytest.mark.thorough) for n in (0, 1, 4))])
def test_bits_of_torch_add_in_mixed_dtypes(
    device: str, backend: str, torch_add: Callable[..., Tensor], alpha: int, turn: int
) -> None:
    dtypes = [*FLOATS, *INTEGERS]
    pairs = list(itertools.product(dtypes, repeat=2))
    if backend == "simulator":
        # Each pair is two compilations: each dtype with one other on either side, and with its neighbour.
        pairs = [pair for i, pair in enumerate(pairs) if (i // 9 + i % 9) % 9 == turn]
    for first, second in pairs:
        a, b = numbers((33, 5), first, device, 0), numbers((33, 5), second, device, 1)
        assert alike(add2(a, b, alpha=alpha), torch_add(a, b, alpha=alpha)), (first, second)
        assert alike(add2(a, b[0], alpha=alpha), torch_add(a, b[0], alpha=alpha)), (first, second)


@pytest.mark.parametrize("dtype", EACH_FLOAT)
def test_subnormals_signed_zeros_and_infinities(device: str, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    values = [0.0, -0.0, tiny / 2, -tiny / 4, tiny, -tiny, torch.inf, -torch.inf, torch.finfo(dtype).max, 1.0]
    a = torch.tensor(values, dtype=torch.float64).to(dtype).to(device)
    pairs_a, pairs_b = a.repeat_interleave(len(values)), a.repeat(len(values))
    wanted = torch.add(pairs_a, pairs_b)
    got = add2(pairs_a, pairs_b)
    assert torch.equal(got.isnan(), wanted.isnan())
    assert alike(got[~got.isnan()], wanted[~wanted.isnan()])
    assert add2(a[2:3], a[2:3]).item() == tiny, "subnormals were flushed to zero"


@pytest.mark.sample(24)
@pytest.mark.parametrize("number", [2.7, 3, -1, True])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int8])
def test_numbers_and_host_scalars(
    device: str, torch_add: Callable[..., Tensor], dtype: torch.dtype, number: float
) -> None:
    for shape in ((33, 5), ()):
        a = numbers(shape, dtype, device, 0)
        assert alike(add2(a, number), torch_add(a, number))
        assert alike(add2(a, number, alpha=2), torch_add(a, number, alpha=2))
    a = numbers((33, 5), dtype, device, 0)
    scalar = torch.tensor(number, dtype=torch.float32 if isinstance(number, float) else torch.int64)
    assert alike(add2(a, scalar, alpha=2), torch_add(a, scalar, alpha=2))
    assert alike(add2(scalar, a, alpha=2), torch_add(scalar, a, alpha=2))
    assert alike(add2(a.t(), scalar), torch_add(a.t(), scalar).contiguous())


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(torch.uint8, 300), (torch.int8, -129), (torch.int32, 2**40 + 5), (torch.float32, 1e300), (torch.float16, -1e300)],
)
def test_numbers_beyond_the_dtype_become_what_pytorch_makes_of_them(
    device: str, dtype: torch.dtype, number: float
) -> None:
    a = torch.ones(5, dtype=dtype, device=device)
    scalar = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
    assert alike(add2(a, scalar), torch.add(a, scalar))
    assert alike(add2(scalar, a), torch.add(scalar, a))


def test_a_launch_is_given_a_number_of_the_host_as_pytorch_converts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of the kernel for numbers, on arrays that need no GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from cupyops.ops.add2 import SCALAR, forward

    given = []
    monkeypatch.setattr(SCALAR[False], "launch_vouched", lambda value, **others: given.append(value.dtype))
    with FakeTensorMode():
        for dtype, wanted in (
            (torch.uint8, torch.uint8),
            (torch.float16, torch.float32),
            (torch.float64, torch.float64),
        ):
            forward(torch.empty(5, dtype=dtype, device="cuda"), torch.tensor(3, dtype=torch.int64), 1)
            assert given.pop() == wanted


def test_integers_wrap(device: str) -> None:
    a = torch.tensor([127, -128], dtype=torch.int8, device=device)
    assert add2(a, a).tolist() == [-2, 0]
    big = torch.tensor([2**63 - 1], device=device)
    assert add2(big, torch.ones_like(big)).item() == -(2**63)


@pytest.mark.parametrize(
    "shapes", [((4, 3), (3,)), ((4, 1), (1, 3)), ((2, 1, 3), (5, 1)), ((3,), ()), ((4, 3), (4, 3))], ids=str
)
def test_gradients_are_summed_over_broadcast_dimensions(
    device: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    inputs = [torch.randn(s, dtype=torch.float64, device=device, requires_grad=True) for s in shapes]
    for alpha in (1, -0.5):
        assert torch.autograd.gradcheck(lambda a, b, alpha=alpha: add2(a, b, alpha=alpha), inputs)
        assert torch.autograd.gradgradcheck(lambda a, b, alpha=alpha: add2(a, b, alpha=alpha), inputs)


def test_gradients_come_back_in_each_operands_dtype(device: str) -> None:
    a = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.randn(3, dtype=torch.float16, device=device, requires_grad=True)
    add2(a, b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.dtype, b.grad.dtype) == (torch.float64, torch.float16)
    assert b.grad.tolist() == [4.0, 4.0, 4.0]


def test_gradient_of_a_host_scalar(device: str) -> None:
    a = torch.randn(4, 3, device=device, requires_grad=True)
    b = torch.tensor(2.0, requires_grad=True)
    add2(a, b, alpha=3).sum().backward()
    assert b.grad is not None
    assert (b.grad.item(), b.grad.device.type) == (36.0, "cpu")


@pytest.mark.gpu  # torch.add, the reference on a CPU, hands out one tensor twice
def test_each_leaf_has_a_gradient_of_its_own(device: str) -> None:
    """Both operands share one gradient tensor internally; the gradients of leaves must not share memory."""
    a, b = (torch.randn(3, device=device, requires_grad=True) for _ in range(2))
    grad_out = torch.ones(3, device=device)
    add2(a, b).backward(grad_out)
    assert a.grad is not None
    assert b.grad is not None
    a.grad.mul_(2)
    assert b.grad.tolist() == grad_out.tolist() == [1.0, 1.0, 1.0]


def test_only_the_wanted_gradient_is_computed() -> None:
    class Ctx:
        needs_input_grad = (True, False, False)
        alpha = 2
        a = b = (torch.Size([3]), torch.float32, torch.device("cpu"))

    from cupyops.torch.ops.add2 import Add2Function

    grad_a, grad_b, _ = Add2Function.backward(Ctx(), torch.ones(3))
    assert grad_b is None
    assert grad_a is not None


def test_errors(device: str) -> None:
    a = torch.ones(3, 4, device=device)
    with pytest.raises(
        RuntimeError,
        match=r"The size of tensor a \(4\) must match the size of tensor b \(3\) at non-singleton dimension 1",
    ):
        add2(a, torch.ones(3, device=device))
    with pytest.raises(TypeError, match=r"add2: .*got bool"):
        add2(a > 0, a > 0)
    with pytest.raises(TypeError, match=r"got complex64"):
        add2(a, a.to(torch.complex64))
    with pytest.raises(TypeError, match=r"got complex"):
        add2(a, 2j)
    with pytest.raises(RuntimeError, match=r"argument alpha must not be a floating point number"):
        add2(a.int(), a.int(), alpha=0.5)
    with pytest.raises(RuntimeError, match=r"Boolean alpha only supported for Boolean results"):
        add2(a, a, alpha=True)
    with pytest.raises(TypeError, match=r"add2: `b` must be a Tensor or a number, got str"):
        add2(a, "1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`alpha` must be a number, got str"):
        add2(a, a, alpha="1")  # type: ignore[arg-type]
    assert add2(a, a).sum().item() == 24


def test_an_integer_alpha_may_be_a_symbol_of_a_compiled_function(device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        lambda a, b, alpha: add2(a, b, alpha=alpha), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for n, alpha in ((5, 3), (7, 4)):
        a, b = torch.randn(n, 3, device=device), torch.randn(3, device=device)
        torch.testing.assert_close(compiled(a, b, alpha), torch.add(a, b, alpha=alpha))


@pytest.mark.gpu
def test_other_device_is_refused() -> None:
    a = torch.ones(3, device="cuda")
    with pytest.raises(
        ValueError, match=r"`b` must be on the device of `a` \(float32\[3\] on cuda:0\), got float32\[3\] on cpu"
    ):
        add2(a, torch.ones(3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64"])
def test_cupy_arrays(dtype: str) -> None:
    import cupy

    a = (cupy.random.standard_normal((33, 8)) * 9).astype(dtype)
    b = (cupy.random.standard_normal((33, 8)) * 9).astype(dtype)
    for x, y in (
        (a, b),
        (a.T, b.T),
        (a, b[0]),
        (a, b[:, :1]),
        (a[::2], b[1::2][:16][0]),
        (a[::-1], b),
        (a, b.astype("int32")),
    ):
        out = cupyops.add2(x, y, alpha=2)
        assert isinstance(out, cupy.ndarray)
        assert out.dtype == cupy.result_type(x, y)
        exact = x.astype("float64") + 2 * y.astype("float64")
        wanted = exact.astype(out.dtype) if "float" in dtype else (x.astype(out.dtype) + 2 * y.astype(out.dtype))
        assert numpy.allclose(cupy.asnumpy(out), cupy.asnumpy(wanted), rtol=1e-3)


# The loop planning, which needs no GPU


def walk(sizes: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """The offsets of a loop in the order of the output. Dimensions are passed innermost first."""
    ranges = [range(n) for n in reversed(sizes)]
    return [sum(i * s for i, s in zip(reversed(index), strides, strict=True)) for index in itertools.product(*ranges)]


@pytest.mark.parametrize("order", [0, 1])
def test_a_row_beside_a_free_number_of_rows_says_nothing_of_that_number(order: int) -> None:
    """Tuples of two lengths are compared element by element: (N, 8) with (8,) would ask whether N is 8."""

    class Model(torch.nn.Module):
        def forward(self, *operands: Tensor) -> Tensor:
            return add2(*operands[:: -1 if order else 1])

    shapes = (({0: torch.export.Dim("N")}, None),)
    program = torch.export.export(Model(), (torch.zeros(3, 8), torch.ones(8)), dynamic_shapes=shapes)
    assert program.module()(torch.zeros(8, 8), torch.ones(8)).shape == (8, 8)


def test_collapsed_loops_visit_the_same_elements() -> None:
    rng = random.Random(1)
    for _ in range(300):
        shape = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(0, 5)))
        base = torch.arange(4**5).reshape(4, 4, 4, 4, 4)
        view = base[tuple(slice(0, n) for n in shape)]
        while view.dim() > len(shape):
            view = view[..., 0]
        other = torch.arange(4).expand(*shape[:-1], 4)[..., : shape[-1]] if shape else torch.tensor(0)
        sizes, first, second = collapse(shape, view.stride(), other.stride())
        assert [base.flatten()[o].item() for o in walk(sizes, first)] == view.flatten().tolist()
        assert walk(sizes, second) == other.flatten().tolist()


def test_collapse_makes_plain_broadcasts_two_dimensional() -> None:
    assert collapse((8, 4, 16), (64, 16, 1), (0, 0, 1)) == ((16, 32), (1, 16), (1, 0))
    assert collapse((8, 16), (16, 1), (1, 0)) == ((16, 8), (1, 16), (0, 1))
    assert collapse((8, 16), (16, 1), (16, 1)) == ((128,), (1,), (1,))


def test_plan_uses_whole_vectors_only_where_rows_hold_them() -> None:
    assert strided_loop((8, 16), ((16, 1), (0, 1)), widest=2)[:3] == (8, False, (2, 8))
    assert strided_loop((8, 15), ((15, 1), (0, 1)), widest=2)[:3] == (1, False, (15, 8))


def test_plan_counts_in_64_bits_where_32_are_too_few() -> None:
    assert strided_loop((2**20, 2**11), ((2**11, 1), (0, 1)), widest=2)[1]
    assert strided_loop((4, 4), ((2**30, 1), (0, 1)), widest=2)[1], "few elements, far apart"
    assert not strided_loop((2**20, 2**10), ((2**10, 1), (0, 1)), widest=2)[1]


def test_dividers_divide() -> None:
    rng = random.Random(2)
    for _ in range(20_000):
        size = rng.choice([rng.randint(1, 2**31 - 1), rng.randint(1, 1000), 2 ** rng.randint(0, 30)])
        i = rng.choice([rng.randint(0, 2**31 - 1), 2**31 - 1, size, size - 1, size * rng.randint(1, 100) % 2**31])
        packed = divider(size)
        high = (i * (packed & 0xFFFFFFFF)) >> 32
        assert ((high + i) & 0xFFFFFFFF) >> (packed >> 32) == i // size


def test_broadcast_shapes_are_pytorchs() -> None:
    for a, b in itertools.product(itertools.product((0, 1, 3), repeat=2), [(), (1,), (3,), (0,), (2, 1, 3)]):
        try:
            wanted = torch.broadcast_shapes(a, b)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="must match the size"):
                broadcast_shape(a, b)
        else:
            assert broadcast_shape(a, b) == tuple(wanted)
            assert spread(a, torch.empty(a).stride(), wanted) == torch.empty(a).expand(wanted).stride()
