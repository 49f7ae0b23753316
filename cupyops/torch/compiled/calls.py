"""The functions that the code of a compiled graph calls in place of registered operators.

A call of a registered operator passes PyTorch's dispatcher and the Python layer of autograd. A compiled graph needs
neither: AOTAutograd has traced forward and backward apart, and Inductor knows every tensor's device. The code that
Inductor generates (:mod:`cupyops.torch.compiled.lowering`) therefore takes a function from :func:`direct` when the code
is loaded, and calls the function.

A program may save a compiled graph, and load its code beside a later version of this module. The name and the
parameters of :func:`direct` must therefore not change. The code holds no other name of this package, so that a change of
a body reaches cached code, too.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from .repeats import Site
from .rules import Rule

__all__ = ["Bodies", "bodies_of", "declare", "direct", "known"]


class Bodies:
    """The functions that an operator runs on each type of device.

    Attributes:
        by_device: the functions for CUDA tensors (the body) and for CPU tensors. Each takes all arguments of the
        schema.
        repeats: whether a call with fixed shapes always makes the same steps (:mod:`cupyops.torch.compiled.repeats`).
        writes: whether the functions write to their arguments.
        in_place: the overload that writes the first result over the first argument, or None.
        code: a text that stands for the operator's code in the keys of graphs on disk (:func:`.keys.code_of`).
        reference: the same operation in plain PyTorch, or None.
        rule: the form of the operator in a graph (:mod:`.rules`).
    """

    __slots__ = ("__weakref__", "by_device", "code", "in_place", "reference", "repeats", "rule", "writes")

    def __init__(
        self,
        by_device: Mapping[str, Callable[..., Any]],
        repeats: bool,
        writes: bool = False,
        in_place: Any = None,
        code: str = "",
        reference: Callable[..., Any] | None = None,
        rule: str | Rule = "kernel",
    ) -> None:
        self.by_device = dict(by_device)
        self.repeats, self.writes = repeats, writes
        self.in_place, self.code = in_place, code
        self.reference, self.rule = reference, rule


# The bodies of all operators by qualified name. The dictionary does not keep an operator's functions alive.
_BODIES: WeakValueDictionary[str, Bodies] = WeakValueDictionary()


def declare(
    name: str,
    cuda: Callable[..., Any],
    cpu: Callable[..., Any],
    repeats: bool,
    writes: bool = False,
    in_place: Any = None,
    code: str = "",
    reference: Callable[..., Any] | None = None,
    rule: str | Rule = "kernel",
) -> Bodies:
    """Makes the functions of an operator known to :func:`direct`, and returns an object that the operator must hold.

    Args:
        name: the qualified name, ``"mylib::scale"``.
        cuda: the function for CUDA tensors; takes all arguments of the schema.
        cpu: the function for CPU tensors.
        repeats, writes, in_place, code, reference, rule: the attributes of :class:`Bodies`.
    """
    _BODIES[name] = found = Bodies({"cuda": cuda, "cpu": cpu}, repeats, writes, in_place, code, reference, rule)
    return found


def bodies_of(name: str) -> Bodies | None:
    """Returns the declarations of the operator of this name, or None if no operator of this package has the name."""
    return _BODIES.get(name)


def known(name: str, device: str) -> bool:
    """Returns whether :func:`direct` has a function of the operator for a type of device."""
    found = _BODIES.get(name)
    return found is not None and device in found.by_device


def direct(name: str, device: str, scope: dict[str, Any], variable: str, fixed: bool) -> Callable[..., Any]:
    """Returns the function that generated code calls in place of an operator.

    Args:
        name: the qualified name of the operator.
        device: the type of the device, ``"cuda"`` or ``"cpu"``.
        scope: the globals of the generated code.
        variable: the name of the function in ``scope``. The function replaces itself there by repeated launches.
        fixed: whether all shapes, strides and numbers of the call are constants of the graph.

    Raises:
        RuntimeError: the operator is not declared.
    """
    found = _BODIES.get(name)
    if found is None:
        raise RuntimeError(f"a compiled graph calls {name}, which is not declared: import the module that declares it")
    body = found.by_device[device]
    if not (fixed and found.repeats and device == "cuda"):
        return body
    return Site(name, body, scope, variable, writes=found.writes).begin
