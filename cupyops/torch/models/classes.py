"""Classes that replace the class of a module.

An optimised module keeps its identity, its parameters, its buffers and its hooks. Only ``__class__`` changes, to a
subclass that replaces methods of the module's own class. The subclass has the name and the ``__module__`` of its base,
so that a ``repr``, a policy that compares names, and the leaf rule of ``torch.fx`` do not change.
"""

import copy
import copyreg
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from torch import nn

__all__ = ["is_optimised", "made_class", "original_class"]

# The subclasses by base and key. An entry is removed with the last module of its class.
_MADE: WeakValueDictionary[tuple[type, Any], type] = WeakValueDictionary()
_ORIGINAL = "_cupyops_original"


def original_class(cls: type) -> type | None:
    """Returns the class that a subclass of :func:`made_class` replaces, or None for every other class."""
    found: type | None = vars(cls).get(_ORIGINAL)
    return found


def is_optimised(cls: type) -> bool:
    """Returns whether a class is a subclass of :func:`made_class`, or is derived from one."""
    return hasattr(cls, _ORIGINAL)


def made_class(cls: type[nn.Module], key: Any, members: Callable[[], Mapping[str, Any]]) -> type[nn.Module]:
    """Returns a subclass of a module's class with other methods.

    A pickled instance is an instance of ``cls``, so that a file can be read without this package. A deep copy is an
    instance of the subclass.

    Args:
        cls: the class of a module.
        key: what the methods depend on. Equal keys of one class share a subclass.
        members: returns the methods and attributes of the subclass; called if the subclass does not exist yet.
    """
    made: type[nn.Module] | None = _MADE.get((cls, key))
    if made is None:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        pickling = {"__reduce_ex__": _reduce_ex(cls), "__deepcopy__": _deepcopy(cls), _ORIGINAL: cls}
        metaclass: Any = type(cls)
        made = metaclass(cls.__name__, (cls,), {**names, **pickling, **members()})
        _MADE[cls, key] = made
    return made


def _reduce_ex(cls: type[nn.Module]) -> Callable[..., Any]:
    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:  # noqa: N807 - a method of the subclass
        found = cls.__reduce_ex__(self, protocol)
        if not isinstance(found, tuple):
            return found
        function, args, *rest = found
        if function is copyreg.__newobj__ and args == (type(self),):  # type: ignore[attr-defined]
            # A pickler lets this function make no object of another class.
            return (copyreg._reconstructor, (cls, object, None), *rest)  # type: ignore[attr-defined]
        return (function, tuple(cls if a is type(self) else a for a in args), *rest)

    return __reduce_ex__


def _deepcopy(cls: type[nn.Module]) -> Callable[..., Any]:
    def __deepcopy__(self: nn.Module, memo: dict[int, Any]) -> nn.Module:  # noqa: N807 - a method of the subclass
        if (own := getattr(cls, "__deepcopy__", None)) is not None:
            twin: nn.Module = own(self, memo)
        else:
            reduced: Any = cls.__reduce_ex__(self, 4)
            function, args, state = reduced[:3]
            twin = function(*args)
            memo[id(self)] = twin
            state = copy.deepcopy(state, memo)
            twin.__setstate__(state)
        if type(twin) is cls:
            twin.__class__ = type(self)
        return twin

    return __deepcopy__
