"""The parts of derivatives of any order: pullbacks, contexts, references of programs. Needs no GPU."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

import autograd_bridge as bridge
import cupyops
from cupyops import Kernel, Threads
from cupyops.torch import Operator, elementwise, row_reduce
from cupyops.torch.core.gradients import pullback

SCALE = """extern "C" __global__ void scale(const scalar_t* x /* (n) */, scalar_t* y /* (n) */, acc_t factor, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(factor * acc_t(x[i]));
}"""


def _scaled(x: Tensor, factor: float) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    kernel = Kernel(SCALE, "scale", Threads("n"))
    kernel(x, y, factor, x.numel())
    return y


def test_a_pullback_takes_partial_derivatives_of_primals_that_depend_on_one_another() -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    w, g = x.sin(), x.cos()
    grad_x, grad_w = pullback(lambda a, b: (a * b,), [x, w], [g])
    torch.testing.assert_close((grad_x, grad_w), (g * w, g * x))
    (second,) = torch.autograd.grad(grad_w.sum(), x)  # Σ x·cos x
    torch.testing.assert_close(second, x.cos() - x * x.sin())


def test_a_pullback_leaves_none_where_nothing_depends() -> None:
    x, y = torch.randn(2, 3)
    found = pullback(lambda a, b: (a * 2,), [x, y], [torch.ones(3)])
    assert found[1] is None
    assert pullback(lambda a: (a.detach(),), [x], [torch.ones(3)]) == [None]


def test_references_do_not_follow_autocast() -> None:
    def reference(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    op = Operator("cupyops_test::product(Tensor x, Tensor w) -> Tensor", reference, reference=reference)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for y in (op(x, w), op.op(x, w), torch.func.vmap(op.call)(x.unsqueeze(0), w.unsqueeze(0))):
            assert y.dtype == torch.float32
        y = op(x, w)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, w.sum(1).expand(3, 4), rtol=1e-6, atol=1e-6)


@pytest.mark.simulator
def test_an_operator_without_a_reference_is_batched_within_a_gradient() -> None:
    back = Operator("cupyops_test::scaled_back(Tensor grad_y, float factor) -> Tensor", _scaled)
    op = Operator("cupyops_test::scaled(Tensor x, float factor) -> Tensor y", _scaled, backward=back)
    x = torch.randn(3, 4, dtype=torch.float64)
    with cupyops.simulate():
        found = torch.func.jacrev(lambda x: op(x, 3.0))(x)
        batched = torch.func.grad(lambda x: torch.func.vmap(lambda row: op(row, 3.0))(x).square().sum())(x)
    torch.testing.assert_close(found.reshape(12, 12), 3 * torch.eye(12, dtype=torch.float64))
    torch.testing.assert_close(batched, 18 * x)


def test_a_second_derivative_that_there_is_not_says_what_would_give_it() -> None:
    def exponential(x: Tensor) -> Tensor:
        return x.exp()

    def backward(grad_y: Tensor, y: Tensor) -> Tensor:
        return grad_y * y

    for reference, mend in ((exponential, "have the backward take `x`, too"), (None, "give the operator a reference")):
        op = Operator("cupyops_test::exp(Tensor x) -> Tensor y", exponential, backward=backward, reference=reference)
        x = torch.zeros(3, requires_grad=True)
        with cupyops.simulate(), pytest.raises(RuntimeError, match=f"exp_backward_.* has no gradient: {mend}"):
            torch.autograd.grad(torch.autograd.grad(op(x).sum(), x, create_graph=True)[0].sum(), x)


def test_a_result_without_a_gradient_takes_none_on_a_cpu_either() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    op = Operator(
        "cupyops_test::one_of(Tensor x) -> (Tensor y, Tensor z)",
        both,
        backward=lambda grad_y, x: grad_y * 2,
        reference=both,
    )
    x = torch.randn(3, requires_grad=True)
    for y, z in (op(x), op.op(x)):
        assert (y.requires_grad, z.requires_grad) == (True, False)


def test_the_third_derivative_of_layer_norm() -> None:
    """PyTorch's own takes the row's statistics for constants there."""

    def formula(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5) * w + b

    x, w, b = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), *torch.randn(2, 5, dtype=torch.float64)
    found = []
    for function in (lambda x: bridge.layer_norm(x, 5, w, b), lambda x: formula(x, w, b)):
        t = function(x).sin().sum()
        for _ in range(3):
            (t,) = torch.autograd.grad(t.sin().sum(), x, create_graph=True)
        found.append(t)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [bridge.LLTM, bridge.LLTMCell])
def test_the_tutorials_state_dict_fits_a_cell(kind: Callable[..., torch.nn.Module]) -> None:
    """The tutorial's modules in C++ and CUDA hold a bias of shape (1, 3·S)."""
    theirs = {"weights": torch.randn(12, 7), "bias": torch.randn(1, 12)}
    cell = kind(3, 4)
    assert cell.load_state_dict(theirs)
    torch.testing.assert_close(cell.state_dict()["bias"], theirs["bias"][0])
    assert theirs["bias"].shape == (1, 12)
    torch.nn.Sequential(cell).load_state_dict({f"0.{k}": v for k, v in theirs.items()})
    with pytest.raises(RuntimeError, match="size mismatch for bias"):
        cell.load_state_dict({**theirs, "bias": torch.randn(2, 12)})


# Other paths


def _by_dual_numbers(f: Callable[[Tensor], Tensor], x: Tensor, *, grad: bool = False) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x.clone().requires_grad_(grad), x.sin()))).tangent


def _by_batched_gradients(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, _basis(y), is_grads_batched=True)[0]


def _basis(y: Tensor) -> Tensor:
    return torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)


def _pulled_late(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    y, pull = torch.func.vjp(f, x)
    with torch.inference_mode():
        return torch.func.vmap(pull)(_basis(y))[0].clone()


def _linearized(f: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the graph that PyTorch makes
        return torch.func.linearize(f, x)[1](x.sin())


def _layer_norm(x: Tensor) -> Tensor:
    """Computes the formula: PyTorch's operator takes the statistics for constants in the gradient of a jvp."""
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)


PYTORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
PATHS: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.sin(),))[1],
    "jvp of grad": lambda f, x: torch.func.jvp(torch.func.grad(lambda x: f(x).sin().sum()), (x,), (x.sin(),))[1],
    "grad of jvp": lambda f, x: torch.func.grad(lambda x: torch.func.jvp(f, (x,), (x.sin(),))[1].sin().sum())(x),
    "vmap of jvp": lambda f, x: torch.func.vmap(lambda t: torch.func.jvp(f, (x,), (t,))[1])(torch.stack((x, x.cos()))),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sin().sum())(x),
    "linearize": _linearized,
    "dual numbers": _by_dual_numbers,
    "dual numbers that require grad": lambda f, x: _by_dual_numbers(f, x, grad=True).detach(),
    "batched gradients": _by_batched_gradients,
    "vectorised jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True),
    "vectorised hessian": lambda f, x: torch.autograd.functional.hessian(lambda x: f(x).sin().sum(), x, vectorize=True),
    "pulled in inference mode": _pulled_late,
}
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "gelu": (bridge.gelu, F.gelu),
    "layer_norm": (lambda x: bridge.layer_norm(x, 3), _layer_norm),
    "linear_gelu": (lambda x: bridge.linear_gelu(x, x.cos()), lambda x: F.gelu(F.linear(x, x.cos()))),
}


@pytest.mark.sample(16)
@pytest.mark.simulator
@pytest.mark.parametrize("simulated", [False, True], ids=["reference", "simulator"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["gelu", "layer_norm", "linear_gelu"])
def test_forward_mode_and_batched_gradients(name: str, path: str, simulated: bool) -> None:
    if path == "pulled in inference mode" and name != "gelu" and PYTORCH < (2, 13):
        pytest.skip("this PyTorch unpacks no saved result of a Function in inference mode")
    x = torch.randn(2, 3, dtype=torch.float64)
    ours, theirs = FUNCTIONS[name]
    wanted = PATHS[path](theirs, x)
    with cupyops.simulate(simulated):
        torch.testing.assert_close(PATHS[path](ours, x), wanted)


@pytest.mark.simulator
@pytest.mark.parametrize("simulated", [False, True], ids=["reference", "simulator"])
def test_torch_ops_under_transforms(simulated: bool) -> None:
    x = torch.randn(2, 3, dtype=torch.float64)

    def ours(x: Tensor) -> Tensor:
        y: Tensor = torch.ops.cupyops.layer_norm(x, None, None, [3], 1e-5)[0]
        return y

    def loss(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: f(x).sin().sum()

    with cupyops.simulate(simulated):
        for path in (
            lambda f: torch.func.grad(loss(f))(x),
            lambda f: torch.func.grad(lambda x: torch.func.grad(loss(f))(x).sin().sum())(x),
            lambda f: torch.func.jacrev(f)(x),
            lambda f: torch.func.vmap(f)(x),
            lambda f: torch.func.vmap(torch.func.grad(loss(f)))(x),
            lambda f: torch.func.jvp(f, (x,), (x.sin(),))[1],
        ):
            torch.testing.assert_close(path(ours), path(_layer_norm))
        for lost in (_by_dual_numbers, _linearized):
            with pytest.raises(
                RuntimeError, match="no forward-mode derivative of layer_norm: call the operator itself"
            ):
                lost(ours, x)


@pytest.mark.simulator
def test_an_operator_without_a_reference_drops_no_tangent() -> None:
    op = Operator("cupyops_test::scaled_alone(Tensor x, float factor) -> Tensor", _scaled)
    x = torch.randn(4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="scaled_alone has no forward-mode derivative: give it a reference"):
        _by_dual_numbers(lambda x: op(x, 2.0), x)
    with pytest.raises(RuntimeError, match="scaled_alone has no forward-mode derivative: give it a reference"):
        torch.func.jvp(lambda x: op(x, 2.0), (x,), (x,))
    with forward_ad.dual_level():
        torch.testing.assert_close(op(x, 2.0), 2 * x)  # nothing to drop


@pytest.mark.simulator
def test_a_kernel_takes_what_is_within_a_wrapper_whose_transform_has_ended() -> None:
    kept: list[Tensor] = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(torch.arange(4.0))  # type: ignore[func-returns-value]
    y = torch.empty(4)
    with cupyops.simulate():
        Kernel(SCALE, "scale", Threads("n"))(kept[0], y, 2.0, 4)
        assert y.tolist() == [0, 2, 4, 6]

        def live(x: Tensor) -> Tensor:
            Kernel(SCALE, "scale", Threads("n"))(x, y, 2.0, 4)
            return x.sum()

        with pytest.raises(RuntimeError, match="a kernel needs a tensor with memory"):
            torch.func.grad(live)(torch.arange(4.0))


# Programs in plain PyTorch


PROGRAMS: dict[str, tuple[str, str]] = {
    "functions": (
        "y = exp(-fabs(x)) + log1p(x * x) - rsqrt(1 + x * x)",
        "grad_x = grad_y * (tanh(x) + erf(0.5 * x) - pow(fabs(x) + 1, 1.5f) + fma(x, y, 2))",
    ),
    "conditions": (
        "y = x > 0 ? x : 0.01f * x",
        "grad_x = (y > 0 && !(y > 1) || y < -0.01) ? grad_y : (y == 0 ? -grad_y : 0.5 * grad_y)",
    ),
    "numbers": (
        "y = x * ((3 + 4) / 2.0)",
        "grad_x = grad_y * ((3 + 4) / 2.0) * (y > 1) + grad_y * (5 % 3) / 4 * acc_t(1)",
    ),
    "limits": ("y = fmin(fmax(x, -1), 1)", "grad_x = max(min(y * y, 0.5f), -INFINITY) * grad_y"),
}


def _simulated_and_own(op: Operator, *args: Any) -> tuple[Any, Any]:
    """The backward's kernels, and what its derivatives are made of."""
    assert op.backward is not None
    assert op.backward.reference is not None
    with cupyops.simulate(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # comparisons of floats in conditions
        return op.backward(*args), op.backward.reference(*args)


@pytest.mark.sample(6)
@pytest.mark.simulator
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_an_elementwise_program_in_pytorch_gives_what_its_kernel_gives(name: str, dtype: torch.dtype) -> None:
    op = elementwise(*PROGRAMS[name], name=f"cupyops_test::{name}")
    grad_y, other = torch.randn(2, 5, 7, dtype=dtype)
    names = [a.name for a in op.backward.op._schema.arguments]  # type: ignore[union-attr]
    kernels, own = _simulated_and_own(
        op, *(grad_y if n == "grad_y" else other.sin() if n == "y" else other for n in names)
    )
    assert own.dtype == dtype
    torch.testing.assert_close(own, kernels)


@pytest.mark.simulator
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_row_program_in_pytorch_gives_what_its_kernel_gives(dtype: torch.dtype) -> None:
    op = row_reduce(
        "m = max(x); s = sum(exp(x - m)); l = m + log(s) + 0 * scale + 0 * target; y = (x - l) * weight * limit",
        backward="""
            d = sum(grad_y * y) / N
            b = min(y) - sum(2 + 0 * y)
            grad_x = (j == target ? grad_y : d) * y + b * scale - grad_l
            grad_weight = column_sum(grad_y * y * (j + 1))
            grad_scale = sum(grad_y * weight) + grad_l
        """,
        name="cupyops_test::mixed",
        rows=["scale"],
        indices=["target"],
        columns=["weight"],
        scalars=["limit"],
        results=["l", "y"],
    )
    M, N = 4, 9
    tensors = {
        "grad_y": torch.randn(M, N, dtype=dtype),
        "grad_l": torch.randn(M, dtype=dtype),
        "y": torch.randn(M, N, dtype=dtype),
        "x": torch.randn(M, N, dtype=dtype),
        "scale": torch.randn(M, dtype=dtype),
        "target": torch.tensor([0, 3, 8, 20]),
        "weight": torch.randn(N),
        "l": torch.randn(M, dtype=dtype),
    }
    if dtype == torch.float64:
        tensors["weight"] = tensors["weight"].double()
    arguments = op.backward.op._schema.arguments  # type: ignore[union-attr]
    given = [tensors.get(a.name, 1.5 if a.name == "limit" else True) for a in arguments]
    kernels, own = _simulated_and_own(op, *given)
    for a, b in zip(own, kernels, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)


def test_what_pytorch_has_no_counterpart_of_is_refused_where_it_is_differentiated() -> None:
    op = elementwise("y = x * 2", backward="grad_x = grad_y * y * __shfl_sync(-1, y, 0)", name="cupyops_test::odd")
    assert op.backward is not None
    assert op.backward.reference is None


def test_a_program_that_reads_its_result_has_all_derivatives() -> None:
    softmax = row_reduce(
        "m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r",
        backward="d = sum(grad_y * y); grad_x = y * (grad_y - d)",
        reference=lambda x: torch.softmax(x, -1),
    )
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    with cupyops.simulate():
        assert torch.autograd.gradcheck(softmax, x)
        assert torch.autograd.gradgradcheck(softmax, x)
        found = torch.autograd.functional.hessian(lambda x: softmax(x).sin().sum(), x)
    wanted = torch.autograd.functional.hessian(lambda x: F.softmax(x, -1).sin().sum(), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.simulator
@pytest.mark.parametrize("simulated", [False, True], ids=["reference", "simulator"])
def test_a_result_of_whole_numbers_stands_in_no_derivatives_way(simulated: bool) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        largest = x.max(-1)
        return largest.values * x.sum(-1), largest.indices

    op = Operator("cupyops_test::largest(Tensor x) -> (Tensor y, Tensor i)", both, reference=both)
    x = torch.randn(2, 3, dtype=torch.float64)
    with cupyops.simulate(simulated):
        for path in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
            found, wanted = (path(lambda x, f=f: f(x)[0])(x) for f in (op, both))
            torch.testing.assert_close(found, wanted)


@pytest.mark.simulator
def test_programs_without_a_reference_have_forward_mode_by_their_expressions() -> None:
    swish = elementwise(
        "y = x / (1 + exp(-x))", backward="s = 1 / (1 + exp(-x)); grad_x = grad_y * s * (1 + x * (1 - s))"
    )
    softmax = row_reduce(
        "m = max(x); e = exp(x - m); y = e / sum(e)", backward="grad_x = y * (grad_y - sum(grad_y * y))"
    )
    x = torch.randn(2, 3, dtype=torch.float64)
    for ours, theirs in ((swish, F.silu), (softmax, lambda x: F.softmax(x, -1))):
        found, wanted = (torch.func.hessian(lambda x, f=f: f(x).sin().sum())(x) for f in (ours, theirs))
        torch.testing.assert_close(found, wanted)


COMPILED: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]] = {
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.sin(),))[1],
    "grad": lambda f: torch.func.grad(lambda x: f(x).sin().sum()),
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).sin().sum())(x).sin().sum()),
    "vmap": torch.func.vmap,
    "jacrev": torch.func.jacrev,
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sin().sum()),
}


@pytest.mark.sample(2)
@pytest.mark.simulator
@pytest.mark.parametrize("simulated", [False, True], ids=["reference", "simulator"])
@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("name", ["gelu", "layer_norm"])
def test_transforms_within_a_compiled_function(name: str, path: str, simulated: bool) -> None:
    """A transform was refused there, and a jvp had tangents of zero."""
    torch.compiler.reset()
    x = torch.randn(2, 3, dtype=torch.float64)
    ours, theirs = FUNCTIONS[name]
    with cupyops.simulate(simulated):
        found = torch.compile(COMPILED[path](ours), fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, COMPILED[path](theirs)(x))
