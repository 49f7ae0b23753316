"""The parts of a family's test data, and functions that the families' files share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import autograd_bridge  # noqa: F401  (declares the operators)
from cupyops.torch.core.operator import operator_of

# Sizes of samples: neither divides the other, and neither is a multiple of a vector's width.
ROWS, COLUMNS = 13, 19

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """An operator, as the tests that hold for every operator call it.

    Attributes:
        ours, theirs: of tensors; PyTorch's own operator for comparison.
        op: its name in ``torch.library``.
        arguments: from the tensors to the arguments of ``op``.
        tensors: how many it takes, all of one shape.
        elementwise: each element of the result is made of the elements at its place alone.
        library: it holds a matrix product of a library, whose bits depend on the layout and on the number of rows.
        atol: how far from PyTorch's own a float32 result may be, beside a relative 1e-4.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    op: Any
    arguments: Callable[..., Arguments]
    tensors: int
    elementwise: bool = True
    atol: float = 1e-6
    library: bool = False

    def through_library(self, *tensors: Tensor) -> Tensor:
        """The result of ``op``: the first, where there are several."""
        found = self.op(*self.arguments(*tensors))
        return found if isinstance(found, Tensor) else found[0]

    def inputs(
        self, device: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (37, 19)
    ) -> list[Tensor]:
        generator = torch.Generator().manual_seed(7)
        return [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(self.tensors)]


class LaunchCase(NamedTuple):
    """A call whose launches the GPU record knows.

    Attributes:
        operator: whose it is.
        about: shapes, dtypes and other differences from similar cases.
        inputs: makes the tensors. Nobody has written their memory: :mod:`tests.gpu.stub_h200` runs no kernel.
        call: of these; what it returns is differentiated by those that require grad.
    """

    operator: str
    about: str
    inputs: Callable[[], list[Tensor]]
    call: Callable[..., Any]

    def run(self, inputs: list[Tensor]) -> None:
        """The call and, where a tensor requires grad, its backward."""
        found = self.call(*inputs)
        results = [y for y in (found if isinstance(found, tuple) else (found,)) if y.requires_grad]
        if results:
            wanted = [x for x in inputs if x.requires_grad]
            torch.autograd.grad(results, wanted, [torch.empty_like(y) for y in results], allow_unused=True)


class Called(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Model(NamedTuple):
    """A module, the shapes of its arguments (or arguments that are not floating), and the dimension of the batch."""

    module: nn.Module
    args: tuple[Any, ...]
    batch: int = 0


@dataclass(frozen=True)
class FamilyData:
    """Test data of a family of operators.

    Attributes:
        cases: the operators, for the tests that hold for every operator.
        samples: for each operator and each gradient, a function that makes the samples for ``check_op``: one sample for
            each way that the arguments can go.
        launches: makes calls whose launches the GPU record knows: forward and backward, with the shapes and dtypes by
            which the operators choose other kernels, geometries and arguments.
        models: by its public name, each function and module as a model that is exported with a dynamic batch.
    """

    cases: Sequence[Case]
    samples: Mapping[str, Callable[[], list[Arguments]]]
    launches: Callable[[], Iterator[LaunchCase]]
    models: Mapping[str, Model]


# Cases


def last(x: Any) -> tuple[int, ...]:
    """The last dimension; any if it is not a tensor."""
    return tuple(getattr(x, "shape", (1,))[-1:])


# Samples


def random(*shape: int, seed: int = 5, scale: float = 1.0) -> Tensor:
    """Normally distributed numbers, the same ones every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def reference(name: str, *args: Any) -> Any:
    """Returns the results of an operator's reference."""
    return operator_of(getattr(torch.ops.cupyops, name).default).reference(*args)


def wanted(x: Tensor) -> Tensor:
    """A tensor that the checks differentiate by; the others of its sample are what a forward has saved, and belong together."""
    return x.clone().requires_grad_()


# Models

ROW = (4, 8)


def model_of(function: Callable[..., Any], *args: Any, batch: int = 0) -> Model:
    """A model that calls a function."""
    return Model(Called(function), args, batch)


# Launches


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def launch_case(operator: str, about: str, call: Callable[..., Any], *tensors: Any) -> LaunchCase:
    """Tensors are (shape, dtype), (shape, dtype, whether it requires a gradient), or functions that make one."""
    return LaunchCase(operator, about, lambda: [t() if callable(t) else _empty(*t) for t in tensors], call)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, grad: bool = True) -> Tensor:
    return torch.empty(shape, dtype=dtype).requires_grad_(grad and dtype.is_floating_point)
