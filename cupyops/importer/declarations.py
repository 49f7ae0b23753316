"""Answers questions about declarations and template arguments by clang's tree."""

from typing import Any

from .tree import clang
from .types import qualified, record_word

__all__ = [
    "enumerator_of",
    "functions_among",
    "has_attribute",
    "is_host_function",
    "pack_of",
    "parameters_of",
    "registers",
]


def enumerator_of(type: Any, value: int) -> str:
    """Returns a value of an enumeration by its name, as C++ does not convert the number; another value as it is."""
    declared = type.get_canonical().get_declaration()
    for constant in declared.get_children() if type.get_canonical().kind.name == "ENUM" else ():
        if constant.kind.name == "ENUM_CONSTANT_DECL" and constant.enum_value == value:
            return qualified(constant)
    return str(value)


def functions_among(cursor: Any, template: Any) -> list[str]:
    """Returns the functions that the template arguments of an expression name. The type of the parameter decides a template's own
    arguments."""
    found = []
    for part in cursor.walk_preorder():
        named = part.referenced
        if part.kind.name == "OVERLOADED_DECL_REF":
            named = clang().conf.lib.clang_getOverloadedDecl(part, 0)
        elif part.kind.name != "DECL_REF_EXPR" or part == cursor:
            continue
        if (
            named is not None
            and named.kind.name in ("FUNCTION_DECL", "FUNCTION_TEMPLATE")
            and named.spelling != template.spelling
        ):
            found.append(qualified(named))
    return found


def pack_of(declared: Any) -> list[str] | None:
    """Returns the types of a pack that the last parameters of a function have, ``f(int n, Args... args)``, else None."""
    template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared)
    children = [] if template is None else list(template.get_children())
    parameters = [c for c in children if c.kind.name == "PARM_DECL"]
    packs = [c.spelling for c in children if c.kind.name == "TEMPLATE_TYPE_PARAMETER"][-1:]
    if not parameters or parameters[-1].type.spelling not in [f"{name}..." for name in packs]:
        return None
    types = list(declared.type.argument_types())[len(parameters) - 1 :]
    return [type.get_canonical().spelling for type in types]


def parameters_of(declared: Any) -> list[Any]:
    """Returns the parameters of a function."""
    return [c for c in declared.get_children() if c.kind.name == "PARM_DECL"]


def has_attribute(declared: Any, kind: str) -> bool:
    """Returns whether a function, or the template of which it is an instance, has an attribute."""
    if any(c.kind.name == kind for c in declared.get_children()):
        return True
    template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared)
    return template is not None and any(c.kind.name == kind for c in template.get_children())


def registers(declared: Any) -> bool:
    """Returns whether a variable's initializer registers operators."""
    found = record_word(declared.type) if declared.kind.name == "VAR_DECL" and declared.is_definition() else None
    return found is not None and found.name == "c10::RegisterOperators"


def is_host_function(declared: Any) -> bool:
    """Returns whether a function runs on the host."""
    kinds = {c.kind.name for c in declared.get_children()}
    return "CUDAGLOBAL_ATTR" not in kinds and ("CUDADEVICE_ATTR" not in kinds or "CUDAHOST_ATTR" in kinds)
