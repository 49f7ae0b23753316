"""The check that ``repeats=True`` is true: the steps of a body depend on nothing that a later call may change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cupyops.errors import LaunchError
from cupyops.launch import recording
from cupyops.torch.compiled.repeats import READS, Call, recorded
from cupyops.torch.core import repeated
from cupyops.torch.core.operator import Operator, operator_of

from .compare import assert_same_bits
from .inputs import Arguments, fresh, moved_on
from .registry import KERNEL_BACKENDS, Fault, Skip, check
from .subject import Subject

__all__ = ["declares_repeats", "repeats"]

# The arguments of a step that are compared by value.
_SHOWN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
# The name of a change, the arguments, and a context for the call.
Changed = tuple[str, Arguments, AbstractContextManager[Any]]


def declares_repeats(op: Operator) -> bool:
    """Returns whether the operator, its backward or its jvp declares ``repeats=True``."""
    return any(part is not None and part._bodies.repeats for part in (op, op.backward, op.jvp))


@check(
    "Declare `repeats=True` only if allocations, launches and calls of PyTorch's functions depend on the shapes, strides, "
    "dtypes and numbers of the arguments alone: have the kernel look at values and addresses, pass settings as arguments, "
    "or leave out `repeats=`.",
    backends=KERNEL_BACKENDS,
    needs=("determinism",),
)
def repeats(subject: Subject) -> str:
    """The steps of an operator with repeats=True are the same for other values, addresses, streams and grad modes."""
    if not declares_repeats(subject.op):
        raise Skip("the operator does not declare repeats=True")
    tried = 0
    for dtype, args in subject.each:
        for operator, given in _called(subject, args):
            if operator._bodies.repeats:
                tried += _assert_same_steps(subject, dtype, operator, given)
    if subject.backend == "cuda":
        _assert_repeated_bits(subject)
    return subject.told(tried, "calls")


class _Calls(TorchDispatchMode):
    """Lists the operators that are called, each with its arguments; calls with equal shapes, dtypes and numbers once."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, tuple[Operator, Arguments]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = operator_of(func)
        if operator is not None:
            # The dispatcher leaves out trailing arguments that equal their defaults.
            rest = [a.default_value for a in func._schema.arguments[len(args) :]]
            given = tuple(x.detach() if isinstance(x, Tensor) else x for x in (*args, *rest))
            kinds = [f"{x.dtype}{list(x.shape)}" if isinstance(x, Tensor) else repr(x) for x in given]
            self.found.setdefault((func, *kinds), (operator, given))
        return func(*args, **(kwargs or {}))


def _called(subject: Subject, args: Arguments) -> list[tuple[Operator, Arguments]]:
    """Returns the operators that a call, its gradient and its tangents call, with their arguments."""
    op, wanted = subject.op, subject.wanted(args)
    with _Calls() as calls:
        subject.results(fresh(args))
        if op._tangents is not None:
            plain = [x.detach() if isinstance(x, Tensor) else x for x in fresh(args)]
            tangents = [torch.ones_like(x) if i in wanted else None for i, x in enumerate(plain)]
            op._tangents.moved(plain, subject.call(plain), tangents)
    return list(calls.found.values())


def _assert_same_steps(subject: Subject, dtype: str, operator: Operator, args: Arguments) -> int:
    """Raises unless the body makes the steps of the first call for each change of the arguments; returns their number."""
    name = f"`repeats=True` of {operator.qualified_name} is not true. {dtype}"
    names = [a.name for a in operator.op._schema.arguments]
    args = tuple(x.clone() if isinstance(x, Tensor) else x for x in args)  # dense
    with torch.no_grad():
        right = _steps(operator.body, names, args, name)
    tried = 0
    for what, changed, context in _changes(subject, args):
        try:
            with torch.no_grad(), context:
                found = _steps(operator.body, names, changed, name)
        except LaunchError:
            continue  # the kernel refuses the values
        for i in range(max(len(found), len(right))):
            (one, kernel), (first, other) = (steps[i] if i < len(steps) else ("missing", 0) for steps in (found, right))
            if one != first or kernel != other:
                more = ", by another kernel of this name" if one == first else ""
                raise Fault(f"{name}, {what}: step {i + 1} is {one}{more}, and in the first call {first}")
        tried += 1
    return tried


def _changes(subject: Subject, args: Arguments) -> Iterator[Changed]:
    """Yields changes that the key of a repeated call does not contain: shapes, strides, dtypes and numbers stay."""

    def each(change: Callable[[Tensor], Tensor]) -> Arguments:
        return tuple(change(x) if isinstance(x, Tensor) else x for x in args)

    def floats(change: Callable[[Tensor], Tensor]) -> Arguments:
        return each(lambda x: change(x) if x.is_floating_point() else x.clone())

    yield "called again", args, nullcontext()
    yield "in other memory", each(torch.clone), nullcontext()
    yield "one element after an aligned address", each(_behind), nullcontext()
    yield (
        "with other values",
        tuple(_same_strides(x, y) for x, y in zip(args, moved_on(args, 7), strict=True)),
        nullcontext(),
    )
    values: dict[str, Callable[[Tensor], Tensor]] = {
        "zeros": torch.zeros_like,
        "negative values": lambda x: -(x.abs() + 1),
        "values of 1 to 2": lambda x: x.abs() / (x.abs() + 1) + 1,
        "values of 1000": lambda x: torch.full_like(x, 1000),
        "NaN": lambda x: torch.full_like(x, torch.nan),
    }
    for what, change in values.items():
        yield f"with {what}", floats(change), nullcontext()
    leaves = floats(lambda x: x.clone().requires_grad_())
    yield "with tensors that require grad", leaves, nullcontext()
    yield "with gradients enabled", each(torch.clone), torch.enable_grad()
    if subject.backend == "cuda":
        yield "on another stream", args, _on_stream(subject)


def _on_stream(subject: Subject) -> AbstractContextManager[Any]:
    side = torch.cuda.Stream(subject.device)
    side.wait_stream(torch.cuda.current_stream(subject.device))
    return torch.cuda.stream(side)


def _behind(x: Tensor) -> Tensor:
    """Copies a dense tensor to memory one element after an aligned address."""
    return x.new_zeros(x.numel() + 1).as_strided(x.shape, x.stride(), 1).copy_(x)


def _same_strides(x: Any, y: Any) -> Any:
    return torch.empty_like(x).copy_(y) if isinstance(x, Tensor) else y


def _steps(body: Callable[..., Any], names: Sequence[str], args: Arguments, name: str) -> list[tuple[str, int]]:
    """Returns each step of a body as text, with the identity of a launch's kernel, and what the body returns.

    Raises:
        Fault: the body reads a value of a tensor.
    """
    found, record = recorded(body, args, READS)
    if record.refused:
        raise Fault(f"{name}: the body reads a value of a tensor, on which its further steps may depend")
    labels = {id(x): name for x, name in zip(args, names, strict=True) if isinstance(x, Tensor)}

    def text(x: Any) -> str:
        if isinstance(x, Tensor):
            return labels.get(id(x), "a tensor from outside of the call")
        if isinstance(x, (list, tuple)):
            return f"({', '.join(map(text, x))})"
        return repr(x) if x is None or isinstance(x, _SHOWN) else type(x).__name__

    steps: list[tuple[str, int]] = []
    for i, step in enumerate(record.steps, 1):
        if isinstance(step, Call):
            given = [*map(text, step.args), *(f"{key}={text(value)}" for key, value in step.kwargs.items())]
            made = step.found if isinstance(step.found, (list, tuple)) else [step.found]
            for k, x in enumerate(made):
                if isinstance(x, Tensor):
                    labels.setdefault(id(x), f"t{i}" if x is step.found else f"t{i}[{k}]")
            shown = [_kind(x) for x in made]
            strides = [x.stride() for x in made if isinstance(x, Tensor)]
            function = getattr(step.function, "__name__", repr(step.function))
            if function == "__get__":  # of a property, such as x.T
                function = step.function.__self__.__name__  # type: ignore[attr-defined]
            steps.append((f"{function}({', '.join(given)}), which makes {', '.join(shown)} of strides {strides}", 0))
        else:
            passed = ", ".join(f"{key}={text(value)}" for key, value in step.arguments.values.items())
            accessors = f" with {dict(step.arguments.accessors)}" if step.arguments.accessors else ""
            what = f"a launch of {step.variant.what} on a grid of {tuple(step.grid)} with {passed}{accessors}"
            steps.append((what, id(step.variant)))
    steps += [(f"a call of {operator}", 0) for operator in record.dispatched.operators]
    return [*steps, (f"return {text(found)}", 0)]


def _kind(x: Any) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def _assert_repeated_bits(subject: Subject) -> None:
    """Raises unless calls that repeat remembered steps give the bits of calls that run the body."""

    def changes() -> list[tuple[str, Arguments]]:
        """Returns the calls, each time with tensors of their own: an operator may write to them."""
        return [(f"{dtype}, {what}", given) for dtype, args in subject.each for what, given in _like(args)]

    wanted = []
    for _, args in changes():
        with recording.recorded():  # a recording ends the repetition
            wanted.append(subject.results(args))
    for _, args in subject.each:
        for _ in range(repeated.AFTER + 1):
            subject.results(fresh(args))
    for on_side in (False, True):
        with _on_stream(subject) if on_side else nullcontext():
            for (what, args), right in zip(changes(), wanted, strict=True):
                got = subject.results(args)
                torch.cuda.current_stream(subject.device).synchronize()
                where = f"{what}{', on another stream' if on_side else ''}, repeated"
                assert_same_bits(where, got, right, "a call that runs the body gives")


def _like(args: Arguments) -> Iterator[tuple[str, Arguments]]:
    def each(change: Callable[[Tensor], Tensor]) -> Arguments:
        return tuple(change(x.detach()).requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in args)

    args = each(torch.clone)  # dense
    yield "the same values", args
    yield "other values", moved_on(args, 7)
    yield "one element after an aligned address", each(_behind)
