"""rms_norm compared with PyTorch's: values, gradients, dtypes, shapes, errors, the module, and compiled graphs."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cupyops.torch
from autograd_bridge import RMSNorm, rms_norm
from benchmarks import rms_norm as benchmark
from benchmarks.cases import check
from cupyops.launch.kernel import all_kernels
from tests.cases import FLOATS
from tests.support import EACH_FLOAT, with_floats

# Rows of a few threads, filled and not; of a block with a tail; too long for registers.
LENGTHS = (3, 64, 1030, 40_000)
# Before a test calls the operators for other rows.
AHEAD = [kernel for kernel in all_kernels() if kernel.name.startswith("rms_norm")]
# In units of the dtype's eps, beside an element and the largest: one rounding of 16 bits, and some tens of the arithmetic.
ALLOWED = {torch.float16: 0.3, torch.bfloat16: 0.3, torch.float32: 32.0, torch.float64: 32.0}


def exact(x: Tensor, dims: int = 1, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """The formula in float64."""
    row = list(range(-dims, 0))
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    x = x.double()
    y = x / (x.square().mean(row, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight.double()


def assert_near(got: Tensor, wanted: Tensor) -> None:
    assert got.shape == wanted.shape
    if got.numel():
        error = (got.double() - wanted).abs() / (wanted.abs() + wanted.abs().max())
        assert error.max().item() <= ALLOWED[got.dtype] * torch.finfo(got.dtype).eps, error.max().item()


def operands(shape: Sequence[int], dims: int, dtype: torch.dtype, of_weight: torch.dtype, device: str) -> list[Tensor]:
    x, weight = torch.randn(*shape), torch.rand(*shape[len(shape) - dims :]) + 0.5
    return [x.to(device, dtype).requires_grad_(), weight.to(device, of_weight).requires_grad_()]


# The rows alone, and with a weight.
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("n", "count", "dtype"), with_floats(itertools.starmap(pytest.param, itertools.product(LENGTHS, (1, 2))), each=1)
)
def test_values_and_gradients_against_float64(device: str, dtype: torch.dtype, n: int, count: int) -> None:
    given = operands((3, n), 1, dtype, dtype, device)[:count]
    doubles = [x.detach().double().requires_grad_() for x in given]
    y, wanted = rms_norm(given[0], n, *given[1:], eps=1e-5), exact(doubles[0], 1, *doubles[1:], eps=1e-5)
    assert y.dtype == dtype
    assert_near(y, wanted)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, given, grad)
    for g, w in zip(found, torch.autograd.grad(wanted, doubles, grad.double()), strict=True):
        assert g.dtype == dtype
        assert_near(g, w)


# Without a GPU, a weight of each dtype beside rows of another.
@pytest.mark.sample(2)
@pytest.mark.parametrize(("of_weight", "dtype"), with_floats(FLOATS, each=1))
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
def test_a_weight_of_another_dtype_gives_the_dtypes_that_pytorchs_gives(
    device: str, dtype: torch.dtype, of_weight: torch.dtype
) -> None:
    inputs = operands((5, 24), 1, dtype, of_weight, device)
    y, theirs = rms_norm(inputs[0], 24, inputs[1]), F.rms_norm(inputs[0], (24,), inputs[1])
    assert y.dtype == theirs.dtype == dtype
    assert_near(y, exact(inputs[0], 1, inputs[1]))
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, grad)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    wanted = torch.autograd.grad(exact(doubles[0], 1, doubles[1], eps), doubles, grad.double())
    for g, w, x in zip(found, wanted, inputs, strict=True):
        assert g.dtype == x.dtype
        # The float64 gradient of a float32 result is as accurate as float32.
        assert_near(g.float() if g.dtype == torch.float64 and dtype != torch.float64 else g, w)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", EACH_FLOAT)
def test_the_default_eps_is_that_of_the_arithmetic(device: str, dtype: torch.dtype) -> None:
    """Not of x's dtype, whose eps of 16 bits is thousands of times as large. At this size of x, either shows."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.full((2, 8), torch.finfo(wide).eps ** 0.5, device=device).to(dtype)
    assert_near(rms_norm(x, 8), exact(x))
    torch.testing.assert_close(rms_norm(x, 8), F.rms_norm(x, (8,)))
    torch.testing.assert_close(RMSNorm(8, device=device, dtype=dtype)(x), F.rms_norm(x, (8,)))
    assert not torch.allclose(rms_norm(x, 8), rms_norm(x, 8, eps=float(torch.finfo(torch.bfloat16).eps)))


# All of one length, whose kernels are compiled once.
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("shape", "dims"), [((24,), 1), ((2, 3, 24), 1), ((2, 4, 6), 2), ((2, 4, 3), 3), ((2, 1, 4, 6), 2)]
)
def test_any_leading_and_normalized_dimensions(device: str, shape: tuple[int, ...], dims: int) -> None:
    inputs = operands(shape, dims, torch.float64, torch.float64, device)
    for given in ([inputs[0]], inputs):
        y, wanted = (f(given[0], shape[-dims:], *given[1:], eps=1e-5) for f in (rms_norm, F.rms_norm))
        torch.testing.assert_close(y, wanted)
        assert y.is_contiguous()
        grad = torch.randn_like(y)
        for g, w in zip(torch.autograd.grad(y, given, grad), torch.autograd.grad(wanted, given, grad), strict=True):
            torch.testing.assert_close(g, w)
    across = inputs[0].detach().flip(0).transpose(0, -1)
    torch.testing.assert_close(rms_norm(across, across.shape[-1:]), F.rms_norm(across, across.shape[-1:]))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 8), (0,)])
def test_nothing_gives_nothing_and_gradients_of_zeros(device: str, shape: tuple[int, ...]) -> None:
    x, weight = operands(shape, 1, torch.float32, torch.float32, device)
    y = rms_norm(x, shape[-1], weight)
    assert y.shape == shape
    y.sum().backward()
    assert (x.grad.shape, weight.grad.tolist()) == (x.shape, [0.0] * shape[-1])  # type: ignore[union-attr]


def test_only_the_wanted_gradient_is_made(device: str) -> None:
    x, weight = operands((5, 16), 1, torch.float64, torch.float64, device)
    for wanted in (x, weight):
        given = [t if t is wanted else t.detach() for t in (x, weight)]
        y, theirs = rms_norm(given[0], 16, given[1], 1e-5), F.rms_norm(given[0], (16,), given[1], 1e-5)
        grad = torch.randn_like(y)
        (g,), (w,) = torch.autograd.grad(y, wanted, grad), torch.autograd.grad(theirs, wanted, grad)
        torch.testing.assert_close(g, w)


def test_second_derivatives_vmap_and_forward_mode_with_a_weight(device: str) -> None:
    inputs = operands((3, 5), 1, torch.float64, torch.float64, device)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, 5, w, 1e-3), inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: rms_norm(x, 5, w, 1e-3), inputs)
    x, weights = torch.randn(4, 3, 5, device=device), torch.rand(4, 5, device=device)
    for dims in ((0, None), (None, 0), (0, 0)):
        given = [t if dim is not None else t[0] for t, dim in zip((x, weights), dims, strict=True)]
        got, wanted = (
            torch.func.vmap(lambda x, w, norm=norm: norm(x, (5,), w, 1e-5), in_dims=dims)(*given)
            for norm in (rms_norm, F.rms_norm)
        )
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_module_trains_as_the_eager_one(device: str, dynamic: bool) -> None:
    torch.compiler.reset()
    module = RMSNorm((3, 8), device=device)
    nn.init.uniform_(module.weight)
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (2, 5):
        x = torch.randn(rows, 3, 8, device=device, requires_grad=True)
        inputs = (x, module.weight)
        got, wanted = compiled(x), F.rms_norm(x, (3, 8), module.weight)
        torch.testing.assert_close(got, wanted)
        for g, w in zip(torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs), strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # PyTorch's of its own
def test_autocast_is_pytorchs(device: str) -> None:
    x, weight = operands((4, 16), 1, torch.bfloat16, torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        for given in ((x, weight), (x, weight.bfloat16()), (x.float(), weight), (x,)):
            y, theirs = rms_norm(given[0], 16, *given[1:]), F.rms_norm(given[0], (16,), *given[1:])
            assert y.dtype == theirs.dtype
            torch.testing.assert_close(y, theirs)


@pytest.mark.parametrize(
    ("of", "kind", "words"),
    [
        (lambda x, w: rms_norm([1.0], 1), TypeError, "rms_norm: `x` must be a Tensor, got list"),  # type: ignore[arg-type]
        (lambda x, w: rms_norm(x, 8, [1.0]), TypeError, "rms_norm: `weight` must be a Tensor, got list"),
        (lambda x, w: rms_norm(x, 8, w, "small"), TypeError, "`eps` must be a number .*, got 'small'"),
        (lambda x, w: rms_norm(x, 8, eps="small"), TypeError, "`eps` must be a number .*, got 'small'"),
        (lambda x, w: rms_norm(x.long(), 8, w), TypeError, "rms_norm: `x` must have dtype float16 .*, got int64"),
        (lambda x, w: rms_norm(x, 8, w.long()), TypeError, "rms_norm: `weight` must have dtype float16 .*, got int64"),
        (lambda x, w: rms_norm(x, ()), RuntimeError, "at least 1-dimensional, .* but got normalized_shape = \\[\\]"),
        (lambda x, w: rms_norm(x, 7), RuntimeError, "Given normalized_shape=\\[7\\], expected input with shape \\[\\*, 7\\]"),
        (lambda x, w: rms_norm(x, (2, 3, 8)), RuntimeError, "Given normalized_shape=\\[2, 3, 8\\], expected input"),
        (lambda x, w: rms_norm(x.sum(), 1), RuntimeError, "Given normalized_shape=\\[1\\], expected input"),
        (lambda x, w: rms_norm(x, 8, w[:7]), RuntimeError, "Expected weight to be of same shape as normalized_shape"),
        (lambda x, w: rms_norm(x, (3, 8), w), RuntimeError, "Expected weight to be of same shape as normalized_shape"),
        (lambda x, w: rms_norm(x, 8, w.to("meta")), ValueError, "`weight` must be on the device of `x`"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(device: str, of: Any, kind: type[Exception], words: str) -> None:
    x, weight = operands((3, 8), 1, torch.float32, torch.float32, device)
    with pytest.raises(kind, match=words):
        of(x.detach(), weight.detach())


def test_the_module_is_pytorchs() -> None:
    for arguments in (
        {"normalized_shape": 8},
        {"normalized_shape": (2, 3), "eps": 1e-3, "elementwise_affine": False},
        {"normalized_shape": [4], "dtype": torch.bfloat16, "device": "meta"},
    ):
        ours, theirs = RMSNorm(**arguments), nn.RMSNorm(**arguments)
        assert repr(ours) == repr(theirs)
        assert [(k, v.shape, v.dtype, v.device) for k, v in ours.state_dict().items()] == [
            (k, v.shape, v.dtype, v.device) for k, v in theirs.state_dict().items()
        ]
    theirs = nn.RMSNorm(8)
    nn.init.uniform_(theirs.weight)
    ours = RMSNorm(8)
    assert ours.weight.tolist() == [1.0] * 8
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).sum().backward()
    assert ours.weight.grad is not None


def test_kernels_are_declared_ahead_for_every_dtype() -> None:
    """``python -m cupyops compile`` compiles what is declared, and allows no warning, and no spill on sm_90."""
    declared = {(k.name, *types.values()) for k in AHEAD for types in k.type_choices()}
    for kind in ("", "_backward", "_without_weight", "_without_weight_backward"):
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            assert any(name == f"rms_norm{kind}" and set(of) == {dtype} for name, *of in declared), (kind, dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", EACH_FLOAT)
def test_the_exported_norm_is_of_standard_operators_and_as_accurate(dtype: torch.dtype, tmp_path: Path) -> None:
    onnx_support = pytest.importorskip("tests.onnx.onnx_support")
    x, weight = torch.randn(3, 4, 6).to(dtype), torch.rand(4, 6).to(dtype)
    # The mean of small elements is about eps, so float32 arithmetic in either would show in float64.
    model = onnx_support.Model(lambda x, s: (rms_norm(x, 6), rms_norm(x, (4, 6), weight), rms_norm(s, 6, eps=1e-6)))
    path = tmp_path / "m.onnx"
    cupyops.torch.export_onnx(model, (x, x / 1024), path, dynamic_shapes=({0: "batch"}, {0: "batch"}))
    assert not [name for name in onnx_support.nodes(path) if "::" in name]
    x = torch.randn(7, 4, 6).to(dtype)
    wanted = exact(x), exact(x, 2, weight), exact(x / 1024, eps=1e-6)
    for got, w in zip(onnx_support.run(path, x, x / 1024), wanted, strict=True):
        assert got.dtype == dtype
        assert_near(got, w)


def test_the_benchmarks_cases_are_right() -> None:
    for case in (*benchmark.cases((2**12,), (64, 96), full=True), *benchmark.host_cases()):
        inputs = case.inputs(torch.Generator().manual_seed(0))
        for name in ("ours", "eager"):
            check(case, case.bind(case.implementations[name](), inputs)(), case.expected(inputs))
