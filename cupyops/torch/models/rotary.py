"""Calls of the operator in place of a model's own function for rotary position embedding.

Such a function, ``apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1)`` in most models of transformers, is found by what it
computes (:func:`.recognise.rotary_forms`). Its parameters are known by name: ``cos`` and ``sin``, or ``emb`` with sin and cos
as halves; the others without a default are tensors to turn, and a parameter with a default is an option.

While Dynamo traces, the function itself is called: its operations on single elements fuse with those beside them in Inductor,
and an operator would not.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.codegen import write
from cupyops.torch.compiled.frames import inlined_only
from cupyops.torch.ops.rotary_embedding import rotary_embedding

from .recognise import Rotary, rotary_forms
from .small import PLAIN, is_traced

__all__ = ["drop_in", "own_rotary"]

Forms = Mapping[tuple[Any, ...], Rotary]
_OPTIONS = (int, bool, type(None))
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def own_rotary(name: str, function: Any) -> Callable[..., Any] | str | None:
    """Returns a drop-in that calls the operator, for a function that applies rotary embedding; the reason why there is none, for
    one whose name says so; None for every other object.

    Args:
        name: the name by which a model calls the function. An object whose name does not mention it is not asked.
        function: the function. Hugging Face's ``kernels`` replaces it by a stateless module that calls it in its ``forward``.
    """
    if "rot" not in name.lower():
        return None
    if isinstance(function, nn.Module):
        if function._parameters or function._buffers or function._modules or "forward" in vars(function):
            return None
        function = MethodType(type(function).forward, function)
    if not isinstance(function, FunctionType | MethodType):
        return None
    found = drop_in(name.rpartition(".")[2], function)
    return None if isinstance(found, str) and "apply" not in name.lower() else found


@cache
def drop_in(name: str, function: Callable[..., Any]) -> Callable[..., Any] | str:
    """Returns the drop-in of a function or a method, called ``name``, or the reason why there is none."""
    parameters = [*inspect.signature(function).parameters.values()]
    required = [p.name for p in parameters if p.default is p.empty]
    tables = [n for prefix in ("cos", "sin") for n in required if n.startswith(prefix)] or [
        n for n in required if n == "emb"
    ]
    rows = [n for n in required if n not in tables]
    preset = {p.name: p.default for p in parameters if p.default is not p.empty}
    options = {name: _values(default) for name, default in preset.items()}
    halves = tables == ["emb"]
    if not rows or not (halves or len(tables) == 2):
        return "its arguments are not rows and tables of cos and sin"
    if any(p.kind not in _KINDS for p in parameters if p.kind is not p.VAR_KEYWORD):
        return "it takes any number of arguments"
    if any(type(default) not in _OPTIONS for default in preset.values()):
        return "one of its options is no number"
    forms: dict[tuple[Any, ...], Rotary] = {}
    for chosen in itertools.product(*options.values()):

        def turn(cos: Tensor, sin: Tensor, *given: Tensor, chosen: tuple[Any, ...] = chosen) -> Any:
            of_tables = dict(zip(tables, (torch.cat((sin, cos), -1),) if halves else (cos, sin), strict=True))
            named = dict(zip(rows, given, strict=True)) | of_tables | dict(zip(options, chosen, strict=True))
            y = function(**named)
            return (y,) if len(rows) == 1 and isinstance(y, Tensor) else y

        forms |= {(*chosen, *dims): form for dims, form in rotary_forms(turn, len(rows)).items()}
    if not forms:
        return "it computes another function than rotary_embedding of rows and their tables"
    defaults = {f"default_{name}": default for name, default in preset.items()}
    header = ", ".join(
        ("*, " if p.kind is p.KEYWORD_ONLY and parameters[i - 1].kind is not p.KEYWORD_ONLY else "")
        + (f"{p.name}=default_{p.name}" if p.name in options else p.name)
        for i, p in enumerate(parameters)
    )
    text = [
        f"def {name}({header}):",
        f"    cupyops_result = cupyops_turned(cupyops_forms, ({_listed(options)}), ({_listed(tables)}), ({_listed(rows)}))",
        "    if cupyops_result is None:",
        f"        return cupyops_function({', '.join(f'{p.name}={p.name}' for p in parameters)})",
        f"    return cupyops_result{'[0]' if len(rows) == 1 else ''}",
    ]
    scope = {"cupyops_turned": _turned, "cupyops_forms": forms, "cupyops_function": function, **defaults}
    return inlined_only(write(f"call of {name}", name, text, scope))


def _values(default: Any) -> tuple[Any, ...]:
    """Returns the values of an option that are tried."""
    if isinstance(default, bool):
        return (False, True)
    return (*{default, 1, 2},) if isinstance(default, int) else (default,)


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    return "".join(f"{name}, " for name in names)


def _turned(forms: Forms, options: tuple[Any, ...], tables: tuple[Any, ...], rows: tuple[Any, ...]) -> Any:
    """Returns the turned rows by the operator, or None if it does not compute what the function computes."""
    if is_traced() or not all(type(o) in _OPTIONS for o in options):
        return None
    for t in (*tables, *rows):
        if type(t) not in PLAIN or not t.is_floating_point() or t.device != rows[0].device:
            return None
    if len(tables) == 2:
        cos, sin = tables
    else:
        sin, cos = tables[0].chunk(2, -1)
    if (form := forms.get((*options, rows[0].dim(), cos.dim()))) is None:
        return None
    if cos.shape != sin.shape or cos.dtype is not sin.dtype or (not form.pairs and cos.size(-1) % 2):
        return None
    cos, sin = form.tables(cos, sin)
    for x in rows:
        if x.dim() != rows[0].dim() or not _takes(form, x, cos):
            return None
    if not form.keeps_dtype:  # under autocast, 16-bit rows with float32 tables become float32
        rows = tuple([x if x.dtype is cos.dtype else x.to(cos.dtype) for x in rows])
    return tuple([rotary_embedding(x, cos, sin, interleaved=form.interleaved) for x in rows])


def _takes(form: Rotary, x: Tensor, table: Tensor) -> bool:
    if not (table.size(-1) == x.size(-1) or (form.partial and table.size(-1) < x.size(-1))):
        return False
    for i in range(2, table.dim() + 1):
        if table.size(-i) != 1 and table.size(-i) != x.size(-i):
            return False
    if form.keeps_dtype or x.dtype is table.dtype:
        return True
    return form.promotes and torch.promote_types(x.dtype, table.dtype) is table.dtype
