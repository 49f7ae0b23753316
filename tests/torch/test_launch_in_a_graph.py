"""A kernel that a function launches while torch.compile traces the function."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops import Kernel, Threads, Tuned
from tests import preloaded

TEXT = """extern "C" __global__ void twice(
    const float* x,  // (n)
    float* y,        // (n)
    int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""
TWICE, EACH = Kernel(TEXT, "twice", Threads("n")), Kernel(TEXT, "twice")
TUNED = Tuned([TWICE, Kernel(TEXT, "twice", Threads("n", block=64))])

# The first launch of a program is in a compiled function.
FIRST = """
import warnings
warnings.simplefilter("error")
{}
kernel = cupyops.Kernel({!r}, "twice", cupyops.Threads("n"))
import torch
def f(x):
    y = torch.empty_like(x)
    kernel(x, y, x.numel())
    return y + 1
from torch._dynamo.utils import counters
with cupyops.simulate():
    print(torch.compile(f, backend="aot_eager")(torch.ones(3)).tolist())
print(counters["frames"]["total"])
"""


def called(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    TWICE(x, y, n=x.numel())
    return y + 1


def per_call(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    EACH[x.numel()](x, y, x.numel())
    return y + 1


def launched(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    TWICE.launch_vouched(x, y, x.numel())
    return y + 1


def tuned(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    TUNED(x, y, x.numel())
    return y + 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        TWICE(x, y, x.numel())
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        y = torch.empty_like(grad)
        TWICE(grad.contiguous(), y, grad.numel())
        return y


def recorded(x: Tensor) -> Tensor:
    found: Tensor = Doubled.apply(x)
    return found + 1


@pytest.mark.parametrize("function", [called, per_call, launched, tuned, recorded])
def test_a_launch_breaks_the_graph_without_warnings(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = torch.ones(3, requires_grad=function is recorded)
    with cupyops.simulate(), warnings.catch_warnings():
        warnings.simplefilter("ignore" if function is recorded else "error")  # Dynamo warns of each autograd.Function
        for _ in range(2):
            y = torch.compile(function, backend="aot_eager")(x)
    assert y.tolist() == [3, 3, 3]
    # The function, the forward of the autograd.Function, and what is after their breaks; no function of this package.
    assert torch._dynamo.utils.counters["frames"]["total"] <= 4
    if function is recorded:
        with cupyops.simulate():
            y.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("function", [called, per_call, launched, tuned])
def test_a_launch_in_a_whole_graph_is_refused_in_words(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    message = (
        "have the body of a cupyops.torch.Operator launch the kernel, and call the Operator in the\\s+compiled function"
    )
    with cupyops.simulate(), pytest.raises(torch._dynamo.exc.Unsupported, match=message):
        torch.compile(function, backend="aot_eager", fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize(
    "imports", ["import torch, cupyops", pytest.param("import cupyops", marks=pytest.mark.thorough)]
)
def test_the_first_launch_of_a_program_is_not_traced(imports: str) -> None:
    """The launch imports cupyops.torch. A kernel may be older than the import of PyTorch."""
    code = FIRST.format(imports, TEXT)
    if "torch" in imports:
        found = preloaded.run(["-c", code])
    else:
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.split("\n")[0] == "[3.0, 3.0, 3.0]"
    assert int(found.stdout.split("\n")[1]) <= (3 if "torch" in imports else 12)  # hundreds, if the import is traced
