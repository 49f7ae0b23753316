"""Prints what the files of `own_ops` show when they are run: results and gradients beside PyTorch's, and the errors of
both."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cupyops import simulate
from cupyops.errors import MissingDependencyError
from cupyops.simulator import host
from cupyops.torch import Operator

from .command import run_command

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def running(op: Operator) -> Iterator[str]:
    """Run the operator's kernels in the block on the GPU, or without a GPU in the simulator. Yields the name of the
    device."""
    if DEVICE == "cuda":
        yield f"on {torch.cuda.get_device_name()}"
    elif not (lacking := host.missing()):
        with simulate():
            yield "on a CPU, its kernels in the simulator"
    elif op.reference is None:
        raise MissingDependencyError(f"without a GPU, {op.name} needs the simulator: {lacking}")
    else:
        yield f"on a CPU, through its reference: {lacking}"


def show(op: Operator, peer: Callable[..., Tensor], says: str, wrt: Sequence[str] = (), **inputs: Any) -> None:
    """Run an operator and PyTorch's own form of it, forward and backward, and print both with their errors.

    Args:
        peer: PyTorch's form of the operator, with the same arguments.
        says: the feature that the operator demonstrates.
        wrt: names of the inputs to differentiate by; all floating tensors by default.
        inputs: the arguments by name, tensors on :data:`DEVICE`.
    """
    names = list(wrt) or [n for n, x in inputs.items() if isinstance(x, Tensor) and x.is_floating_point()]

    def derive(function: Callable[..., Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
        given = {
            n: x.detach().to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in inputs.items()
        }
        for name in names:
            given[name].requires_grad_()
        y = function(*given.values())
        grad = torch.cos(torch.arange(y.numel(), device=y.device, dtype=torch.float64)).view_as(y).to(y.dtype)
        return [y.detach(), *torch.autograd.grad(y, [given[n] for n in names], grad)]

    with running(op) as where:
        ours = derive(op)
    shapes = ", ".join(f"{n} {tuple(x.shape)}" for n, x in inputs.items() if isinstance(x, Tensor))
    print(f"{op.qualified_name} of {shapes}, {where}")
    print(f"  {'':12} {'this operator':<36} {'PyTorch':<36} error, and PyTorch's")
    rows = ["y", *(f"grad_{n}" for n in names)]
    for name, a, b, exact in zip(rows, ours, derive(peer), derive(peer, torch.float64), strict=True):
        first, second = (" ".join(f"{v:<10.4g}" for v in x.flatten()[:3].tolist()) + "..." for x in (a, b))
        errors = [float((x - exact).abs().max() / exact.abs().max()) for x in (a, b)]
        print(f"  {name:12} {first:<36} {second:<36} {errors[0]:.1e}, {errors[1]:.1e}")
    print("An error is the largest difference from PyTorch in float64, over the largest value.")
    print(says)


def run(name: str, action: Callable[[], object]) -> None:
    """Run the part of a file behind ``if __name__ == "__main__"``; an expected error is one line."""
    torch.manual_seed(0)
    raise SystemExit(run_command(name, action))
