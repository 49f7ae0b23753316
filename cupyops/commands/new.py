"""``python -m cupyops new NAME``: writes a starter file of an operator: kernels, declaration, tests and benchmark."""

import argparse
import importlib.util
import keyword
import re
from pathlib import Path
from typing import Any

__all__ = ["STARTER", "add_parser", "starter"]

# The starter file, with the placeholder NAME for the operator's name.
STARTER = r'''"""NAME: y = x * sigmoid(x) and its gradient, as a PyTorch operator. Put your own formula in its place.

`python -m pytest NAME.py` tests the kernels on this machine's GPU, and on its CPU in the simulator. `python NAME.py`
times them on a GPU.
"""

import pytest
import torch
from cupyops import Elementwise, Kernel
from cupyops.torch import Operator, bench_op, check_op, checks_for

# scalar_t is the dtype of the tensors. acc_t is the dtype of the arithmetic (float for 16-bit tensors). The comment
# after a pointer is the tensor's shape, which every call checks. `map` is an elementwise loop at memory speed. To write
# the threads yourself, leave out `map`, and use Threads("n") or Rows("M") in place of Elementwise("n").
TEXT = r"""
#include "elementwise.cuh"
#include "scalar.cuh"

__device__ __forceinline__ acc_t sigmoid(acc_t x) { return acc_t(1) / (acc_t(1) + exp(-x)); }

// y = x * s with s = sigmoid(x)
extern "C" __global__ void NAME_forward(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    long long n) {
    map(n, [](scalar_t element) {
            const acc_t x = convert<acc_t>(element);
            return convert<scalar_t>(x * sigmoid(x));
        },
        y, x);
}

// dy/dx = s + x * s * (1 - s) = s * (1 + x * (1 - s))
extern "C" __global__ void NAME_backward(
    const scalar_t* __restrict__ grad_y,  // (n)
    const scalar_t* __restrict__ x,       // (n)
    scalar_t* __restrict__ grad_x,        // (n)
    long long n) {
    map(n, [](scalar_t grad, scalar_t element) {
            const acc_t x = convert<acc_t>(element), s = sigmoid(x);
            return convert<scalar_t>(convert<acc_t>(grad) * s * (acc_t(1) + x * (acc_t(1) - s)));
        },
        grad_x, grad_y, x);
}
"""
FORWARD = Kernel(TEXT, "NAME_forward", Elementwise("n"))
BACKWARD = Kernel(TEXT, "NAME_backward", Elementwise("n"))


# The bodies allocate the results and launch the kernels. Stream, device, pointers and grid are set automatically.


def forward_body(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    FORWARD(x, y, x.numel())
    return y


def backward_body(grad_y, x):
    grad_y, x = grad_y.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    BACKWARD(grad_y, x, grad_x, x.numel())
    return grad_x


# The same in PyTorch, for tensors on a CPU, and for the tests to compare with.


def reference(x):
    return x * torch.sigmoid(x)


def backward_reference(grad_y, x):
    s = torch.sigmoid(x)
    return grad_y * s * (1 + x * (1 - s))


class Function(torch.autograd.Function):
    forward = staticmethod(forward_body)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_y):
        return None if grad_y is None else NAME_backward(grad_y, *ctx.saved_tensors)


NAME = Operator("mylib::NAME(Tensor x) -> Tensor", Function, reference=reference, elementwise=True)
NAME_backward = Operator(
    "mylib::NAME_backward(Tensor grad_y, Tensor x) -> Tensor",
    backward_body,
    reference=backward_reference,
    elementwise=True,
)


# Tests and benchmark


def samples(device):
    """Returns one tuple of arguments per code path. The tests differentiate by tensors that require gradients."""
    return [(torch.randn(37, 29, device=device, requires_grad=True),)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("check", checks_for(NAME))
def test_NAME(check, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    check_op(NAME, samples(device), checks=check, skip=pytest.skip)


def benchmark(n=1 << 26, dtype=torch.bfloat16):
    if not torch.cuda.is_available():
        raise SystemExit("the benchmark needs a GPU")
    bench_op(NAME, (torch.randn(n, device="cuda", dtype=dtype),), peers={"torch.compile": torch.compile(reference)})


if __name__ == "__main__":
    benchmark()
'''


def starter(name: str) -> str:
    """Returns the starter file for an operator of this name.

    Raises:
        ValueError: the name is not valid for a module, a function and a kernel, or the name is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"NAME must be a lower-case identifier and no keyword, got {name!r}")
    if re.search(rf"\b{name}\b", STARTER) or importlib.util.find_spec(name) is not None:
        raise ValueError(f"NAME {name!r} is already used in the file or by a module; choose another")
    return STARTER.replace("NAME", name)


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``new`` to the command line."""
    parser = commands.add_parser(
        "new",
        help="write a starter file for an operator of your own",
        description="Writes NAME.py: kernels, declaration, passing tests and benchmark of an operator.",
        epilog="Exit status: 0 if the file is written, else 2. An existing file is never overwritten.",
    )
    parser.add_argument("name", metavar="NAME", help="name of the operator, such as swish")
    parser.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="default: the current folder")
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0.

    Raises:
        SystemExit: with status 2, if the name is invalid or the file cannot be written.
    """
    path = options.into / f"{options.name}.py"
    try:
        if path.exists():
            raise FileExistsError(0, "it is there already")
        text = starter(options.name)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        options.parser.error(f"{path}: {problem.strerror}")
    except ValueError as problem:
        options.parser.error(str(problem))
    print(f"{path}: next, python -m pytest {path}, and on a GPU python {path}")
    return 0
