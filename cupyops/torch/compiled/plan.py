"""Repeats the launches of a body, for a call whose shapes, strides and numbers are constants of a compiled graph.

A body checks its arguments, chooses kernels and allocates the results. In a graph with fixed shapes the outcome of this
work is the same in every call. The first call therefore runs the body and records its allocations and launches. A
function generated for the record (:mod:`cupyops.codegen`) replaces the body: it allocates, packs the addresses, and
launches.

A body is recorded only if its operator declares that its launches depend on nothing else (``repeats=True``). A
record is discarded, and the body runs in every call, if the body calls another operator of PyTorch than an allocation,
launches with a tensor map, or returns a tensor that it has not allocated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cupyops.codegen import write
from cupyops.launch import driver, hooks, recording

__all__ = ["Site"]

_ALLOCATIONS = frozenset(
    getattr(torch.ops.aten, name) for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)


class Site:
    """One call of an operator in generated code.

    Args:
        name: the operator's qualified name.
        body: the operator's body.
        scope, variable: where the generated code looks its function up (:func:`.calls.direct`).
    """

    def __init__(self, name: str, body: Callable[..., Any], scope: dict[str, Any], variable: str) -> None:
        self.name, self.body, self.scope, self.variable = name, body, scope, variable

    def begin(self, *args: Any) -> Any:
        """Calls the body and records its launches. Later calls repeat the launches, or call the body if the record
        cannot be repeated."""
        if hooks.guard() is not None or recording.recording():
            return self.body(*args)  # debug mode and recordings need the checked launch in every call
        record = _Record()
        with recording.watched(record.launches), record:
            found = self.body(*args)
        repeat = None if record.refused else _written(self, args, found, record)
        if repeat is not None:
            hooks.on_close(self)
        self.scope[self.variable] = self.body if repeat is None else repeat
        return found

    def close_generated_launch(self) -> None:
        """Sends the next call through :meth:`begin`. Debug mode and recordings call this method."""
        self.scope[self.variable] = self.begin


@dataclass
class _Record(TorchDispatchMode):
    """Records the tensors that a body allocates, and its launches.

    Attributes:
        made: the allocated tensors, in order.
        detached: detached tensors, each with the tensor whose memory it shares.
        launches: the launches, in order.
        refused: whether the body called another operator than an allocation.
    """

    made: list[Tensor] = field(default_factory=list)
    detached: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    launches: list[recording.Submitted] = field(default_factory=list)
    refused: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATIONS:
            self.made.append(found)
        elif func is torch.ops.aten.detach.default:  # PyTorch detaches what an allocation has returned
            self.detached.append((found, args[0]))
        else:
            self.refused = True
        return found


def _written(site: Site, args: Sequence[Any], found: Any, record: _Record) -> Callable[..., Any] | None:
    """Returns the function that repeats a record, or None if the record cannot be repeated."""
    results = found if isinstance(found, (tuple, list)) else (found,)
    names = {id(x): f"t{i}" for i, x in enumerate(record.made)}
    names |= {id(x): names[id(of)] for x, of in record.detached if id(of) in names}
    if not record.launches or any(id(y) not in names for y in results):
        return None
    names |= {id(x): f"a{i}" for i, x in enumerate(args) if isinstance(x, Tensor)}
    device = record.launches[0].arguments.gpu
    scope: dict[str, Any] = {
        "stream": torch._C._cuda_getCurrentRawStream,
        "site": site,  # keeps alive what close_generated_launches calls
        "body": site.body,
        "empty": _empty(device),
    }
    lines = []
    for i, x in enumerate(record.made):
        if x.get_device() != device:
            return None
        scope[f"dtype{i}"] = x.dtype
        lines.append(f"t{i} = empty({tuple(x.shape)}, {x.stride()}, dtype{i})")
    for i, launch in enumerate(record.launches):
        variant, values = launch.variant, []
        if launch.arguments.gpu != device:
            return None
        for value in launch.arguments.values.values():
            if isinstance(value, Tensor):
                if id(value) not in names:
                    return None  # a view, or a tensor that outlives the call
                values.append(f"{names[id(value)]}.data_ptr()")
                continue
            numbers = value if isinstance(value, tuple) else (0 if value is None else value,)
            if not all(type(n) in (bool, int, float) for n in numbers):
                return None  # a tensor map, for instance, which holds an address
            values += map(repr, numbers)
        scope |= {
            f"buffers{i}": variant.buffers,
            f"new_buffer{i}": variant.new_buffer,
            f"pack{i}": variant.pack_into,
            f"launch{i}": driver.launch_cooperative_kernel() if variant.cooperative else driver.launch_kernel(),
            "inf": float("inf"),
            "nan": float("nan"),
        }
        fixed = ", ".join(map(str, (variant.function, *launch.grid, *variant.threads, variant.shared)))
        lines += [
            "try:",
            f"    buffer = buffers{i}.pop()",
            "except IndexError:",
            f"    buffer = new_buffer{i}()",
            f"pack{i}(buffer[0], 0, {', '.join(values)})",
            f"launch{i}({fixed}, stream({device}), buffer[1], 0)",
            f"buffers{i}.append(buffer)",
        ]
    returned = ", ".join(names[id(y)] for y in results)
    arguments = ", ".join(f"a{i}" for i in range(len(args)))
    text = [
        f"def repeat({arguments}):",
        "    try:",
        *(f"        {line}" for line in lines),
        f"        return {returned if isinstance(found, Tensor) else f'({returned},)'}",
        "    except Exception:",  # of the allocator or the driver: the body raises the proper error
        f"        return body({arguments})",
    ]
    # The generated function is the reason for this module: it takes a third of the host time of layer_norm's body.
    return write(f"launches of {site.name}", "repeat", text, scope)


def _empty(device: int) -> Callable[..., Tensor]:
    """Returns the allocation ``(shape, strides, dtype)`` on the current GPU that takes the least host time."""
    fast: Callable[..., Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if fast is not None and torch.version.cuda is not None:
        return fast

    def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=f"cuda:{device}")

    return empty
