"""Operators whose bodies read values of tensors, in compiled graphs and in exports."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import cupyops
from cupyops import Kernel, Threads
from cupyops.torch import Operator, check_op

TEXT = """
extern "C" __global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
SCALE = Kernel(TEXT, "scale", Threads("n"))


def by_item(x: Tensor, g: Tensor) -> Tensor:
    """Reads a number, on which no step depends."""
    y = torch.empty_like(x)
    SCALE(x, y, g.item(), x.numel())
    return y


def by_branch(x: Tensor, g: Tensor) -> Tensor:
    """A function with a step that depends on a value."""
    y = torch.empty_like(x)
    if g.item() > 0:
        SCALE(x, y, float(g), x.numel())
    return y


def by_seed(x: Tensor, g: Tensor) -> Tensor:
    y = torch.empty_like(x)
    SCALE(x, y, 0.0 * int(torch.randint(9, (1,))) + float(g.numpy()), x.numel())
    return y


def repeated(x: Tensor, g: Tensor) -> Tensor:
    """A function with a result whose size is a value."""
    rows = int(g)
    y = x.new_empty(rows, x.numel())
    SCALE(x.expand(rows, -1).contiguous(), y, 1.0, y.numel())
    return y


def product(x: Tensor, g: Tensor) -> Tensor:
    return x * g


def like(x: Tensor, g: Tensor) -> Tensor:
    return torch.empty_like(x)


def rows_like(x: Tensor, g: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.numel())


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    torch._dynamo.reset()
    with cupyops.simulate():
        yield


class Called(torch.nn.Module):
    def __init__(self, op: Operator) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: Tensor, g: Tensor) -> Tensor:
        return self.op(x, g) + 1


CASES = [
    pytest.param(by_item, {}, [7, 7, 7], id="item"),
    pytest.param(by_item, {"reference": product}, [7, 7, 7], id="item with a reference"),
    pytest.param(by_branch, {"reference": product}, [7, 7, 7], id="branch with a reference"),
    pytest.param(by_branch, {"fake": like}, [7, 7, 7], id="branch with a fake"),
    pytest.param(by_seed, {"fake": like, "reference": product}, [7, 7, 7], id="seed with a fake"),
    pytest.param(repeated, {"fake": rows_like}, [[3, 3, 3], [3, 3, 3]], id="size with a fake"),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("how", ["eager", "graph breaks", "aot_eager", "inductor", "export", "strict export"])
@pytest.mark.parametrize(("body", "options", "wanted"), CASES)
def test_a_body_that_reads_a_value(body: Callable[..., Any], options: Any, wanted: Any, how: str) -> None:
    op = Operator("cupyops_test::reads(Tensor x, Tensor g) -> Tensor", body, **options)
    g = torch.tensor(2 if body is repeated else 3.0)
    x, model = torch.full((3,), 2.0), Called(op)
    call: Callable[..., Any] = model
    if "export" in how:
        call = torch.export.export(model, (x, g), strict=how == "strict export").module()
    elif how == "graph breaks":
        call = torch.compile(model, backend="aot_eager")
    elif how != "eager":
        call = torch.compile(model, fullgraph=True, backend=how)
    assert call(x, g).tolist() == wanted


def test_a_gradient_that_reads_a_value() -> None:
    def backward(grad_y: Tensor) -> Tensor:
        grad = torch.empty(3)
        SCALE(torch.ones(3), grad, grad_y.item(), 3)
        return grad

    op = Operator("cupyops_test::summed(Tensor x) -> Tensor y", lambda x: x.sum(), backward=backward)
    for backend in ("eager", "aot_eager", "inductor"):
        x = torch.ones(3, requires_grad=True)
        (torch.compile(lambda x: op(x) * 2, fullgraph=True, backend=backend)(x)).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("body", [by_branch, by_seed])
def test_a_body_whose_steps_depend_on_a_value_says_what_to_give(body: Callable[..., Any]) -> None:
    op = Operator(f"cupyops_test::unknown_{body.__name__}(Tensor x, Tensor g) -> Tensor", body)
    message = f"unknown_{body.__name__}: the steps of the body depend on a value of a tensor.*give\n? *the Operator `fake=`, a function"
    g = torch.tensor(3.0)
    with pytest.raises(Exception, match=message):
        torch.compile(Called(op), fullgraph=True, backend="eager")(torch.ones(3), g)
    with pytest.raises(Exception, match=message):
        torch.export.export(Called(op), (torch.ones(3), g))
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
        op(mode.from_tensor(torch.ones(3)), mode.from_tensor(g))


def test_another_error_of_a_body_stays() -> None:
    def broken(x: Tensor, g: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    op = Operator("cupyops_test::broken(Tensor x, Tensor g) -> Tensor", broken, reference=product)
    with FakeTensorMode() as mode, pytest.raises(ZeroDivisionError, match="mine"):
        op(mode.from_tensor(torch.ones(3)), mode.from_tensor(torch.ones(())))


def test_an_operator_with_a_fake_passes_check_op_and_writes_in_place() -> None:
    def written(x: Tensor, g: Tensor) -> None:
        by_branch_into(x, g)

    def by_branch_into(x: Tensor, g: Tensor) -> None:
        if g.item() > 0:
            SCALE(x, x, float(g), x.numel())

    name = "cupyops_test::whole(Tensor x, Tensor g) -> Tensor y"
    op = Operator(name, by_branch, fake=like, reference=product, inplace=written)
    check_op(op, (torch.rand(3), torch.tensor(3.0)), checks="fakes")
    x = torch.full((3,), 2.0)
    torch.compile(lambda x, g: op.inplace(x, g), fullgraph=True, backend="aot_eager")(x, torch.tensor(3.0))
    assert x.tolist() == [6, 6, 6]
