"""The mechanism that makes operators, on a sample operator of a stranger's; no GPU needed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops.torch import Operator


def reference(x: Tensor, factor: float) -> Tensor:
    return x.sin() * factor


def body(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def test_gradient_of_the_reference_where_none_is_declared() -> None:
    op = Operator("cupyops_test::wave(Tensor x, float factor) -> Tensor", body, reference=reference)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for call in (lambda x: op(x, 2.0), lambda x: op.op(x, 2.0)):
        assert torch.autograd.gradcheck(call, x)
        assert torch.autograd.gradgradcheck(call, x)
    third = x
    for _ in range(3):
        (third,) = torch.autograd.grad(op.op(x, 2.0).sum() if third is x else third.sum(), x, create_graph=True)
    torch.testing.assert_close(third, -2 * x.cos())


def test_several_outputs_and_undefined_gradients() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y

    op = Operator("cupyops_test::both(Tensor x, Tensor y) -> (Tensor, Tensor)", both, reference=both)
    x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    first, _ = op.op(x, y)
    grad_x, grad_y = torch.autograd.grad(first.sum(), (x, y))
    torch.testing.assert_close(grad_x, y)
    torch.testing.assert_close(grad_y, x)
    assert torch.autograd.gradcheck(op.op, (x, y))
    only = torch.autograd.grad(op.op(x.detach(), y)[0].sum(), y)
    torch.testing.assert_close(only[0], x)


@pytest.mark.parametrize(
    ("policy", "dtype"), [("float32", torch.float32), ("lower", torch.bfloat16), (None, torch.float16)]
)
def test_autocast_policies(policy: str | None, dtype: torch.dtype) -> None:
    op = Operator(
        f"cupyops_test::cast_{policy}(Tensor x, float factor) -> Tensor", body, reference=reference, autocast=policy
    )
    x = torch.randn(4).half()
    assert op(x, 1.0).dtype == torch.float16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(x, 1.0).dtype == dtype
        assert op(x.double(), 1.0).dtype == torch.float64
        compiled = torch.compile(lambda x: op(x, 1.0), fullgraph=True, backend="aot_eager")
        assert compiled(x).dtype == dtype
    half = torch.randn(4, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        op(half, 1.0).float().sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.float16


def test_fake_kernel_is_the_body() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def rows(x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError("rows: `x` must have 2 dimensions")
        return x.new_empty(x.shape[0])

    op = Operator("cupyops_test::rows(Tensor x) -> Tensor", rows, reference=lambda x: x.sum(1))
    with FakeTensorMode():
        assert op(torch.empty(3, 4, device="cuda")).shape == (3,)
        with pytest.raises(ValueError, match="must have 2 dimensions"):
            op(torch.empty(3, device="cuda"))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("(Tensor[] xs) -> Tensor", "take each tensor as an argument of its own, .*, got `xs` in"),
        ("(Tensor x, Tensor[] ws) -> Tensor", "take each tensor as an argument of its own, .*, got `ws` in"),
        ("(Tensor x, Tensor?[] ws) -> Tensor", "take each tensor as an argument of its own, .*, got `ws` in"),
        ("(Tensor x, Tensor[]? ws) -> Tensor", "take each tensor as an argument of its own, .*, got `ws` in"),
        ("(Tensor x) -> Tensor[] ys", "return tensors, each as a result of its own"),
        ("(Tensor x) -> (Tensor, Tensor[])", "return tensors, each as a result of its own"),
        ("(Tensor x) -> (Tensor, int)", "return tensors, each as a result of its own"),
    ],
)
def test_a_list_of_tensors_does_not_lose_its_gradient(schema: str, words: str) -> None:
    """Autograd and the dispatch know the tensors that are arguments and results themselves."""
    with pytest.raises(ValueError, match=f"Operator: `schema` must {words}"):
        Operator(f"tests::listed{schema}", lambda *args: args, backward=lambda grad_out: grad_out)


def test_vmap_of_a_random_reference_follows_the_randomness_that_was_asked_for() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    op = Operator("cupyops_test::noisy(Tensor x) -> Tensor", noisy, reference=noisy)
    x = torch.zeros(3, 4)
    different = torch.func.vmap(op, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    same = torch.func.vmap(op, randomness="same")(x)
    assert torch.equal(same[0], same[1])


def test_declarations_are_checked() -> None:
    with pytest.raises(ValueError, match="`schema` must begin with a namespace"):
        Operator("wave(Tensor x) -> Tensor", body, reference=reference)
    with pytest.raises(ValueError, match="`autocast` must be None, 'float32' or 'lower', got 'half'"):
        Operator("cupyops_test::x(Tensor x) -> Tensor", body, reference=reference, autocast="half")
    with pytest.raises(ValueError, match="`schema` must name its tensors first"):
        Operator("cupyops_test::late(float factor, Tensor x) -> Tensor", body, reference=reference)


def test_integers_get_no_gradient_and_no_grad_is_honoured() -> None:
    op = Operator("cupyops_test::quiet(Tensor x, float factor) -> Tensor", body, reference=reference)
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not op(x, 1.0).requires_grad
    with torch.inference_mode():
        assert op.op(x, 1.0).is_inference()


def test_forgotten_operators_free_their_name() -> None:
    import gc

    for _ in range(2):
        op = Operator("cupyops_test::again(Tensor x, float factor) -> Tensor", body, reference=reference)
        assert op(torch.zeros(2), 1.0).tolist() == [0.0, 0.0]
        del op
        gc.collect()


@pytest.mark.simulator
def test_another_may_record_the_gradient() -> None:
    calls: list[str] = []

    def spied(x: Tensor, factor: float) -> Tensor:
        calls.append("body")
        return reference(x, factor)

    def record(apply: Callable[..., Tensor], x: Tensor, factor: float) -> Tensor:
        calls.append("record")
        return apply(x, factor) if factor > 1 else reference(x, factor)

    op = Operator("cupyops_test::recorded(Tensor x, float factor) -> Tensor", spied, reference=reference, record=record)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    with cupyops.simulate():
        op(x.detach(), 1.0)
        assert calls == ["body"]  # nothing to record
        for factor, expected in ((1.0, ["record"]), (2.0, ["record", "body"])):
            calls.clear()
            (grad,) = torch.autograd.grad(op(x, factor).sum(), x)
            assert calls == expected
            torch.testing.assert_close(grad, factor * x.cos())


@pytest.mark.parametrize(
    ("schema", "body", "words"),
    [
        ("(Tensor x, int n) -> Tensor y", lambda x, n: x, "`y` in the memory of `x`"),
        ("(Tensor x, int n) -> Tensor", lambda x, n: x.view(-1) if n > 1 else x * 1, "`out` in the memory of `x`"),
        (
            "(Tensor x, Tensor? w, int n) -> (Tensor, Tensor)",
            lambda x, w, n: (x * 2, w[:1]),
            "`out1` in the memory of `w`",
        ),
        ("(Tensor x, int n) -> (Tensor a, Tensor b)", lambda x, n: (x * 1,) * 2, "`b` in the memory of `a`"),
        ("(Tensor x, int n) -> (Tensor a, Tensor b)", lambda x, n: (x * 1).chunk(2), "`b` in the memory of `a`"),
    ],
)
def test_a_result_in_the_memory_of_another_tensor_is_refused(schema: str, body: Any, words: str) -> None:
    """A later write to one would change the other, and autograd and a compiler know of none."""
    op = Operator(f"mechanism::in_memory_of_another{schema}", body)
    x = torch.ones(4)
    tensors = (x, x.clone())[: 1 + ("Tensor?" in schema)]
    for n in (2, 2):  # in every call
        with cupyops.simulate(), pytest.raises(RuntimeError, match=words):
            op(*tensors, n)
    with pytest.raises(RuntimeError, match=words):
        torch.compile(lambda *args: op(*args), backend="eager", fullgraph=True)(*tensors, 2)
    op = Operator(f"mechanism::in_memory_of_another{schema}", body, reference=body)
    for call in (op, op.op):
        with pytest.raises(RuntimeError, match=f"the reference returned {words}"):
            call(*tensors, 2)
        with cupyops.simulate(), pytest.raises(RuntimeError, match=f"the body returned {words}"):
            call(*tensors, 2)
