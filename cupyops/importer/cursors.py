"""Functions on expressions of clang's tree: their parts, the place that they name, their class."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from .expression import Refused
from .tree import template_arguments
from .types import (
    number,
    plain,
    qualified,
    type_arguments,
)

__all__ = [
    "CASTS",
    "REALS",
    "ArrayOf",
    "calls_result",
    "class_arguments",
    "copied_from",
    "enumerator_value",
    "is_alike",
    "is_array_place",
    "is_characters",
    "is_constant_text",
    "is_place",
    "only_part",
    "parts_inside",
    "python_name",
    "record_of",
    "record_spelling",
    "same_class",
    "stripped",
    "subexpressions",
    "takes_function",
]


def enumerator_value(declared: Any) -> int:
    kind = number(declared.type)
    value: int = declared.enum_value
    return value if kind is None else kind(value)


def subexpressions(cursor: Any) -> list[Any]:
    return [child for child in cursor.get_children() if child.kind.is_expression()]


def parts_inside(cursor: Any) -> Iterator[Any]:
    """Yields the expressions inside an expression, without the bodies of lambdas."""
    for child in cursor.get_children():
        yield child
        if child.kind.name != "LAMBDA_EXPR":
            yield from parts_inside(child)


def only_part(cursor: Any) -> Any:
    inner = subexpressions(cursor)
    if not inner:
        raise Refused("an expression without its parts")
    return inner[-1]


def stripped(cursor: Any) -> Any:
    """Returns an expression without the nodes that clang adds around it."""
    while cursor.kind.name in ("UNEXPOSED_EXPR", "PAREN_EXPR"):
        inner = subexpressions(cursor)
        if not inner:
            break
        cursor = inner[-1]
    return cursor


def is_place(cursor: Any) -> bool:
    """Returns whether an expression is a place that keeps its value: a variable, a member, an element."""
    inner = stripped(cursor)
    if inner.kind.name == "CALL_EXPR":
        arguments = [a for a in inner.get_arguments() if a is not None]
        declared = inner.referenced
        if declared is not None and declared.kind.name == "CONSTRUCTOR":
            copy = len(arguments) == 1 and same_class(arguments[0].type, plain(inner.type))
            return copy and is_place(arguments[0])
        return declared is not None and declared.result_type.get_canonical().kind.name == "LVALUEREFERENCE"
    if inner.kind.name == "CONDITIONAL_OPERATOR":
        return any(map(is_place, subexpressions(inner)[1:]))
    return inner.kind.name in ("DECL_REF_EXPR", "MEMBER_REF_EXPR", "ARRAY_SUBSCRIPT_EXPR", "UNARY_OPERATOR")


class ArrayOf:
    """Stands for clang's type of an array."""

    kind = SimpleNamespace(name="CONSTANTARRAY")

    def __init__(self, element: Any, count: int) -> None:
        self.element_type, self.element_count = element, count

    def get_canonical(self) -> "ArrayOf":
        return self


def is_alike(a: Any, b: Any) -> bool:
    """Returns whether a value of a list has a type, directly or as a number."""
    return same_class(a, b) or (number(a) is not None and number(b) is not None) or plain(a) == plain(b)


def copied_from(cursor: Any) -> Any:
    """Returns the expression that a copy is made of, before a conversion to a base class."""
    inner = stripped(cursor)
    while (
        inner.kind.name == "CALL_EXPR" and inner.referenced is not None and inner.referenced.kind.name == "CONSTRUCTOR"
    ):
        arguments = [a for a in inner.get_arguments() if a is not None]
        if len(arguments) != 1 or not same_class(arguments[0].type, plain(inner.type)):
            break
        inner = stripped(arguments[0])
    return inner


def same_class(a: Any, b: Any) -> bool:
    return plain(a).kind.name == "RECORD" and plain(a).get_declaration() == plain(b).get_declaration()


def class_arguments(type: Any) -> list[Any]:
    found = template_arguments(type.get_declaration())
    return type_arguments(type) if None in found else [a for a in found if not isinstance(a, int)]


def record_spelling(callee: Any, declared: Any) -> str:
    """Returns the C++ name of the class whose conversion function is called."""
    inner = subexpressions(callee)
    return str(plain(inner[0].type).spelling if inner else declared.semantic_parent.spelling)


def record_of(declared: Any) -> str:
    """Returns the C++ name of the class of a member."""
    return qualified(declared.semantic_parent)


def takes_function(parameter: Any) -> bool:
    """Returns whether the parameter of a template is a pointer to a function."""
    pointed = parameter.type.get_canonical().get_pointee()
    return parameter.kind.name == "TEMPLATE_NON_TYPE_PARAMETER" and pointed.kind.name in (
        "FUNCTIONPROTO",
        "FUNCTIONNOPROTO",
    )


def python_name(name: str) -> str:
    import keyword

    return f"{name}_" if keyword.iskeyword(name) else name


def is_characters(type: Any) -> bool:
    """Returns whether a type is a pointer to characters, whose values are strings."""
    return plain(type).get_pointee().get_canonical().kind.name in ("CHAR_S", "CHAR_U")


def is_constant_text(type: Any) -> bool:
    return is_characters(type) and bool(plain(type).get_pointee().is_const_qualified())


def calls_result(cursor: Any) -> bool:
    """Returns whether a call calls the result of another call, ``chosen(0)(x)``: libclang names the inner function for
    both."""
    declared, callee = cursor.referenced, next(iter(cursor.get_children()), None)
    if callee is None or declared is None or declared.kind.name not in ("FUNCTION_DECL", "CXX_METHOD"):
        return False
    inner = stripped(callee)
    return (
        inner.kind.name == "CALL_EXPR" and inner.referenced == declared and not declared.spelling.startswith("operator")
    )


def is_array_place(cursor: Any) -> bool:
    """Returns whether a pointer is an array that C++ has converted."""
    inner = stripped(cursor)
    return plain(inner.type).kind.name == "CONSTANTARRAY" and inner.kind.name != "STRING_LITERAL"


CASTS = {
    "CSTYLE_CAST_EXPR", "CXX_STATIC_CAST_EXPR", "CXX_FUNCTIONAL_CAST_EXPR", "CXX_CONST_CAST_EXPR",
    "CXX_REINTERPRET_CAST_EXPR", "CXX_DYNAMIC_CAST_EXPR",
}  # fmt: skip
REALS = ("float16", "bfloat16", "float32", "float64")
