"""A call of an operator decides once whether kernels are simulated, while other threads enter and leave simulation."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

import autograd_bridge as bridge
import cupyops
from cupyops import Kernel, Threads, simulator
from cupyops.torch import Operator

pytestmark = pytest.mark.simulator

TWICE = Kernel(
    'extern "C" __global__ void twice_here(const float* x, float* y, int n) '
    "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }",
    "twice_here",
    Threads("n"),
)


def twice(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    TWICE(x, y, x.numel())
    return y


class Twice(torch.autograd.Function):
    forward = staticmethod(twice)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Tensor:
        return twice(grad_y.contiguous())


PARTS: dict[str, dict[str, Any]] = {
    "declared": {"implementation": twice, "backward": lambda grad_y: twice(grad_y.contiguous())},
    "function": {"implementation": Twice},
    "with a reference": {"implementation": Twice, "reference": lambda x: x * 2},
    "both": {
        "implementation": twice,
        "backward": lambda grad_y: twice(grad_y.contiguous()),
        "reference": lambda x: x * 2,
    },
}


@pytest.mark.parametrize("through", ["the operator", "torch.ops"])
@pytest.mark.parametrize("kind", PARTS)
def test_a_block_of_another_thread_that_ends_within_a_call_changes_nothing_for_it(kind: str, through: str) -> None:
    left = ExitStack()

    def leaving(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def body(*args: Any) -> Tensor:
            left.close()
            return run(*args)

        return body

    parts = dict(PARTS[kind])
    if isinstance(parts["implementation"], type):
        members = {"forward": staticmethod(leaving(twice)), "backward": staticmethod(leaving(Twice.backward))}
        parts["implementation"] = type("Leaving", (Twice,), members)
    else:
        parts["implementation"] = leaving(twice)
        parts["backward"] = lambda grad_y: leaving(twice)(grad_y.contiguous())
    op = Operator("cupyops_test::left(Tensor x) -> Tensor y", **parts)
    call = op if through == "the operator" else op.op
    x = torch.ones(3, requires_grad=True)
    left.enter_context(cupyops.simulate())
    y = call(x)
    assert not simulator.enabled()
    left.enter_context(cupyops.simulate())
    y.sum().backward()
    assert not simulator.enabled()
    assert y.tolist() == x.grad.tolist() == [2, 2, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", PARTS)
def test_a_gradient_whose_forward_was_simulated_is_right_after_the_block(kind: str) -> None:
    op = Operator("cupyops_test::behind(Tensor x) -> Tensor y", **PARTS[kind])
    x = torch.ones(3, requires_grad=True)
    with cupyops.simulate():
        y = op(x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_an_operator_without_a_reference_changes_nothing_for_other_threads() -> None:
    inside, done = threading.Event(), threading.Event()
    seen: list[bool] = []

    def body(x: Tensor) -> Tensor:
        seen.append(simulator.enabled())
        inside.set()
        assert done.wait(60)
        return twice(x)

    op = Operator("cupyops_test::alone(Tensor x) -> Tensor y", body)
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(op(torch.ones(3))))
    thread.start()
    assert inside.wait(60)
    x = torch.ones(3, requires_grad=True)
    try:
        assert not simulator.enabled()
        bridge.gelu(x).sum().backward()
    finally:
        done.set()
        thread.join()
    torch.testing.assert_close(x.grad, torch.func.grad(lambda x: torch.nn.functional.gelu(x).sum())(torch.ones(3)))
    assert (seen, found[0].tolist()) == ([True], [2, 2, 2])


def test_a_body_may_enter_and_leave_simulation_itself() -> None:
    seen: list[bool] = []

    def body(x: Tensor) -> Tensor:
        with cupyops.simulate(False):
            seen.append(simulator.enabled())
            bridge.gelu(x)  # its reference
        with cupyops.simulate(sanitize=True):
            return twice(x)

    op = Operator("cupyops_test::within(Tensor x) -> Tensor y", body)
    assert op(torch.ones(3)).tolist() == [2, 2, 2]
    assert (seen, simulator.enabled()) == ([False], False)


def test_threads_that_train_beside_one_that_simulates() -> None:
    """A step of five operators, forward and backward, while another thread enters and leaves simulation."""
    weight, ones, errors = torch.eye(4), torch.ones(4), []
    stop = threading.Event()

    def step(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = bridge.layer_norm(x, (4,), ones, None)
        y = bridge.softmax(bridge.linear(bridge.gelu(y), weight), -1)
        bridge.cross_entropy(y, torch.tensor([0, 1, 2])).backward()
        assert x.grad is not None
        return x.grad

    x = torch.randn(3, 4)
    right = step(x)
    with cupyops.simulate():
        step(x)  # compiles

    def switching() -> None:
        while not stop.is_set():
            with cupyops.simulate():
                bridge.gelu(ones)
            with cupyops.simulate(False):
                twice_alone(ones)

    def training() -> None:
        try:
            for _ in range(40):
                torch.testing.assert_close(step(x), right, rtol=1e-4, atol=1e-6)
        except Exception as error:
            errors.append(error)

    twice_alone = Operator("cupyops_test::twice_alone(Tensor x) -> Tensor y", twice)
    threads = [threading.Thread(target=training) for _ in range(2)]
    other = threading.Thread(target=switching)
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    other.join()
    assert not errors
