"""Prints what runs: the kernels or PyTorch's operations in a training run, and in the files of `own_ops` results and
gradients compared with PyTorch's, with the errors of both."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cupyops import simulate
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.launch import recording
from cupyops.simulator import enabled, host
from cupyops.torch import Operator

from .command import run_command, say

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


def what_runs(
    options: argparse.Namespace,
    device: torch.device,
    names: tuple[str, str],
    model: nn.Module,
    loss: Callable[[], Tensor],
    echo: Callable[[str], object] = say,
) -> None:
    """Print what computes the model: kernels, or PyTorch's operations in their place, as on every CPU.

    In the second case, run the kernels in the simulator on one batch, forward and backward, and print the largest
    difference from PyTorch, as a share of the largest value of the same tensor.

    Args:
        options: `backend`, if the example has PyTorch's own, and `parallel` of a run in several processes, which is not simulated.
        names: of the project's operators, and of PyTorch's.
        loss: the loss of one batch, by the model.
    """
    if getattr(options, "backend", "kernels") == "torch":
        echo(f"backend: torch ({names[1]})")
    elif device.type != "cpu" or enabled():
        echo(f"backend: kernels ({names[0]}){' in the simulator' if device.type == 'cpu' else ''}")
    else:
        echo(f"backend: PyTorch's operations: on a CPU they run in place of the kernels of {names[0]}")
        if not getattr(options, "parallel", None):
            echo(f"kernels: {simulated_beside_pytorch(model, loss)}")


def simulated_beside_pytorch(model: nn.Module, loss: Callable[[], Tensor]) -> str:
    """Runs a batch by PyTorch's operations and by kernels in the simulator; returns which kernels, and the difference."""

    def run() -> list[Tensor]:
        y = loss()
        return [y.detach(), *torch.autograd.grad(y, [p for p in model.parameters() if p.requires_grad])]

    wanted, began = run(), time.perf_counter()
    try:
        with simulate(), recording.recorded() as launches:
            got = run()
    except (CompileError, MissingDependencyError) as error:  # the run itself needs no compiler
        return f"not simulated: {str(error).splitlines()[0]}"
    seconds = time.perf_counter() - began
    kernels = ", ".join(dict.fromkeys(launch.kernel.name for launch in launches))
    if not kernels:
        return "none on this batch: PyTorch computes it on a GPU, too"
    off = max(float((x - y).abs().max()) / (float(y.abs().max()) or 1.0) for x, y in zip(got, wanted, strict=True))
    same = f"same as PyTorch to {off:.0e}" if off else "the same bits as PyTorch"
    return f"{kernels}, simulated on one batch: {same}, in {seconds:.1f} s"


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
    """Run the part of a file after ``if __name__ == "__main__"``; an expected error is one line."""
    torch.manual_seed(0)
    raise SystemExit(run_command(name, action))
