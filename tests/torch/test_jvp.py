"""A declared ``jvp``: kernels compute the tangents, transforms nest, and no transform silently loses a tangent."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

import autograd_bridge as bridge
import cupyops
from cupyops.launch import recording
from cupyops.torch import Operator
from cupyops.torch.check.scale import _end_forward_mode
from cupyops.torch.core.gradients import Schema, gradient_of
from tests.conftest import CUDA
from tests.support import EACH_FLOAT

SIMULATED = pytest.mark.parametrize(
    "backend", [pytest.param("simulator", marks=pytest.mark.simulator), CUDA], indirect=True
)
X, T = torch.randn(2, 6, 8, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    yield
    _end_forward_mode()


def kernels_of(run: Callable[[], Any]) -> list[str]:
    """The names of the kernels that a call launches."""
    with recording.recorded() as launches:
        run()
    return [launch.kernel.name for launch in launches]


def dual(f: Callable[[Tensor], Tensor], x: Tensor, t: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent


def jvp(f: Callable[[Tensor], Tensor], x: Tensor, t: Tensor) -> Any:
    return torch.func.jvp(f, (x,), (t,))[1]


def batched(f: Callable[[Tensor], Tensor], x: Tensor, t: Tensor) -> Any:
    return torch.func.vmap(lambda t: jvp(f, x, t))(torch.stack((t, -t)))[0]


def product(f: Callable[[Tensor], Tensor], x: Tensor, t: Tensor) -> Any:
    """The Hessian of a loss times the tangent: forward mode over reverse mode."""
    return jvp(torch.func.grad(lambda x: f(x).sin().sum()), x, t)


def layer_norm(x: Tensor) -> Tensor:
    y: Tensor = bridge.layer_norm(x, 8, torch.linspace(1, 2, 8, dtype=x.dtype, device=x.device))
    return y


PATHS = {"dual numbers": dual, "jvp": jvp, "vmap of jvp": batched, "jvp of grad": product}


@SIMULATED
@pytest.mark.parametrize(
    ("path", "gelu", "norm"),
    [
        ("dual numbers", ["gelu_forward", "gelu_backward"], ["layer_norm", "layer_norm_jvp"]),
        ("jvp", ["gelu_forward", "gelu_backward"], ["layer_norm", "layer_norm_jvp"]),
        ("vmap of jvp", ["gelu_forward", "gelu_backward"], ["layer_norm"]),
        ("jvp of grad", ["gelu_forward", "gelu_backward"], ["layer_norm", "layer_norm_jvp"]),
    ],
)
def test_tangents_come_from_kernels(path: str, gelu: list[str], norm: list[str], device: str) -> None:
    """The reference computed them, in several passes over memory."""
    run, x, t = PATHS[path], X.to(device), T.to(device)
    assert kernels_of(lambda: run(bridge.gelu, x, t))[:2] == gelu
    assert kernels_of(lambda: run(layer_norm, x, t))[: len(norm)] == norm


@pytest.mark.sample(2)
@SIMULATED
@pytest.mark.parametrize("dtype", EACH_FLOAT)
def test_a_tangent_is_as_near_to_float64_as_a_result(dtype: torch.dtype, device: str) -> None:
    def of(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (40,), w, b) if x.dtype == torch.float64 else bridge.layer_norm(x, 40, w, b)

    primals = [(torch.randn(s, dtype=torch.float64) + 1).to(dtype) for s in ((5, 40), (40,), (40,))]
    tangents = [torch.randn(p.shape).to(dtype) for p in primals]
    right = torch.func.jvp(of, tuple(p.double() for p in primals), tuple(t.double() for t in tangents))[1]
    on = [[x.to(device) for x in xs] for xs in (primals, tangents)]
    ours = torch.func.jvp(lambda x, w, b: bridge.layer_norm(x, 40, w, b), tuple(on[0]), tuple(on[1]))[1]
    close = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours.cpu().double(), right, rtol=close, atol=close * float(right.abs().max()))
    wide = torch.float32
    rounded = torch.func.jvp(lambda x: bridge.layer_norm(x, 40, dtype=wide), (on[0][0],), (on[1][0],))[1]
    assert rounded.dtype == wide
    tangent = jvp(bridge.gelu, *(xs[0] for xs in on))
    wanted = jvp(F.gelu, primals[0].double(), tangents[0].double())
    torch.testing.assert_close(tangent.cpu().double(), wanted, rtol=close, atol=close)


@SIMULATED
def test_layouts_of_a_tangent_do_not_matter(device: str) -> None:
    x, t = X.to(device), T.to(device)
    for f in (bridge.gelu, layer_norm):
        wanted = jvp(f, x, t)
        for path in (jvp, dual):
            torch.testing.assert_close(path(f, x, t.t().contiguous().t()), wanted)
            torch.testing.assert_close(path(f, x.t().contiguous().t(), t), wanted)
            torch.testing.assert_close(path(f, x, t[:, :1].expand(6, 8)), jvp(f, x, t[:, :1].repeat(1, 8)))


@SIMULATED
def test_forward_mode_within_forward_mode_keeps_both_tangents(device: str) -> None:
    """PyTorch drops the outer tangent while it calls the jvp of a Function: the derivative was 0."""
    x, t = X.to(device), T.to(device)

    def twice(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        found: Tensor = jvp(lambda y: jvp(f, y, t).sin(), x, t)
        return found

    def theirs(x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        normalized = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)
        return normalized * torch.linspace(1, 2, 8, dtype=x.dtype, device=x.device)

    for ours, right in ((bridge.gelu, F.gelu), (layer_norm, theirs)):
        torch.testing.assert_close(twice(ours, x), twice(right, x))
        grad = torch.func.grad(lambda x, f=ours: twice(f, x).sin().sum())(x)
        torch.testing.assert_close(grad, torch.func.grad(lambda x, f=right: twice(f, x).sin().sum())(x))


@SIMULATED
def test_a_gradient_of_dual_numbers_has_its_tangent(device: str) -> None:
    """Autograd saved x without its tangent: the gradient's tangent lacked the second derivative."""
    x, t = X.to(device), T.to(device)

    def of_gradient(f: Callable[[Tensor], Tensor]) -> Any:
        with forward_ad.dual_level():
            leaf = x.clone().requires_grad_()
            loss = f(forward_ad.make_dual(leaf, t)).sin().sum()
            (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
            return forward_ad.unpack_dual(grad).tangent

    for f in (bridge.gelu, layer_norm):
        torch.testing.assert_close(of_gradient(f), product(f, x, t))


# Under torch.compile


def _inside(f: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return torch.compile(lambda x, t: dual(f, x, t), backend="aot_eager")


def _outside(f: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda x, t: dual(torch.compile(f, backend="aot_eager"), x, t)


def _func(f: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return torch.compile(lambda x, t: jvp(f, x, t), backend="aot_eager")


@pytest.mark.sample(5)
@pytest.mark.simulator
@pytest.mark.parametrize("simulated", [False, True], ids=["reference", "simulator"])
@pytest.mark.parametrize("path", [_func, _inside, _outside], ids=["jvp", "dual level inside", "dual level outside"])
@pytest.mark.parametrize("f", [bridge.gelu, layer_norm, bridge.GELU()], ids=["gelu", "layer_norm", "module"])
def test_torch_compile_gives_the_tangent_or_an_error(f: Any, path: Any, simulated: bool) -> None:
    """Dynamo drops the jvp of an autograd.Function without a word."""
    torch.compiler.reset()
    wanted = jvp(f, X, T)
    with cupyops.simulate(simulated):
        try:
            found = path(f)(X, T)
        except Exception:
            return
    assert found is not None, "the tangent was lost"
    torch.testing.assert_close(found, wanted)


def test_a_derivative_of_a_tangent_of_layer_norm_is_compiled_right() -> None:
    """A compiled graph took PyTorch's layer norm, whose derivative of a tangent is wrong."""
    torch.compiler.reset()
    x, t = torch.randn(2, 6, 8, dtype=torch.float64), torch.randn(2, 6, 8, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        found: Tensor = jvp(lambda x: bridge.layer_norm(x, 8), x, t).sin().sum()
        return found

    def gradient() -> Any:
        return torch.func.grad(loss)(x)

    torch.testing.assert_close(torch.compile(gradient, backend="aot_eager")(), gradient())


# Operators of users


def _product(x: Tensor, w: Tensor) -> Tensor:
    return x * w


def _moved(tangent_x: Tensor, tangent_w: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return tangent_x * w + x * tangent_w


def _gradient(grad_y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return grad_y * w, grad_y * x


SCHEMA = "jvp_test::product{}(Tensor x, Tensor w) -> Tensor y"


@pytest.mark.simulator
def test_a_declared_jvp_without_a_reference() -> None:
    op = Operator(SCHEMA.format(1), _product, backward=_gradient, jvp=_moved)
    assert op.jvp is not None
    assert op.jvp.name.startswith("product1_jvp")
    for run in (dual, jvp, batched):
        torch.testing.assert_close(run(lambda x: op(x, X), X, T), T * X)  # no tangent of w: zeros
    torch.testing.assert_close(torch.func.jvp(op, (X, X), (T, T))[1], 2 * T * X)
    with torch.no_grad():
        torch.testing.assert_close(dual(lambda x: op(x, X.clone().requires_grad_()), X, T), T * X)
    with pytest.raises(RuntimeError, match="product1 has no forward mode for tensors that require grad: give it a ref"):
        dual(lambda x: op(x, X.clone().requires_grad_()), X, T)
    with pytest.raises(RuntimeError, match="product1 has no forward mode within forward mode: give it a reference"):
        jvp(lambda y: jvp(lambda x: op(x, X), y, T), X, T)


@pytest.mark.simulator
def test_tangents_of_a_user_are_differentiated_by_the_reference() -> None:
    op = Operator(SCHEMA.format(2), _product, backward=_gradient, jvp=_moved, reference=_product)
    with cupyops.simulate():
        hessian = torch.func.hessian(lambda x: op(x, x.cos()).sin().sum())(X)
        twice = jvp(lambda y: jvp(lambda x: op(x, x.cos()), y, T), X, T)
    torch.testing.assert_close(hessian, torch.func.hessian(lambda x: (x * x.cos()).sin().sum())(X))
    torch.testing.assert_close(twice, jvp(lambda y: jvp(lambda x: x * x.cos(), y, T), X, T))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_the_gradient_of_a_reference_has_the_tangents_of_its_inputs(mode: Callable[[], Any]) -> None:
    gradient = gradient_of(
        lambda x: x**3, Schema.parse("jvp_test::cube(Tensor x) -> Tensor y"), ("grad_y", "x"), ("x",)
    )
    assert gradient is not None
    with mode():
        tangent = dual(lambda x: gradient(T, x), X, T)
    torch.testing.assert_close(tangent, 6 * X * T * T)
    assert not tangent.requires_grad


def test_a_parameter_with_the_default_none_gets_no_zeros() -> None:
    seen = []

    def moved(tangent_x: Tensor, x: Tensor, w: Tensor, tangent_w: Tensor | None = None) -> Tensor:
        seen.append(tangent_w)
        return tangent_x * w

    op = Operator(SCHEMA.format(3), _product, jvp=moved)
    torch.testing.assert_close(dual(lambda x: op(x, X), X, T), T * X)
    assert seen == [None]


def test_a_jvp_gives_no_tangent_of_a_result_that_is_not_differentiable() -> None:
    def square(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x, x.sign()

    op = Operator(
        "jvp_test::square(Tensor x) -> (Tensor y, Tensor sign)",
        square,
        backward=lambda grad_y, x: 2 * x * grad_y,
        jvp=lambda tangent_x, x: 2 * x * tangent_x,
    )
    (y, sign), (moved, of_sign) = torch.func.jvp(op, (X,), (T,))
    torch.testing.assert_close((y, sign, moved), (*square(X), 2 * X * T))
    assert not of_sign.any()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda tangent_x, x, w: x, "its jvp must take `tangent_w`; it takes tangent_x, x, w"),
        (
            lambda tangent_x, tangent_v, x, w: x,
            "its jvp asks for `tangent_v`; did you mean 'tangent_.'.*; there are tangent_x",
        ),
    ],
)
def test_a_jvp_of_other_arguments_is_refused_by_name(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"product4: {words}"):
        Operator(SCHEMA.format(4), _product, jvp=function, reference=_product)


def test_an_operator_that_writes_has_no_jvp() -> None:
    with pytest.raises(ValueError, match="fill writes to x, so it can have no gradient"):
        Operator("jvp_test::fill(Tensor(a!) x) -> ()", lambda x: None, jvp=lambda tangent_x, x: x)
