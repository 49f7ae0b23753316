"""The plan of :func:`cupyops.torch.optimize`: which modules of a model get which class."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import FunctionType
from typing import Any

import torch
from torch import nn

from .classes import is_optimised, made_class
from .expressions import Change, Parent, own_gelu
from .fused import sequential_forward
from .leaves import FORWARDS, TRAITS, by_operator, leaf_of, product_of, unfit, unit_of
from .measured import TOGETHER, Measured
from .report import Site
from .rewrite import called_paths, loss_paths, mentions, returned_path, rewritten
from .source import UnreadableError
from .syntax import Path

__all__ = ["Plan", "sealed"]

# The calls for which a method that cannot be read is reported. Most activations without an operator are not in a gated
# unit.
_NAMED = (*TRAITS, "plain_layer_norm")


@dataclass
class Plan:
    """The change of each module. Nothing is changed while the plan is made.

    Attributes:
        wanted: whether a module passes the filters.
        fuse: whether consecutive calls become one.
        lazy: whether logits are computed when they are read.
        classes: the new classes.
        replaced: the sites of the report, by the module that gets a new class.
        skipped: the other sites.
        parts: the linear layers and activations that keep their class, and that a fused operator may compute.
        seen: the modules that have been decided about.
        excluded: the modules of which no name has been wanted so far.
        heads: the modules that return the logits which a loss reads, if ``lazy``.
    """

    wanted: Callable[[str, nn.Module], bool]
    fuse: bool
    lazy: bool
    classes: dict[nn.Module, type[nn.Module]] = field(default_factory=dict)
    replaced: dict[nn.Module, list[Site]] = field(default_factory=dict)
    skipped: list[Site] = field(default_factory=list)
    parts: set[nn.Module] = field(default_factory=set)
    seen: set[nn.Module] = field(default_factory=set)
    excluded: dict[nn.Module, Site] = field(default_factory=dict)
    heads: set[nn.Module] = field(default_factory=set)

    def skip(self, name: str, module: nn.Module, reason: str, what: str | None = None) -> None:
        self.skipped.append(Site(name, what or type(module).__name__, reason=reason))

    def leaf(self, name: str, module: nn.Module) -> None:
        """Decides whether one operator replaces the whole ``forward`` of a module."""
        if module in self.seen:
            return
        if how := sealed(module):
            self.seen.add(module)
            self.skip(name, module, f"it is {how} already, with all that is in it")
            return
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            self.seen.add(module)
            self.skip(name, module, "it is quantised")
            return
        found = leaf_of(module, _by_functions)
        if found is None:
            return
        self.seen.add(module)
        if isinstance(found, str):
            self.skip(name, module, found)
        elif not self.wanted(name, module):
            self.exclude(name, module, type(module).__name__)
        elif found.make is None:
            self.parts.add(module)
        else:
            self.take(name, module, found.operator, found.make)

    def exclude(self, name: str, module: nn.Module, what: str) -> None:
        """Leaves a module unchanged, unless the module also has a name that ``include`` selects."""
        self.seen.discard(module)
        self.excluded.setdefault(module, Site(name, what, reason="excluded by name"))

    def settle(self) -> None:
        """Adds the modules that the filters exclude under every name to the report."""
        left = {module: site for module, site in self.excluded.items() if module not in self.seen}
        self.seen.update(left)
        self.skipped.extend(left.values())
        self.excluded.clear()

    def take(self, name: str, module: nn.Module, operator: str, make: Callable[[], type[nn.Module]]) -> None:
        try:
            self.classes[module] = make()
        except Exception as error:  # a metaclass or __init_subclass__ of others
            self.skip(name, module, f"its class has no subclasses: {error}")
        else:
            self.replaced[module] = [Site(name, type(module).__name__, operator)]

    # Kinds of change, measured

    def group_of(self, module: nn.Module) -> str:
        """Returns the operators that a module calls."""
        return ", ".join(sorted({site.operator for site in self.replaced[module]}))

    def groups(self) -> dict[str, dict[nn.Module, type[nn.Module]]]:
        """Returns the new classes by the operators that the modules call."""
        found: dict[str, dict[nn.Module, type[nn.Module]]] = {}
        for module, cls in self.classes.items():
            found.setdefault(self.group_of(module), {})[module] = cls
        return found

    def drop(self, found: Sequence[Measured]) -> None:
        """Moves the sites of the kinds that save no time to the sites that are left alone."""
        reasons = {one.kind: f"measured: {one}" for one in found if not one.kept}
        together = reasons.get(TOGETHER)
        for module in [*self.classes]:
            if (reason := reasons.get(self.group_of(module), together)) is not None:
                self.skipped += [replace(site, operator="", reason=reason) for site in self.replaced.pop(module)]
                del self.classes[module]

    # Methods that call several modules

    def methods(self, name: str, module: nn.Module) -> None:
        """Plans the change of a module whose methods contain calls that can be replaced."""
        cls = type(module)
        if module in self.classes or module in self.seen or is_optimised(cls):
            return
        new, changes = self.changed_methods(name, module)
        if not new:
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                self.seen.add(module)
                self.skip(name, module, "its class has its own forward")
            return
        self.seen.add(module)
        what = "; ".join(change.text for change in changes)
        if not self.wanted(name, module):
            self.exclude(name, module, what)
            return
        if (reason := unfit(module)) is not None:
            self.skip(name, module, reason, what)
            return
        try:
            key = tuple(sorted((n, id(f)) for n, f in new.items()))
            # The class keeps the functions alive, so no other object gets their ids.
            self.classes[module] = made_class(cls, key, lambda: new)
        except Exception as error:  # a metaclass or __init_subclass__ of others
            self.skip(name, module, f"its class has no subclasses: {error}")
        else:
            self.replaced[module] = [Site(name, change.text, change.operator) for change in changes]

    def changed_methods(self, name: str, module: nn.Module) -> tuple[dict[str, Any], list[Change]]:
        """Returns the methods of a module that get new code, and the changes in them."""
        cls, new, changes = type(module), {}, []
        if cls.forward is nn.Sequential.forward:
            pairs = self.pairs(module) if self.fuse else []
            return ({"forward": sequential_forward(self.apart(module))}, pairs) if pairs else ({}, [])
        names = {n for m in (module, *module._modules.values()) if m is not None for n in m._modules}
        mro = cls.__mro__[: cls.__mro__.index(nn.Module)]
        for i, owner in enumerate(mro):
            for method, function in vars(owner).items():
                overridden = any(method in vars(c) for c in mro[:i]) or method.startswith("__")
                if overridden or not isinstance(function, FunctionType):
                    continue
                parent = _parent(cls.__mro__[cls.__mro__.index(owner) + 1 :], method)
                if not mentions(function, names if parent is None else {*names, "super"}):
                    continue
                try:
                    kinds = self.kinds(module, called_paths(function))
                    head = module in self.heads
                    if self.lazy:  # a module is visited before its parts
                        parts = (_at(module, path) for path in loss_paths(function, head))
                        self.heads |= {part for part in parts if part is not None and self.is_head(part)}
                    made, found = rewritten(function, kinds, parent, self.fuse, self.lazy, head)
                except UnreadableError as error:
                    if self.concerned(module, function):
                        self.skip(name, module, f"{method} cannot be rewritten: {error}")
                    continue
                if made is not function:
                    new[method] = made
                changes += [change for change in found if not change.reason]
                for left in dict.fromkeys(change for change in found if change.reason):
                    self.skip(name, module, left.reason, left.text)
        return new, changes

    def kinds(self, module: nn.Module, paths: set[Path]) -> dict[Path, str]:
        """Returns what the attributes of a module hold, in the form that :func:`.rewrite.rewritten` takes."""
        return {path: kind for path in paths if (kind := self.kind(module, path)) is not None}

    def kind(self, module: Any, path: Path) -> str | None:
        *first, last = path
        for name in first:
            if name in vars(module) or hasattr(type(module), name):
                return None
            module = module._modules.get(name)
            if module is None:
                return None
        if hasattr(type(module), last):
            return None
        if last in vars(module):
            value = vars(module)[last]
            if not callable(value):
                return None
            unit = None if isinstance(value, nn.Module) else unit_of(value)
            return unit.__name__ if unit is not None else "function" if own_gelu(value) is not None else None
        part = module._modules.get(last)
        return self.operator(part) or ("head" if self.lazy and self.is_head(part) else None)

    def is_head(self, module: nn.Module | None) -> bool:
        """Returns whether a module returns the result of a linear layer with more columns than its argument, or of a part that
        does."""
        while module is not None and product_of(module) is None:
            forward: Any = type(module).forward
            try:
                path = returned_path(forward) if isinstance(forward, FunctionType) else ()
            except UnreadableError:
                return False
            part = _at(module, path)
            if part is not None and (product := product_of(part)) is not None:
                weight = product(part)[0]
                return weight.dim() == 2 and weight.size(0) > weight.size(1)
            module = part
        return False

    def operator(self, module: nn.Module | None) -> str | None:
        """Returns the operator of a module that a fused operator can compute; for SiLU and ReLU, the gated unit."""
        if module is None:
            return None
        cls = self.classes.get(module, type(module))
        if (module in self.parts or is_optimised(cls)) and product_of(module) is not None:
            return "linear"
        if module in self.parts and (unit := unit_of(module)) is not None:
            return unit.__name__
        found = next((operator for operator, trait in TRAITS.items() if hasattr(cls, trait)), None)
        plain = found == "layer_norm" and all(p is None for p in module._parameters.values())
        return "plain_layer_norm" if plain else found

    def pairs(self, module: nn.Module) -> list[Change]:
        """Returns the linear layers of an ``nn.Sequential`` that GELU follows."""
        inside = [(name, self.operator(m)) for name, m in module._modules.items()]
        return [
            Change("linear_gelu", f"{a}, {b}")
            for (a, first), (b, second) in pairwise(inside)
            if (first, second) == ("linear", "gelu")
        ]

    def apart(self, module: nn.Module) -> frozenset[str]:
        """Returns the names of the linear layers in an ``nn.Sequential`` that are excluded or unfit."""
        linear = (name for name, m in module._modules.items() if m is not None and product_of(m) is not None)
        return frozenset(name for name in linear if self.operator(module._modules[name]) != "linear")

    def concerned(self, module: nn.Module, function: FunctionType) -> bool:
        """Returns whether a method that cannot be read names what may be fused or replaced."""
        near = {n: self.operator(m) for n, m in module._modules.items()}
        names = {n for n, operator in near.items() if operator in _NAMED} if self.fuse else set()
        return mentions(function, names)


def sealed(module: nn.Module) -> str:
    """Returns ``"compiled"`` or ``"scripted"`` for a module whose parts are not called as modules any more, else
    ``""``."""
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted"
    # torch.compile loads this part of PyTorch, which takes a second to load.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return "compiled" if dynamo is not None and isinstance(module, dynamo.OptimizedModule) else ""


def _at(module: nn.Module, path: Path) -> nn.Module | None:
    """Returns the part of a module at a path of attributes, or None."""
    part: nn.Module | None = module
    for name in path:
        part = None if part is None else part._modules.get(name)
    return part if path else None


def _by_functions(cls: type[nn.Module]) -> Callable[..., Any]:
    """Returns the ``forward`` of a class with operators in place of PyTorch's functions. A ``forward`` of ``torch.nn``, and
    one whose source cannot be read, is returned as it is."""
    owner, *bases = cls.__mro__[next(i for i, c in enumerate(cls.__mro__) if "forward" in vars(c)) :]
    forward: Any = vars(owner)["forward"]
    try:
        return forward if forward in FORWARDS else rewritten(forward, {}, _parent(bases, "forward"))[0]
    except UnreadableError:
        return forward


def _parent(bases: Sequence[type], method: str) -> Parent | None:
    """Returns what ``super().forward`` is, if a class in ``bases`` has the ``forward`` of a normalisation or GELU."""
    if method != "forward":
        return None
    forward: Any = next((vars(base)["forward"] for base in bases if "forward" in vars(base)), None)
    kind = FORWARDS.get(forward)
    return None if kind is None or kind.operator == "linear" else (kind.operator, by_operator(forward))
