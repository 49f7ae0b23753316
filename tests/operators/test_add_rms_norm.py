"""add_rms_norm compared with an addition followed by rms_norm: values, gradients, dtypes, shapes, errors, the
module."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cupyops
import cupyops.torch
from autograd_bridge import AddRMSNorm, RMSNorm, add_rms_norm, rms_norm
from cupyops.launch.kernel import all_kernels
from cupyops.torch.ops.add_rms_norm import _add_rms_norm
from tests.support import with_floats

LENGTHS = (3, 64, 1030, 40_000)
AHEAD = [kernel for kernel in all_kernels() if kernel.name.startswith("add_rms_norm")]


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    with cupyops.simulate(request.param == "cpu"):
        yield request.param


def operands(shape: tuple[int, ...], dims: int, device: str, *dtypes: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = (shape, shape, shape[len(shape) - dims :])
    drawn = [torch.randn(s, generator=generator).to(device, d) for s, d in zip(shapes, dtypes, strict=True)]
    return [x.requires_grad_() for x in drawn]


def assert_near(got: Tensor, wanted: Tensor) -> None:
    error = (got.double() - wanted).abs() / (wanted.abs() + wanted.abs().max())
    assert error.max().item() <= (2 if got.dtype.itemsize == 2 else 64) * torch.finfo(got.dtype).eps


# The two terms alone, and with a weight.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("n", "count", "dtype"), with_floats(itertools.starmap(pytest.param, itertools.product(LENGTHS, (2, 3))), each=1)
)
def test_values_are_those_of_the_two_operations_and_gradients_those_of_float64(
    place: str, dtype: torch.dtype, n: int, count: int
) -> None:
    given = operands((3, n), 1, place, dtype, dtype, dtype)[:count]
    y, s = add_rms_norm(*given[:2], n, *given[2:], eps=1e-5)
    apart = given[0] + given[1]
    assert torch.equal(s, apart)
    assert_near(y, F.rms_norm(apart.double(), (n,), *(w.double() for w in given[2:]), eps=1e-5))
    grads = [torch.randn_like(y), torch.randn_like(s)]
    found = torch.autograd.grad((y, s), given, grads)
    assert found[0].data_ptr() == found[1].data_ptr()  # one gradient, written once
    doubles = [x.detach().double().requires_grad_() for x in given]
    total = doubles[0] + doubles[1]
    exact = F.rms_norm(total, (n,), *doubles[2:], eps=1e-5)
    for g, w in zip(found, torch.autograd.grad((exact, total), doubles, [g.double() for g in grads]), strict=True):
        assert_near(g, w)


# The sum has the promoted dtype, and a gradient the dtype of its tensor.
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("of_x", "of_residual"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.float64),
    ],
)
def test_terms_of_two_dtypes_are_promoted(place: str, of_x: torch.dtype, of_residual: torch.dtype) -> None:
    x, residual, weight = operands((5, 24), 1, place, of_x, of_residual, torch.float32)
    y, s = add_rms_norm(x, residual, 24, weight)
    apart = x + residual
    assert (s.dtype, y.dtype) == (apart.dtype, apart.dtype)
    assert torch.equal(s, apart)
    torch.testing.assert_close(y, rms_norm(apart, 24, weight))
    grads = [torch.randn_like(y), torch.randn_like(s)]
    wanted = torch.autograd.grad((rms_norm(apart, 24, weight), apart), (x, residual, weight), grads)
    for g, w in zip(torch.autograd.grad((y, s), (x, residual, weight), grads), wanted, strict=True):
        assert g.dtype == w.dtype
        torch.testing.assert_close(g, w)


def test_either_result_and_either_input_may_want_no_gradient(place: str) -> None:
    inputs = operands((4, 40), 1, place, *[torch.float64] * 3)
    for which in ((0,), (1,), (2,), (0, 2), (0, 1)):
        given = [t if i in which else t.detach() for i, t in enumerate(inputs)]
        wanted = [given[i] for i in which]
        y, s = add_rms_norm(given[0], given[1], 40, given[2], 1e-5)
        apart = given[0] + given[1]
        pairs = [(y, F.rms_norm(apart, (40,), given[2], 1e-5))] + ([(s, apart)] if which != (2,) else [])
        for got, right in pairs:
            found, exact = (
                torch.autograd.grad(r.sum() ** 2, wanted, retain_graph=True, allow_unused=True) for r in (got, right)
            )
            for g, w in zip(found, exact, strict=True):
                assert g is not None
                torch.testing.assert_close(g, torch.zeros_like(g) if w is None else w)


# All of one length, whose kernels are compiled once.
@pytest.mark.parametrize(("shape", "dims"), [((24,), 1), ((2, 4, 6), 2), ((2, 4, 3), 3)])
def test_any_leading_and_normalized_dimensions_and_strides(device: str, shape: tuple[int, ...], dims: int) -> None:
    inputs = operands(shape, dims, device, *[torch.float64] * 3)
    y, s = add_rms_norm(inputs[0], inputs[1].flip(0), shape[-dims:], inputs[2], 1e-5)
    apart = inputs[0] + inputs[1].flip(0)
    exact = F.rms_norm(apart, shape[-dims:], inputs[2], 1e-5)
    torch.testing.assert_close((y, s), (exact, apart))
    grads = [torch.randn_like(y), torch.randn_like(s)]
    got, wanted = (torch.autograd.grad(r, inputs, grads) for r in ((y, s), (exact, apart)))
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,)])
def test_nothing_gives_nothing_and_gradients_of_zeros(place: str, shape: tuple[int, ...]) -> None:
    x, residual, weight = operands(shape, 1, place, *[torch.float32] * 3)
    y, s = add_rms_norm(x, residual, shape[-1], weight)
    assert y.shape == s.shape == shape
    (y.sum() + s.sum()).backward()
    assert (residual.grad.shape, weight.grad.tolist()) == (x.shape, [0.0] * shape[-1])  # type: ignore[union-attr]


def test_second_derivatives_and_transforms(place: str) -> None:
    inputs = operands((2, 4), 1, place, *[torch.float64] * 3)
    call = lambda x, r, w: add_rms_norm(x, r, 4, w, 1e-3)  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, inputs)
    given = [x.detach() for x in inputs]
    grads = torch.func.grad(lambda *t: sum(r.sin().sum() for r in call(*t)), argnums=(0, 1, 2))(*given)
    apart = given[0] + given[1]
    wanted = torch.func.grad(
        lambda x, r, w: F.rms_norm(x + r, (4,), w, 1e-3).sin().sum() + (x + r).sin().sum(), argnums=(0, 1, 2)
    )(*given)
    torch.testing.assert_close(grads, wanted)
    batched = torch.func.vmap(call, in_dims=(0, None, None))(torch.stack([apart, apart * 2]), given[1], given[2])
    torch.testing.assert_close(batched[1][1], apart * 2 + given[1])


def test_a_compiled_module_trains_as_the_two_modules(device: str) -> None:
    torch.compiler.reset()
    ours, norm = AddRMSNorm((3, 8), device=device), RMSNorm((3, 8), device=device)
    nn.init.uniform_(ours.weight)
    norm.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x, residual = (torch.randn(2, 3, 8, device=device, requires_grad=True) for _ in range(2))
    s = x + residual
    torch.testing.assert_close(compiled(x, residual), (norm(s), s))
    sum(r.sum() for r in compiled(x, residual)).backward()
    wanted = torch.autograd.grad(norm(s).sum() + s.sum(), (x, residual, norm.weight))
    for g, w in zip((x.grad, residual.grad, ours.weight.grad), wanted, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize(
    ("of", "kind", "words"),
    [
        (lambda x, w: add_rms_norm([1.0], x, 1), TypeError, "add_rms_norm: `x` must be a Tensor, got list"),  # type: ignore[arg-type]
        (lambda x, w: add_rms_norm(x, 1.0, 8), TypeError, "add_rms_norm: `residual` must be a Tensor, got float"),  # type: ignore[arg-type]
        (lambda x, w: add_rms_norm(x, x, 8, "w"), TypeError, "add_rms_norm: `weight` must be a Tensor, got str"),
        (lambda x, w: add_rms_norm(x, x[:1], 8), ValueError, r"`residual` must have shape \(3, 8\), got \(1, 8\)"),
        (lambda x, w: add_rms_norm(x, x.long(), 8), TypeError, "`residual` must have dtype float16 .*, got int64"),
        (lambda x, w: add_rms_norm(x.long(), x.long(), 8), TypeError, "`x` must have dtype float16 .*, got int64"),
        (lambda x, w: add_rms_norm(x, x, 8, w.long()), TypeError, "`weight` must have dtype float16 .*, got int64"),
        (lambda x, w: add_rms_norm(x, x, 7), RuntimeError, "add_rms_norm: Given normalized_shape=\\[7\\], expected input"),
        (lambda x, w: add_rms_norm(x, x, 8, w[:7]), RuntimeError, "add_rms_norm: Expected weight to be of same shape"),
        (lambda x, w: add_rms_norm(x, x, 8, w, "small"), TypeError, "`eps` must be a number .*, got 'small'"),
        (lambda x, w: add_rms_norm(x, x.to("meta"), 8, w), ValueError, "`residual` must be on the device of `x`"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(device: str, of: Any, kind: type[Exception], words: str) -> None:
    x, _, weight = operands((3, 8), 1, device, *[torch.float32] * 3)
    with pytest.raises(kind, match=words):
        of(x.detach(), weight.detach())


def test_the_sum_is_normalised_as_memory_holds_it() -> None:
    """In bfloat16 256 + 1 is 256; a norm of 257 would show in the next element."""
    x, residual = torch.full((1, 1024), 256.0).bfloat16(), torch.ones(1, 1024).bfloat16()
    x[0, 0], residual[0, 0] = 1, 0
    with cupyops.simulate():
        y, s = add_rms_norm(x, residual, 1024, eps=0.0)
    assert s.tolist() == [[1.0] + [256.0] * 1023]
    assert torch.equal(y, (s.double() / s.double().square().mean().sqrt()).bfloat16())


def test_kernels_are_declared_ahead_for_every_dtype() -> None:
    """``python -m cupyops compile`` compiles what is declared, and allows no warning, and no spill on sm_90."""
    declared = {(k.name, *types.values()) for k in AHEAD for types in k.type_choices()}
    for kind in ("", "_backward", "_without_weight", "_without_weight_backward"):
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            assert any(name == f"add_rms_norm{kind}" and set(of) == {dtype} for name, *of in declared), (kind, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_exported_operator_is_of_standard_operators(dtype: torch.dtype, tmp_path: Path) -> None:
    onnx_support = pytest.importorskip("tests.onnx.onnx_support")
    x, weight = torch.randn(3, 4, 6).to(dtype), torch.rand(4, 6).to(dtype)
    model = onnx_support.Model(lambda x, r: (*add_rms_norm(x, r, 6), *add_rms_norm(x, r, (4, 6), weight, 1e-3)))
    path = tmp_path / "m.onnx"
    cupyops.torch.export_onnx(model, (x, x / 4), path, dynamic_shapes=({0: "batch"}, {0: "batch"}))
    assert not [name for name in onnx_support.nodes(path) if "::" in name]
    x = torch.randn(7, 4, 6).to(dtype)
    for got, wanted in zip(onnx_support.run(path, x, x / 4), model(x, x / 4), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted)


def test_the_gradient_of_the_sum_is_one_result_of_the_operator() -> None:
    assert _add_rms_norm.backward is not None
    returns = [r.name for r in _add_rms_norm.backward.op._schema.returns]
    assert returns == ["grad_x", "grad_weight"]
