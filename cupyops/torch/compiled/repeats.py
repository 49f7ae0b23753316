"""Repeats the steps of a body, for a call whose shapes, strides and numbers are constants of a compiled graph, or are
those of an earlier call in eager mode (:mod:`cupyops.torch.core.repeated`).

A body checks its arguments, chooses kernels and allocates the results. In a graph with fixed shapes the outcome of this
work is the same in every call. The first call therefore runs the body and records its steps: allocations, launches, and
calls of PyTorch's functions, such as a matrix product. A function generated for the record (:mod:`cupyops.codegen`)
replaces the body. The function allocates, packs the addresses, launches, and calls PyTorch's functions, in the same
order.

A body is recorded only if its operator declares that its steps depend on nothing else (``repeats=True``). A record is
discarded, and the body runs in every call, if the body reads a value of a tensor, launches with a tensor map, launches
nothing, or uses a tensor that outlives the call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cupyops.codegen import write
from cupyops.launch import debug, driver, hooks, recording, watch

__all__ = ["READS", "Call", "Record", "Site", "recorded"]

# The operators that allocate; PyTorch detaches their results.
_ALLOCATIONS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach")
)
# The operators that return a value of a tensor to the host.
READS = frozenset(getattr(torch.ops.aten, name) for name in ("_local_scalar_dense", "is_nonzero", "equal"))
# Matrix products. Whether a body calls them may depend on TF32.
_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul", "einsum")
)


class Site:
    """One call of an operator in generated code, or all calls in eager mode with one key.

    Args:
        name: the operator's qualified name.
        body: the operator's body.
        scope, variable: where the generated code looks its function up (:func:`.calls.direct`).
        eager: the calls are eager, and nothing guards PyTorch's settings. A body that calls a matrix product is not
            repeated, since a program can switch TF32 between two calls. Steps with other functions of PyTorch are
            repeated without autocast.
        writes: the body writes to its arguments. If a step fails, the body is not called, since an earlier step may have
            written.
    """

    def __init__(
        self,
        name: str,
        body: Callable[..., Any],
        scope: dict[Any, Any],
        variable: Any,
        *,
        eager: bool = False,
        writes: bool = False,
    ) -> None:
        self.name, self.body, self.scope, self.variable = name, body, scope, variable
        self.eager, self.writes = eager, writes

    def begin(self, *args: Any) -> Any:
        """Calls the body and records its launches. Later calls repeat the launches, or call the body if the record
        cannot be repeated."""
        if debug.enabled() or recording.recording() or watch.active():
            return self.body(*args)  # debug mode, recordings and edits need the checked launch in every call
        found, record = recorded(self.body, args, READS | _PRODUCTS if self.eager else READS)
        # An operator that no function has called, torch.ops.aten.add_ for instance, is not among the steps.
        refused = record.refused or record.dispatched.operators
        repeat = None if refused else _written(self, args, found, record)
        if repeat is not None:
            hooks.on_close(self)
        self.scope[self.variable] = self.body if repeat is None else repeat
        return found

    def close_generated_launch(self) -> None:
        """Sends the next call through :meth:`begin`. Debug mode and recordings call this method."""
        self.scope[self.variable] = self.begin


class _Dispatched(TorchDispatchMode):
    """Lists the operators that PyTorch's dispatcher runs.

    Attributes:
        operators: the operators, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Any] = []


def _list(self: _Dispatched, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    self.operators.append(func.overloadpacket)
    return func(*args, **(kwargs or {}))


# PyTorch wraps a method that a class body defines, and the wrapper imports Dynamo: seconds, in a program without
# torch.compile.
_Dispatched.__torch_dispatch__ = _list  # type: ignore[assignment,method-assign]


@dataclass(frozen=True)
class Call:
    """A call of a function of PyTorch.

    Attributes:
        function, args, kwargs: the call.
        found: what the function returned.
        allocates: whether the function only allocated its result.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    found: Any
    allocates: bool


class Record(TorchFunctionMode):
    """Records the calls of PyTorch's functions that a body makes, and its launches.

    Attributes:
        steps: the calls and launches, in order. They keep all tensors of the body alive.
        dispatched: the operators that PyTorch's dispatcher has run outside the calls.
        refused: whether the body called one of the refused operators: it read a value of a tensor, for instance, on
            which its further steps may depend.
    """

    def __init__(self, refused: frozenset[Any]) -> None:
        super().__init__()
        self._refused = refused
        self.steps: list[Any] = []
        self.dispatched = _Dispatched()
        self.refused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operators = self.dispatched.operators
        before = len(operators)
        found = func(*args, **(kwargs or {}))
        inside = operators[before:]
        del operators[before:]
        if inside:  # a function that runs no operator reads a property, such as the shape
            self.refused |= not self._refused.isdisjoint(inside)
            allocates = isinstance(found, Tensor) and _ALLOCATIONS.issuperset(inside)
            self.steps.append(Call(func, args, kwargs or {}, found, allocates))
        return found


def recorded(body: Callable[..., Any], args: Sequence[Any], refused: frozenset[Any]) -> tuple[Any, Record]:
    """Calls a body. Returns its results, and the record of its steps.

    Args:
        refused: operators of PyTorch; a call of one sets the attribute ``refused`` of the record.
    """
    record = Record(refused)
    with recording.watched(record.steps), record.dispatched, record:
        return body(*args), record


class _NotRepeated(Exception):
    """The record has a step that cannot be repeated."""


def _written(site: Site, args: Sequence[Any], found: Any, record: Record) -> Callable[..., Any] | None:
    """Returns the function that repeats a record, or None if the record cannot be repeated."""
    results = found if isinstance(found, (tuple, list)) else () if found is None else (found,)
    launches = [step for step in record.steps if isinstance(step, recording.Submitted)]
    tensors = {id(x): f"a{i}" for i, x in enumerate(args) if isinstance(x, Tensor)}
    # Two arguments that are one tensor now may be two tensors in another call.
    if not launches or len(tensors) < sum(isinstance(x, Tensor) for x in args):
        return None
    device = launches[0].arguments.gpu
    lines = _Lines(
        device, {"body": site.body, "site": site}
    )  # the scope keeps the objects alive that close_generated_launches calls
    lines.names |= tensors
    try:
        for step in record.steps:
            lines.launch(step) if isinstance(step, recording.Submitted) else lines.call(step)
        returned = ", ".join(map(lines.value, results))
    except _NotRepeated:
        return None
    arguments = ", ".join(f"a{i}" for i in range(len(args)))
    guards: list[str] = []
    if lines.calls:  # the body disables autocast
        lines.scope["any_autocast"] = torch._C._is_any_autocast_enabled
        guards = ["    if any_autocast():", f"        return body({arguments})"]
    given_back = "None" if found is None else returned if isinstance(found, Tensor) else f"({returned},)"
    text = [
        f"def repeat({arguments}):",
        *guards,
        "    try:",
        *(f"        {line}" for line in lines.lines),
        f"        return {given_back}",
        "    except Exception:",  # an error of the allocator or the driver: the body raises the proper error
        "        raise" if site.writes else f"        return body({arguments})",
    ]
    # The generated function takes half of the host time of layer_norm's body.
    return write(f"launches of {site.name}", "repeat", text, lines.scope)


class _Lines:
    """The text of a function that repeats a record.

    Args:
        device: the index of the GPU.
        scope: the globals of the function.

    Attributes:
        lines: the text.
        names: the expression of each tensor, by the tensor's identity.
        calls: whether the text calls a function of PyTorch that does more than allocate.
    """

    def __init__(self, device: int, scope: dict[str, Any]) -> None:
        self.device = device
        self.scope = {**scope, "stream": torch._C._cuda_getCurrentRawStream, "empty": _empty(device)}
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.calls = False

    def constant(self, value: Any) -> str:
        """Returns the name of a constant."""
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def value(self, x: Any) -> str:
        """Returns the expression of an argument: a tensor, a list or tuple of arguments, or a constant.

        Raises:
            _NotRepeated: a tensor is neither an argument of the body nor a result of an earlier step. A tensor that the
                body keeps from call to call is neither.
        """
        if isinstance(x, Tensor):
            if id(x) not in self.names:
                raise _NotRepeated
            return self.names[id(x)]
        if isinstance(x, (tuple, list)) and any(isinstance(part, Tensor) for part in x):
            return f"({', '.join(map(self.value, x))},)"
        return self.constant(x)

    def call(self, step: Call) -> None:
        """Adds a call of a function of PyTorch."""
        name, found = f"t{len(self.lines)}", step.found
        if step.allocates and found.get_device() == self.device:
            self.lines.append(f"{name} = empty({tuple(found.shape)}, {found.stride()}, {self.constant(found.dtype)})")
        else:
            self.calls = True
            given = [*map(self.value, step.args), *(f"{k}={self.value(v)}" for k, v in step.kwargs.items())]
            self.lines.append(f"{name} = {self.constant(step.function)}({', '.join(given)})")
        if isinstance(found, Tensor):
            self.names.setdefault(id(found), name)
        elif isinstance(found, (tuple, list)):
            for i, x in enumerate(found):
                self.names.setdefault(id(x), f"{name}[{i}]")

    def launch(self, step: recording.Submitted) -> None:
        """Adds a launch.

        Raises:
            _NotRepeated: the launch is on another GPU, or an argument is neither a tensor nor a number.
        """
        if step.arguments.gpu != self.device:
            raise _NotRepeated
        variant, values = step.variant, []
        for name, given in step.arguments.values.items():
            if isinstance(given, Tensor):
                values.append(f"{self.value(given)}.data_ptr()")
                values += map(repr, step.arguments.accessors.get(name, ()))
                continue
            numbers = given if isinstance(given, tuple) else (0 if given is None else given,)
            if not all(type(n) in (bool, int, float) for n in numbers):
                raise _NotRepeated  # a tensor map, for instance, which holds an address
            values += [repr(n) if type(n) is not float else self.constant(n) for n in numbers]
        submit = driver.launch_cooperative_kernel() if variant.cooperative else driver.launch_kernel()
        buffers = self.constant(variant.buffers)
        fixed = ", ".join(map(str, (variant.function, *step.grid, *variant.threads, variant.shared)))
        self.lines += [
            "try:",
            f"    buffer = {buffers}.pop()",
            "except IndexError:",
            f"    buffer = {self.constant(variant.new_buffer)}()",
            f"{self.constant(variant.pack_into)}(buffer[0], 0, {', '.join(values)})",
            f"{self.constant(submit)}({fixed}, stream({self.device}), buffer[1], 0)",
            f"{buffers}.append(buffer)",
        ]


def _empty(device: int) -> Callable[..., Tensor]:
    """Returns the allocation ``(shape, strides, dtype)`` on the current GPU that takes the least host time."""
    fast: Callable[..., Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if fast is not None and torch.version.cuda is not None:
        return fast

    def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=f"cuda:{device}")

    return empty
