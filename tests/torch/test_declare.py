"""Declaring an operator: a backward by the names of its parameters, no reference, rules, mutation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import cupyops
from cupyops import Kernel, Threads
from cupyops.simulator import simulate
from cupyops.torch import Operator, operator

TEXT = """
extern "C" __global__ void times(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    acc_t factor, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(factor * acc_t(x[i]));
}
extern "C" __global__ void in_place(
    scalar_t* x,  // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) x[i] = scalar_t(2 * acc_t(x[i]));
}
"""
TIMES, IN_PLACE = (Kernel(TEXT, name, Threads("n")) for name in ("times", "in_place"))


def times(x: Tensor, factor: float) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    TIMES(x, y, factor, x.numel())
    return y


def doubled(x: Tensor) -> None:
    IN_PLACE(x, x.numel())


# A backward by names


def test_a_backward_gets_what_its_parameters_name() -> None:
    given = {}

    def body(a: Tensor, weight: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
        return a * factor, a.sum(-1)

    def backward(
        grad_y: Tensor, weight: Tensor | None, total: Tensor, a: Tensor, want_weight: bool, factor: float
    ) -> tuple[Tensor, None]:
        given.update(locals())
        return grad_y * factor, None

    op = Operator(
        "declare_test::named(Tensor a, Tensor? weight, float factor) -> (Tensor y, Tensor total)",
        body,
        backward=backward,
        reference=body,
    )
    a = torch.randn(3, 4, requires_grad=True)
    with cupyops.simulate():
        y, total = op(a, None, 2.5)
        assert y.requires_grad
        assert not total.requires_grad, "its gradient is not taken, so it has none"
        y.backward(torch.ones_like(y))
    assert torch.equal(a.grad, torch.full_like(a, 2.5))
    assert torch.equal(given["a"], a)
    assert torch.equal(given["total"], a.sum(-1))
    assert (given["weight"], given["want_weight"], given["factor"]) == (None, False, 2.5)


def test_only_the_gradients_named_by_wrt_are_expected() -> None:
    op = Operator(
        "declare_test::one_of_two(Tensor x, Tensor index) -> Tensor y",
        lambda x, index: x[index],
        backward=lambda grad_y, x, index: torch.zeros_like(x).index_add_(0, index, grad_y),
        wrt="x",
    )
    x = torch.randn(5, requires_grad=True)
    op(x, torch.tensor([1, 1, 3])).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]


def test_the_gradient_of_a_reference_has_memory_of_its_own() -> None:
    """Both gradients of a sum are the incoming gradient, which an operator must not return."""
    op = Operator(
        "declare_test::plus(Tensor x, Tensor w) -> Tensor y",
        torch.add,
        backward=lambda grad_y, x, w: (grad_y.clone(), grad_y.clone()),
        reference=torch.add,
    )
    x, w, grad_y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True), torch.randn(3)
    grads = torch.autograd.grad(op.op(x, w), (x, w), grad_y)
    assert all(torch.equal(grad, grad_y) for grad in grads)
    assert len({t.data_ptr() for t in (*grads, grad_y)}) == 3


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (lambda grad_z, x: grad_z, r"asks for `grad_z`; did you mean 'grad_y'\?; there are grad_y, x, y, want_x"),
        (lambda x: x, r"must take the gradient of a result, `grad_y`; it takes \['x'\]"),
    ],
)
def test_a_backward_that_asks_for_what_there_is_not_is_refused(backward: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Operator("declare_test::wrong(Tensor x) -> Tensor y", lambda x: x.clone(), backward=backward)


def test_two_differentiable_results_get_zeros_for_the_one_that_is_not_used() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    def backward(grad_y: Tensor, grad_z: Tensor, x: Tensor) -> Tensor:
        return 2 * grad_y + 3 * grad_z

    op = Operator(
        "declare_test::two(Tensor x) -> (Tensor y, Tensor z)", both, backward=backward, reference=both, elementwise=True
    )
    x = torch.randn(4, dtype=torch.double, requires_grad=True)
    for call in (op, op.op):
        with cupyops.simulate(call is op):
            assert torch.autograd.grad(call(x)[1].sum(), x)[0].tolist() == [3.0] * 4
            assert torch.autograd.gradcheck(call, x)
    stacked = torch.func.vmap(op)(x.detach().reshape(2, 2))
    torch.testing.assert_close(stacked, (x.detach().reshape(2, 2) * 2, x.detach().reshape(2, 2) * 3))


@pytest.mark.parametrize("through_library", [False, True])
def test_the_gradient_of_a_declared_gradient_is_the_references(
    backend: str, device: str, through_library: bool
) -> None:
    op = Operator(
        "declare_test::cube(Tensor x, float factor) -> Tensor y",
        lambda x, factor: times(x * x * x, factor),
        backward=lambda grad_y, x, factor: times(grad_y * x * x, 3 * factor),
        reference=lambda x, factor: factor * x**3,
    )
    x = torch.randn(4, dtype=torch.double, device=device, requires_grad=True)
    call = op.op if through_library else op
    assert torch.autograd.gradcheck(lambda x: call(x, 0.5), x)
    assert torch.autograd.gradgradcheck(lambda x: call(x, 0.5), x)


@pytest.mark.parametrize("reads", ["grad_z", "z"])
def test_the_gradient_of_a_result_that_is_none_is_none(reads: str) -> None:
    def both(x: Tensor, want: bool) -> tuple[Tensor, Tensor | None]:
        return 2 * x, x * x if want else None

    def of_gradient(grad_y: Tensor, grad_z: Tensor | None, x: Tensor, want: bool) -> Tensor:
        return 2 * grad_y if grad_z is None else 2 * grad_y + 2 * x * grad_z

    def of_result(grad_y: Tensor, grad_z: Any, z: Tensor | None, x: Tensor, want: bool) -> Tensor:
        return 2 * grad_y if z is None else 2 * grad_y + 2 * x * grad_z

    schema = f"declare::maybe_{reads}(Tensor x, bool want) -> (Tensor y, Tensor? z)"
    op = Operator(schema, both, backward={"grad_z": of_gradient, "z": of_result}[reads], reference=both)

    def total(function: Any, x: Tensor, want: bool) -> Tensor:
        y, z = function(x, want)
        return y.sum() if z is None else y.sum() + z.sin().sum()

    compiled = torch.compile(lambda x, want: op(x * 1, want), backend="aot_eager", fullgraph=True)
    for want in (False, True):
        x = torch.randn(3, requires_grad=True)
        (first,) = torch.autograd.grad(total(both, x, want), x, create_graph=want)
        for function in (op, op.op, compiled):
            torch.testing.assert_close(*torch.autograd.grad(total(function, x, want), x), first)
        torch.testing.assert_close(torch.func.grad(lambda x, want=want: total(op, x, want))(x.detach()), first)
        if want:
            found, right = (torch.autograd.grad(total(f, x, True), x, create_graph=True)[0].sum() for f in (op, both))
            torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(right, x))


def test_a_complex_result_has_the_gradient_of_the_reference() -> None:
    def turned(x: Tensor) -> Tensor:
        return torch.complex(x.cos(), x.sin())

    op = Operator("declare_test::turned(Tensor x) -> Tensor y", turned, reference=turned)
    x = torch.randn(4, dtype=torch.double, requires_grad=True)
    for call in (op, op.op):
        assert torch.autograd.gradcheck(call, x)


def test_an_operator_without_any_gradient_says_so_when_it_is_asked() -> None:
    op = Operator("declare_test::none(Tensor x) -> Tensor y", lambda x: x.clone())
    y = op(torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match="none has no gradient: declare it with backward="):
        y.sum().backward()


# No reference


@pytest.mark.simulator
def test_without_a_reference_a_cpu_runs_the_kernel() -> None:
    op = Operator(
        "declare_test::times(Tensor x, float factor=3.0) -> Tensor y",
        times,
        backward=lambda grad_y, factor: times(grad_y, factor),
    )
    x = torch.randn(3, 5, requires_grad=True)
    y = op(x)
    torch.testing.assert_close(y, 3 * x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))
    torch.testing.assert_close(op(x, factor=2.0), 2 * x)
    compiled = torch.compile(lambda x: op(x + 1, 2.0), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), 2 * (x + 1))
    torch.testing.assert_close(torch.func.vmap(op)(x.detach()), 3 * x.detach())
    torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(x.detach()), torch.full_like(x, 3.0))
    assert not cupyops.simulator.enabled()
    with pytest.raises(RuntimeError, match="has no gradient"):
        (grad,) = torch.autograd.grad(op(x).square().sum(), x, create_graph=True)
        grad.sum().backward()


@pytest.mark.parametrize("name", ["k", "int", "isinstance"])
def test_a_number_stands_for_a_list_of_equal_numbers(name: str) -> None:
    given: list[Any] = []

    def body(x: Tensor, k: Any, f: Any, b: Any) -> Tensor:
        given.append((k, f, b))
        return x * k[0]

    schema = f"declare_test::spread(Tensor x, int[2] {name}=1, float[3]? f=None, int[1] b=2) -> Tensor"
    op = Operator(schema, body, backward=lambda grad_out: grad_out)
    x = torch.ones(2, requires_grad=True)
    for args in ((), (3,), ([3, 4],), (3, 2.0, 5), (3, [1.0, 2.0, 3.0], [5]), (3, None)):
        for call in (op, op.op):
            call(x, *args)
        assert given[-2] == given[-1]
    assert given[-3] == ([3, 3], [1.0, 2.0, 3.0], [5])
    assert given[-5] == ([3, 3], [2.0, 2.0, 2.0], [5])
    torch._dynamo.reset()
    for value in (3, 4, 5):
        found = torch.compile(lambda x, k: op(x, **{name: k}) + 1, fullgraph=True, backend="aot_eager")(x, value)
        assert found.tolist() == [value + 1] * 2
        assert [*given[-1][0]] == [value, value]


@pytest.mark.parametrize("reference", [None, lambda x, n: (torch.cat((x, x)), x.sum(-1).half())])
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2), (2, 0, 3)])
def test_vmap_over_a_batch_of_none(reference: Any, shape: tuple[int, ...]) -> None:
    def body(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat((x, x)), x.sum(-1).half()

    def backward(grad_y: Tensor, x: Tensor, n: Tensor) -> Tensor:
        return grad_y[: len(x)] + grad_y[len(x) :]

    schema = "declare_test::of_none(Tensor x, Tensor n) -> (Tensor y, Tensor z)"
    op = Operator(schema, body, backward=backward, wrt=["x"], reference=reference)
    x, n = torch.ones(shape, requires_grad=True), torch.ones(4)
    dim = shape.index(0)
    one = torch.ones([k for k in shape if k])
    with simulate():
        y, z = torch.vmap(op, in_dims=(dim, None))(x, n)
        wanted = op(one, n)
        assert [(*k.shape,) for k in (y, z)] == [(0, *k.shape) for k in wanted]
        assert (y.dtype, z.dtype) == (torch.float32, torch.float16)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad.shape == x.shape
        grads = torch.vmap(torch.func.grad(lambda x, n: op(x, n)[0].sum()), in_dims=(dim, None))(x.detach(), n)
        assert grads.shape == (0, *one.shape)
        nested = torch.vmap(torch.vmap(op, in_dims=(0, None)), in_dims=(dim, None))
        if x.dim() == 3:
            assert nested(x, n)[0].shape[0] == 0


def test_a_rule_for_vmap_is_taken() -> None:
    seen = []

    def rule(info: object, in_dims: tuple[int | None, ...], x: Tensor, factor: float) -> tuple[Tensor, int]:
        seen.append(in_dims)
        return x * factor, in_dims[0]

    op = Operator(
        "declare_test::ruled(Tensor x, float factor) -> Tensor y", times, reference=lambda x, f: x * f, vmap=rule
    )
    x = torch.randn(2, 3)
    torch.testing.assert_close(torch.func.vmap(lambda x: op(x, 2.0), in_dims=1)(x), 2 * x.t())
    assert seen == [(1, None)]


# Arguments that are written to


@pytest.fixture
def doubling() -> Operator:
    return operator("declare_test::double_(Tensor(a!) x) -> ()")(doubled)


@pytest.mark.simulator
def test_what_is_written_to_is_counted_and_traced(doubling: Operator) -> None:
    x = torch.ones(3)
    before = x._version
    assert doubling(x) is None
    assert x.tolist() == [2.0, 2.0, 2.0]
    assert x._version > before

    def program(x: Tensor) -> Tensor:
        y = x + 1
        doubling(y)
        return y * 10

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 40.0))
    torch.library.opcheck(doubling.op, (torch.ones(3),), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.simulator
def test_autograd_notices_that_what_it_has_saved_was_overwritten(doubling: Operator) -> None:
    x = torch.ones(3, requires_grad=True)
    saved = x * 1
    y = saved.square()
    doubling(saved.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_each_of_several_arguments_that_are_written_to_is_counted() -> None:
    def both_doubled(x: Tensor, y: Tensor) -> None:
        for written in (x, y):
            written.numpy()[...] *= 2  # PyTorch does not see it

    op = operator("declare_test::double_both_(Tensor(a!) x, Tensor(b!) y) -> ()")(both_doubled)
    for call in (op, op.op):
        x, y = torch.ones(3), torch.ones(3)
        versions = x._version, y._version
        call(x, y)
        assert x._version > versions[0]
        assert y._version > versions[1]


def test_writing_to_what_requires_grad_is_refused(doubling: Operator) -> None:
    with pytest.raises(RuntimeError, match=r"double_ writes to `x`, and one of its tensors requires grad: .*no_grad"):
        doubling(torch.ones(3, requires_grad=True))
    with pytest.raises(ValueError, match="double_ writes to x, so it can have no gradient"):
        Operator("declare_test::double_(Tensor(a!) x) -> ()", doubled, backward=lambda x: x)
    with pytest.raises(ValueError, match="`schema` must have results of their own, not views of arguments"):
        Operator("declare_test::view(Tensor(a) x) -> Tensor(a)", lambda x: x)


def test_keyword_only_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="`schema` must have no keyword-only arguments"):
        Operator("declare_test::keywords(Tensor x, *, float factor) -> Tensor", times)


# What comes back


def paths(op: Operator, x: Tensor) -> dict[str, Callable[[], object]]:
    """Each way on which a body is called, and its backward."""

    def differentiated(function: Callable[..., Any], copy: Callable[..., Tensor] = torch.clone) -> object:
        found = function(copy(x).requires_grad_())
        return (found if isinstance(found, Tensor) else found[0]).sum().backward()

    def on_fakes() -> object:
        mode = FakeTensorMode()
        with mode:
            return differentiated(op, mode.from_tensor)

    def compiled() -> Callable[..., Any]:
        return torch.compile(lambda x: op(x), backend="aot_eager", fullgraph=True)

    def straight() -> object:
        return differentiated(op.call.__globals__["apply"])

    return {
        "a call": lambda: differentiated(op),
        "the way of plain tensors on a GPU": straight,
        "the registered operator": lambda: differentiated(op.op),
        "on fakes": on_fakes,
        "compiled": lambda: differentiated(compiled()),
        "torch.func": lambda: torch.func.grad(lambda x: op(x).sum())(x),
    }


WRONG_RESULTS: dict[str, tuple[str, Any, str]] = {
    "nothing": ("Tensor y", lambda x: None, "the body returned None; it must return 1 tensor (y)"),
    "a number": ("Tensor y", lambda x: 3.0, "the body returned a float; it must return 1 tensor (y)"),
    "one too many": ("Tensor y", lambda x: (x * 2, x * 3), "the body returned 2 tensors; it must return 1 tensor (y)"),
    "a tuple of one": (
        "Tensor y",
        lambda x: (x * 2,),
        "the body returned a tuple of (Tensor); it must return 1 tensor (y)",
    ),
    "one too few": (
        "(Tensor y, Tensor z)",
        lambda x: x * 2,
        "the body returned 1 tensor; it must return 2 tensors (y, z)",
    ),
    "one that is none": (
        "(Tensor y, Tensor z)",
        lambda x: [x * 2, None],
        "the body returned a list of (Tensor, None); it must return 2 tensors (y, z)",
    ),
}


@pytest.mark.parametrize("path", list(paths(None, None)))  # type: ignore[arg-type]
@pytest.mark.parametrize("fault", WRONG_RESULTS)
def test_a_body_that_returns_something_else_is_said_on_every_path(fault: str, path: str) -> None:
    results, body, words = WRONG_RESULTS[fault]
    op = Operator(f"declare_test::returns(Tensor x) -> {results}", body, backward=lambda grad_y: grad_y * 2)
    with simulate(), pytest.raises(Exception) as caught:
        paths(op, torch.randn(3))[path]()
    assert f"declare_test::returns: {words}" in str(caught.value)


@pytest.mark.parametrize("path", [r for r in paths(None, None) if r != "the registered operator"])  # type: ignore[arg-type]
@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (lambda grad_y: None, "returned None"),
        (lambda grad_y: (grad_y * 2, grad_y * 2), "returned 2 tensors"),
        (lambda grad_y, want_x: (grad_y, None), "returned a tuple of (Tensor, None)"),
    ],
)
def test_a_backward_that_returns_something_else_is_said_on_every_path(path: str, backward: Any, words: str) -> None:
    op = Operator("declare_test::goes_back(Tensor x) -> Tensor y", lambda x: x * 2, backward=backward)
    with simulate(), pytest.raises(Exception) as caught:
        paths(op, torch.randn(3))[path]()
    assert f"declare_test::goes_back: the backward {words}; it must return 1 tensor (grad_x)" in str(caught.value)


def test_results_are_looked_at_in_the_first_of_the_calls_that_go_straight_to_the_body() -> None:
    """Later ones pay nothing for it."""
    given = [None]

    def body(x: Tensor) -> Any:
        return given[0] if given else x * 2

    op = Operator("declare_test::straight(Tensor x) -> Tensor y", body)
    scope = op.call.__globals__
    x = torch.ones(3)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="declare_test::straight: the body returned None"):
            scope["body"](x)
    given.clear()
    assert scope["body"](x).tolist() == [2.0, 2.0, 2.0]
    assert scope["body"] is op.body


def test_results_that_may_be_none_or_are_no_tensors_are_let_through() -> None:
    maybe = Operator("declare_test::maybe(Tensor x) -> (Tensor, Tensor?)", lambda x: (x * 2, None))
    nothing = Operator("declare_test::nothing(Tensor(a!) x) -> ()", lambda x: None)
    with simulate():
        assert maybe(torch.ones(2))[1] is None
        assert nothing(torch.ones(2)) is None


@pytest.mark.simulator
def test_what_is_written_to_may_have_the_negative_bit() -> None:
    text = """extern "C" __global__ void grow(scalar_t* x /* (n) */, const scalar_t* y /* (n) */, long long n) {
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) x[i] = acc_t(2) * acc_t(x[i]) + acc_t(y[i]);
    }"""
    kernel = Kernel(text, "grow", Threads("n"))
    op = Operator("cupyops_test::grow(Tensor(a!) x, Tensor y) -> ()", lambda x, y: kernel(x, y, x.numel()))
    x, y = torch.randn(5, dtype=torch.complex64).conj().imag, torch.randn(5)
    wanted, version = 2 * x + y, x._version
    with cupyops.simulate():
        op(x, y)
    assert x.is_neg()
    torch.testing.assert_close(x, wanted)
    assert x._version > version
