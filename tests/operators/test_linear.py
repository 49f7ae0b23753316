"""linear and linear_gelu: values and gradients against float64, shapes, errors, what is asked for."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import linear, linear_backward, linear_gelu, linear_gelu_backward
from cupyops.ops.linear import config as linear_config
from tests.cases import FLOATS
from tests.support import EACH_FLOAT, alike, with_floats

DTYPES = pytest.mark.parametrize("dtype", EACH_FLOAT)


def _gelu_of_linear(*operands: Tensor) -> Tensor:
    return F.gelu(F.linear(*operands))


def _tanh_of_linear(*operands: Tensor) -> Tensor:
    return F.gelu(F.linear(*operands), approximate="tanh")


def _linear_gelu_tanh(*operands: Tensor) -> Tensor:
    return linear_gelu(*operands, approximate="tanh")


PAIRS = {
    "linear": (linear, F.linear),
    "linear_gelu": (linear_gelu, _gelu_of_linear),
    "linear_gelu_tanh": (_linear_gelu_tanh, _tanh_of_linear),
}
BOTH = pytest.mark.parametrize(("ours", "theirs"), PAIRS.values(), ids=PAIRS)
# M, N, K: odd, whole vectors, one of each, one block of rows and more, many columns, many rows of few.
SHAPES = [(37, 19, 8), (700, 256, 4), (1, 1, 2), (5, 1, 3), (9, 1100, 7), (5000, 3, 2)]
# Of GELU's other form, which shares all but the derivative, two.
WITH_SHAPES = [
    pytest.param(shape, *PAIRS[name], id=f"{name}-{'x'.join(map(str, shape))}")
    for name in PAIRS
    for shape in (SHAPES[:2] if name == "linear_gelu_tanh" else SHAPES)
]


@pytest.fixture(autouse=True)
def _gradients_by_our_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are small, and PyTorch's own gradient of a bias would be recorded."""
    monkeypatch.setattr(linear_config, "LEAST_GRADIENT", 0)


def operands(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias that require gradients."""
    generator = torch.Generator().manual_seed(m + n + k)
    shapes = ((m, k), (n, k), (n,))
    x, weight, bias = (
        torch.randn(s, generator=generator)
        .div(math.sqrt(max(k, 1)) if len(s) == 2 and s[0] == n else 1)
        .to(device, dtype)
        for s in shapes
    )
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def with_gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...]:
    y = function(*inputs)
    return (y, *torch.autograd.grad(y, inputs, grad))


def assert_close_to_exact(ours: Tensor, theirs: Tensor, exact: Tensor, what: str) -> None:
    """The largest error is within twice PyTorch's and a rounding, both relative to the largest value."""
    assert ours.dtype == theirs.dtype, what
    assert ours.shape == theirs.shape, what
    if not ours.numel():
        return
    scale = exact.abs().max().clamp_min(torch.finfo(ours.dtype).tiny)
    # In float64, PyTorch's own is the exact value here, with the roundings that it has.
    rounding = torch.finfo(ours.dtype).eps * (8 if ours.dtype == torch.float64 else 1)
    error, allowed = ((t.double() - exact).abs().max() / scale for t in (ours, theirs))
    assert error <= 2 * (allowed + rounding), f"{what}: off by {float(error):.2e}, PyTorch by {float(allowed):.2e}"


@pytest.mark.sample(8)
@pytest.mark.parametrize(("shape", "ours", "theirs", "dtype"), with_floats(WITH_SHAPES, each=1))
def test_values_and_gradients_against_float64(
    device: str,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    ours: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
) -> None:
    inputs = operands(*shape, dtype, device)
    exact = tuple(t.detach().double().requires_grad_() for t in inputs)
    grad = torch.randn(shape[:2], generator=torch.Generator().manual_seed(1)).to(device, dtype)
    found = [with_gradients(f, i, g) for f, i, g in ((ours, inputs, grad), (theirs, inputs, grad))]
    wanted = with_gradients(theirs, exact, grad.double())
    for name, a, b, c in zip(("y", "grad_x", "grad_weight", "grad_bias"), *found, wanted, strict=True):
        assert_close_to_exact(a, b, c, name)


@pytest.mark.sample(6)
@BOTH
@pytest.mark.parametrize("batch", [(), (1,), (0,), (2, 3), (2, 0, 3), (2, 1, 3, 2)], ids=str)
def test_any_rank(
    device: str, batch: tuple[int, ...], ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> None:
    x, weight, bias = operands(math.prod(batch), 6, 5, torch.float64, device)
    x = x.detach().reshape(*batch, 5).requires_grad_()
    grad = torch.randn(*batch, 6, dtype=torch.float64).to(device)
    for inputs in ((x, weight, bias), (x, weight)):
        for a, b in zip(with_gradients(ours, inputs, grad), with_gradients(theirs, inputs, grad), strict=True):
            torch.testing.assert_close(a, b)


@BOTH
@pytest.mark.parametrize(("m", "n", "k"), [(3, 0, 4), (3, 4, 0), (0, 4, 3), (0, 0, 0)])
def test_empty(device: str, m: int, n: int, k: int, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    inputs = operands(m, n, k, torch.float32, device)
    grad = torch.ones(m, n, device=device)
    for a, b in zip(with_gradients(ours, inputs, grad), with_gradients(theirs, inputs, grad), strict=True):
        torch.testing.assert_close(a, b)


@BOTH
def test_only_the_gradients_that_are_asked_for(
    device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> None:
    for wanted in range(1, 8):
        inputs = [
            t.detach().requires_grad_(bool(wanted >> i & 1))
            for i, t in enumerate(operands(7, 6, 5, torch.float64, device))
        ]
        y = ours(*inputs)
        grad = torch.randn_like(y)
        asked = [t for t in inputs if t.requires_grad]
        for a, b in zip(
            torch.autograd.grad(y, asked, grad), torch.autograd.grad(theirs(*inputs), asked, grad), strict=True
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.sample(3)
@BOTH
def test_gradcheck_of_all_operands(device: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    inputs = operands(4, 3, 5, torch.float64, device)
    assert torch.autograd.gradcheck(ours, inputs)
    assert torch.autograd.gradgradcheck(ours, inputs)
    assert torch.autograd.gradcheck(ours, inputs[:2])
    assert torch.autograd.gradgradcheck(ours, inputs[:2])


def test_what_is_saved(device: str) -> None:
    """x for the gradient of weight, weight for the gradient of x; of a layer that is frozen, nothing but the weight."""
    saved: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    for function, more in ((linear, 0), (linear_gelu, 1)):
        for need_x, need_weight in ((True, True), (True, False), (False, True)):
            x, weight, bias = (t.detach() for t in operands(7, 6, 5, torch.float32, device))
            x.requires_grad_(need_x), weight.requires_grad_(need_weight), bias.requires_grad_()
            saved.clear()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                function(x, weight, bias)
            assert len(saved) == need_x + need_weight + more
            assert any(t.data_ptr() == x.data_ptr() for t in saved) == need_weight
            assert any(t.data_ptr() == weight.data_ptr() for t in saved) == need_x


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("ours", "theirs", "dtype"), with_floats((pytest.param(*pair, id=name) for name, pair in PAIRS.items()), each=1)
)
def test_layouts_of_the_operands(
    device: str, dtype: torch.dtype, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> None:
    x, weight, bias = (t.detach() for t in operands(24, 20, 16, dtype, device))
    eps = 8 * torch.finfo(dtype).eps
    for inputs in (
        (x.t().contiguous().t(), weight, bias),
        (x, weight.t().contiguous().t(), bias),
        (x[::2, 1:], weight[1:, 1:], bias[1:]),
        (x[:1].expand(5, 16), weight[:, :1].expand(20, 16), bias[:1].expand(20)),
        (x.reshape(2, 12, 16).transpose(0, 1), weight, bias),
    ):
        leaves = tuple(t.requires_grad_() for t in inputs)
        y = theirs(*leaves)
        for grad in (
            torch.randn_like(y),
            torch.ones((), device=device, dtype=dtype).expand(y.shape),
            torch.randn_like(y).mT.contiguous().mT,
        ):
            for a, b in zip(with_gradients(ours, leaves, grad), with_gradients(theirs, leaves, grad), strict=True):
                torch.testing.assert_close(a, b, rtol=eps, atol=8 * eps)


def test_a_weight_of_one_dimension(device: str) -> None:
    x, weight = (t.requires_grad_() for t in (torch.randn(4, 5, device=device), torch.randn(5, device=device)))
    grad = torch.randn(4, device=device)
    for a, b in zip(
        with_gradients(linear, (x, weight), grad), with_gradients(F.linear, (x, weight), grad), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.sample(2)
@DTYPES
def test_special_values_stay_in_their_row_and_column(device: str, dtype: torch.dtype) -> None:
    for value in (math.nan, math.inf, -math.inf):
        x, weight, bias = (t.detach() for t in operands(40, 24, 8, dtype, device))
        grad = torch.randn(40, 24).to(device, dtype)
        grad[3, 5] = value
        z = F.linear(x, weight, bias)
        got = linear_backward(grad, x, weight), linear_gelu_backward(grad, z, x, weight)
        for outputs in got:
            assert [bool(g.isfinite()) for g in outputs[2]] == [i != 5 for i in range(24)]
            assert outputs[1].isfinite().all(1).tolist() == [i != 5 for i in range(24)]
    z[7, 2] = math.nan
    found = linear_gelu_backward(torch.ones_like(z), z, x, weight)
    assert [bool(g.isnan()) for g in found[2]] == [i == 2 for i in range(24)]
    assert found[0].isnan().all(1).tolist() == [i == 7 for i in range(40)]


def test_inputs_are_not_modified_and_outputs_are_their_own(device: str) -> None:
    x, weight, bias = (t.detach() for t in operands(16, 8, 8, torch.float32, device))
    z = F.linear(x, weight, bias)
    grad = torch.randn_like(z)
    given = (x, weight, bias, z, grad)
    before = [t.clone() for t in given]
    results = [linear(x, weight, bias), linear_gelu(x, weight, bias), *linear_backward(grad, x, weight)]
    results += linear_gelu_backward(grad, z, x, weight)
    assert all(alike(t, b) for t, b in zip(given, before, strict=True))
    owners = {t.untyped_storage().data_ptr() for t in given}
    assert not owners & {t.untyped_storage().data_ptr() for t in results}
    assert len({t.untyped_storage().data_ptr() for t in results}) == len(results)


# Errors


@pytest.mark.parametrize("name", ["linear", "linear_gelu"])
@pytest.mark.parametrize("least", [0, 2**40], ids=["ours", "by PyTorch"])
def test_bad_operands_are_named(device: str, name: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever records the gradient of linear."""
    monkeypatch.setattr(linear_config, "LEAST_GRADIENT", least)
    function = {"linear": linear, "linear_gelu": linear_gelu}[name]
    x, weight, bias = (t.detach() for t in operands(3, 6, 5, torch.float32, device))
    wrong: list[tuple[type[Exception], str, tuple[Tensor, ...]]] = [
        (
            RuntimeError,
            rf"{name}: mat1 and mat2 shapes cannot be multiplied \(3x4 and 5x6\): `x` must have 5 columns, as `weight` of "
            r"shape \(6, 5\) has, got shape \(3, 4\)",
            (x[:, :4], weight, bias),
        ),
        (RuntimeError, rf"{name}: `bias` must have shape \(6,\), .*, got \(1,\)", (x, weight, bias[:1])),
        (RuntimeError, rf"{name}: `bias` must have shape \(6,\), .*, got \(6, 1\)", (x, weight, bias[:, None])),
        (RuntimeError, rf"{name}: `bias` must have shape \(6,\), .*, got \(1, 6\)", (x, weight, bias[None])),
        (
            RuntimeError,
            rf"{name}: mat1 and mat2 must have the same dtype: `weight` must have dtype float32, as `x` has, got float16",
            (x, weight.half(), bias),
        ),
        (
            RuntimeError,
            rf"{name}: .* `bias` must have dtype float32, as `x` has, got float64",
            (x, weight, bias.double()),
        ),
        (TypeError, rf"{name}: `x` must have dtype float16 or .*, got int64", (x.long(), weight.long(), bias.long())),
        (RuntimeError, rf"{name}: both arguments to linear need to be at least 1D", (x[0, 0], weight, bias)),
        (RuntimeError, rf"{name}: .*they are 2D and 3D", (x, weight[None], bias)),
        (RuntimeError, rf"{name}: .*they are 2D and 1D", (x, weight[0], bias)),
        (RuntimeError, rf"{name}: .*they are 2D and 0D", (x, weight[0, 0], bias)),
        (RuntimeError, rf"{name}: mat1 and mat2 shapes cannot be multiplied \(3x5 and 4x6\)", (x, weight[:, :4])),
    ]
    for kind, words, inputs in wrong:
        for leaves in (
            inputs,
            tuple(t.clone().requires_grad_() for t in inputs) if inputs[0].is_floating_point() else inputs,
        ):
            with pytest.raises(kind, match=words):
                function(*leaves)
    with pytest.raises(TypeError, match=rf"{name}: `weight` must be a Tensor, got list"):
        function(x, [1.0])
    with pytest.raises(TypeError, match=rf"{name}: `bias` must be a Tensor or None, got float"):
        function(x, weight, 1.0)
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))  # and life goes on


def test_unknown_form_of_gelu(device: str) -> None:
    x, weight, bias = operands(3, 6, 5, torch.float32, device)
    for inputs in ((x, weight, bias), (x.detach(), weight.detach(), None)):
        with pytest.raises(RuntimeError, match=r"approximate argument must be either none or tanh, got 'erf'"):
            linear_gelu(*inputs, approximate="erf")


def test_backward_refuses_operands_that_do_not_belong_together(device: str) -> None:
    x, weight, _ = (t.detach() for t in operands(3, 6, 5, torch.float32, device))
    grad = torch.ones(3, 6, device=device)
    with pytest.raises(ValueError, match=r"linear_backward: `weight` must have shape \(6, K\), .*, got \(5, 6\)"):
        linear_backward(grad, x, weight.t())
    with pytest.raises(ValueError, match=r"linear_backward: `x` must have shape \(3, K\), .*, got \(2, 5\)"):
        linear_backward(grad, x[:2], weight)
    with pytest.raises(ValueError, match=r"linear_backward: `grad_y` must have shape \(\.\.\., N\), got \(\)"):
        linear_backward(grad[0, 0])
    with pytest.raises(
        TypeError, match=r"linear_backward: `x` must have dtype .*float32, as `grad_y` has, got .*float64"
    ):
        linear_backward(grad, x.double(), weight)
    with pytest.raises(ValueError, match=r"linear_gelu_backward: `z` must have shape \(3, 6\), got \(3, 5\)"):
        linear_gelu_backward(grad, x)
    with pytest.raises(TypeError, match=r"linear_gelu_backward: `z` must have dtype float32, got float16"):
        linear_gelu_backward(grad, grad.half())
    with pytest.raises(ValueError, match=r"linear_gelu_backward: `x` must have shape \(3, K\), .*, got \(2, 5\)"):
        linear_gelu_backward(grad, grad, x[:2], weight)


@pytest.mark.gpu
def test_operands_on_several_devices_are_named() -> None:
    x, weight, bias = (t.detach() for t in operands(3, 6, 5, torch.float32, "cuda"))
    for function in (linear, linear_gelu):
        with pytest.raises(ValueError, match=r"`bias` must be on the device of `x`.*same device.*got .*on cpu"):
            function(x, weight, bias.cpu())
        with pytest.raises(ValueError, match=r"`weight` must be on the device of `x`"):
            function(x, weight.cpu(), bias)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS[:3])
@pytest.mark.parametrize(
    "shape",
    [
        *((1, 4096, 4096), (4, 4096, 2048), (8, 4096, 4096), (16_384, 1, 768), (9000, 3, 4096)),
        *((1, 1, 2), (16, 9, 30), (3, 200, 7), (8, 128, 128), (16, 512, 1024), (24, 256, 2048)),
    ],
    ids=str,
)
def test_matrices_of_few_rows(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    x, weight, bias = (t.detach() for t in operands(*shape, dtype, "cuda"))
    for b in (bias, None):
        exact = F.linear(x.double(), weight.double(), None if b is None else b.double())
        theirs = F.linear(x, weight, b)
        assert_close_to_exact(linear(x, weight, b), theirs, exact, "y")
        for form in ("none", "tanh"):
            wanted, close = F.gelu(theirs, approximate=form), F.gelu(exact, approximate=form)
            assert_close_to_exact(linear_gelu(x, weight, b, form), wanted, close, form)
    first = linear(x, weight, bias)
    assert all(alike(linear(x, weight, bias), first) for _ in range(20))


# Arrays without PyTorch


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cupy_arrays(dtype: str) -> None:
    import cupy

    try:
        cupy.ones((2, 2)) @ cupy.ones((2, 2))
    except ImportError as error:
        pytest.skip(f"CuPy has no cuBLAS here: {error}")
    x, weight, bias, grad = (
        cupy.random.standard_normal(s).astype(dtype) for s in ((33, 65), (40, 65), (40,), (33, 40))
    )
    tensors = [torch.from_dlpack(a) for a in (x, weight, bias, grad)]
    eps = 32 * torch.finfo(tensors[0].dtype).eps
    y, (z, pre) = cupyops.linear(x, weight, bias), cupyops.linear_gelu(x, weight, bias)
    assert isinstance(y, cupy.ndarray)
    assert isinstance(z, cupy.ndarray)
    wanted = F.linear(*tensors[:3])
    for a, b in ((y, wanted), (pre, wanted), (z, F.gelu(wanted))):
        torch.testing.assert_close(torch.from_dlpack(a), b, rtol=eps, atol=8 * eps)
    got = cupyops.linear_backward(grad, x, weight), cupyops.linear_gelu_backward(grad, pre, x, weight)
    again = torch.from_dlpack(pre)
    wanted = linear_backward(tensors[3], *tensors[:2]), linear_gelu_backward(tensors[3], again, *tensors[:2])
    for ours, theirs in zip(got, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(torch.from_dlpack(a), b, rtol=eps, atol=32 * eps)
        assert alike(torch.from_dlpack(ours[2]), theirs[2])


@pytest.mark.parametrize("lane", ["reference", pytest.param("simulator", marks=pytest.mark.simulator)])
def test_the_gradient_of_the_bias_alone(lane: str) -> None:
    """The two gradients that are not wanted are tensors without elements, each in memory of its own."""
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, requires_grad=True)
    with cupyops.simulate(on=lane == "simulator"):
        (found,) = torch.autograd.grad(torch.ops.cupyops.linear(x, weight, bias).sin().sum(), bias, create_graph=True)
        twice = torch.func.grad(lambda b: torch.ops.cupyops.linear(x, weight, b).sin().sum())(bias.detach())
    right = F.linear(x, weight, bias).cos().sum(0)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(twice, right)
