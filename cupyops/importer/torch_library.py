"""``TORCH_LIBRARY``: operators of ``torch.library`` made of translated host functions."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cupyops import simulator

from . import (  # noqa: F401  their C++ text comes first
    binding,
    cublas,
    standard,
)
from .casters import Signature, caster
from .words import declare, word

__all__ = ["Library", "RegisterOperators", "library_of"]


@dataclass
class _Operator:
    """An operator of ``torch.library``.

    Attributes:
        schema: with the namespace.
        library: holds the registration.
        functions: the translated functions by dispatch key, ``""`` for all.
        keys: the dispatch keys that PyTorch has a function for.
    """

    schema: str
    library: torch.library.Library
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def register(self, key: str, function: Callable[..., Any]) -> None:
        """Registers a function. A function for CUDA also serves CPU tensors, while kernels are simulated."""
        self.functions[key] = function
        for k in ("CUDA", "CPU") if key == "CUDA" else (key,):
            if k not in self.keys:
                self.keys.add(k)
                self.library.impl(self.schema.partition("(")[0].rpartition("::")[2], self._kernel(k), k)

    def _kernel(self, key: str) -> Callable[..., Any]:
        """Returns the function for a dispatch key, which calls the newest translated one."""
        arguments = torch._C.parse_schema(self.schema).arguments

        def call(*given: Any, **keywords: Any) -> Any:
            # PyTorch leaves out what has its default.
            values = [*given]
            values += [keywords.get(a.name, a.default_value) for a in arguments[len(given) :]]
            # Host code sees host memory as a GPU's then.
            simulated = key == "CPU" and "CUDA" in self.functions and simulator.enabled()
            function = self.functions.get("CUDA" if simulated else key) or self.functions.get("")
            if function is None:
                raise NotImplementedError(
                    f"Could not run '{self.schema.partition('(')[0]}' with arguments from the '{key}' backend. "
                    "cupyops.simulate() runs its CUDA kernels on CPU tensors."
                )
            signature: Signature = function.signature  # type: ignore[attr-defined]
            loaded = [caster(p.type).load(v, True) for p, v in zip(signature.parameters, values, strict=True)]
            return caster(signature.returns).cast(function(*loaded))

        return call


_OPERATORS: dict[str, _Operator] = {}


def _schema(name: str, signature: Signature) -> str:
    """Returns the schema that PyTorch infers from a function."""
    casters = [caster(p.type) for p in signature.parameters]
    result = caster(signature.returns)
    if not all(c.schema for c in (*casters, result)):
        raise TypeError(f"{name}: the types of {signature.name} have no schema")
    listed = ", ".join(f"{c.schema} _{i}" for i, c in enumerate(casters))
    return f"{name}({listed}) -> {result.schema}"


@word(
    "torch::Library",
    "struct Library { Library& def(const char* schema); template <class F> Library& def(const char* schema, F&& f);"
    " template <class F> Library& impl(const char* name, F&& f);"
    " template <class K, class F> Library& impl(const char* name, K key, F&& f); };",
)
class Library:
    """The library of ``TORCH_LIBRARY``, which registers operators with ``torch.library``.

    A program that is loaded again replaces the functions of its operators.

    Args:
        namespace: the namespace of the operators.
        key: the dispatch key of ``TORCH_LIBRARY_IMPL``; ``""`` for all.
    """

    def __init__(self, namespace: str, key: str = "") -> None:
        self.namespace, self.key = namespace, key

    def def_(self, schema: str, *extra: Any) -> "Library":
        """Defines an operator by its schema, with a function for all keys or without one."""
        function = next((e for e in extra if hasattr(e, "signature")), None)
        if "(" not in schema:
            if function is None:
                raise TypeError(f"{schema}: neither a schema nor a function")
            schema = _schema(schema, function.signature)
        schema = schema if "::" in schema.partition("(")[0] else f"{self.namespace}::{schema}"
        name = schema.partition("(")[0]
        known = _OPERATORS.get(name)
        if known is not None and str(torch._C.parse_schema(known.schema)) != str(torch._C.parse_schema(schema)):
            raise RuntimeError(f"{name} has been defined with another schema: {known.schema}")
        if known is None:
            library = torch.library.Library(self.namespace, "FRAGMENT")
            library.define(schema.partition("::")[2])
            _OPERATORS[name] = _Operator(schema, library)
        if function is not None:
            _OPERATORS[name].register("", function)
        return self

    def impl(self, name: str, *what: Any) -> "Library":
        """Registers a function for a dispatch key: ``impl(name, f)`` or ``impl(name, key, f)``."""
        *keys, function = what
        key = str(getattr(keys[0], "name", keys[0])).rpartition("::")[2] if keys else self.key
        if key.islower():  # a kind of device, torch::kCUDA
            key = torch._C._dispatch_key_for_device(key)
        name = name if "::" in name else f"{self.namespace}::{name}"
        if name not in _OPERATORS:
            raise RuntimeError(f"{name} is implemented, and not defined")
        _OPERATORS[name].register(key, function)
        return self

    def refuse(self, why: str, *names: str) -> None:
        """Records a statement without a translation. The names that it would define are missing, or raise an error when
        they are called."""
        warnings.warn(why, UserWarning, stacklevel=2)


@word(
    "c10::RegisterOperators",
    "struct RegisterOperators { RegisterOperators(); template <class F> RegisterOperators(const char* schema, F&& f);"
    " template <class F> RegisterOperators& op(const char* schema, F&& f);"
    " RegisterOperators& op(const char* schema); };",
)
class RegisterOperators:
    """Registers operators where a variable of a file is initialized."""

    def __init__(self, schema: str = "", *function: Any) -> None:
        if schema:
            self.op(schema, *function)

    def op(self, schema: str, *function: Any) -> "RegisterOperators":
        Library(schema.partition("::")[0]).def_(schema, *function)
        return self

    def refuse(self, why: str, *names: str) -> None:
        warnings.warn(why, UserWarning, stacklevel=2)


def library_of(function: str) -> Library:
    """Returns the library for a function that ``TORCH_LIBRARY`` and its like declare, by the function's name."""
    namespace, key, _ = function.removeprefix("cupyops_library_").rsplit("__", 2)
    return Library(namespace, key)


# The arguments may be macros, such as TORCH_EXTENSION_NAME. A namespace may have several blocks.
declare("""
#define CUPYOPS_LIBRARY_NAMED(ns, key, n, m) static void cupyops_library_##ns##__##key##__##n(torch::Library& m)
#define CUPYOPS_LIBRARY(ns, key, n, m) CUPYOPS_LIBRARY_NAMED(ns, key, n, m)
#define TORCH_LIBRARY(ns, m) CUPYOPS_LIBRARY(ns, , __COUNTER__, m)
#define TORCH_LIBRARY_FRAGMENT(ns, m) CUPYOPS_LIBRARY(ns, , __COUNTER__, m)
#define TORCH_LIBRARY_IMPL(ns, key, m) CUPYOPS_LIBRARY(ns, key, __COUNTER__, m)
#define TORCH_FN(f) (f)
""")
