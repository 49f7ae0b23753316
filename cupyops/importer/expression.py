"""Python text of a C++ expression, with the precedence of its outermost operator."""

from typing import Any, NamedTuple

__all__ = [
    "ATOM",
    "COMPARE",
    "LOOSE",
    "NOT",
    "OR",
    "PRODUCT",
    "RANKS",
    "SUM",
    "UNARY",
    "Expression",
    "Parts",
    "Refused",
    "call",
    "float_text",
    "is_list_text",
    "is_nonnegative",
    "literal_value",
]


# How tightly Python's operators bind.
LOOSE, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(13)
RANKS = {
    "||": OR, "&&": AND, "==": COMPARE, "!=": COMPARE, "<": COMPARE, ">": COMPARE, "<=": COMPARE, ">=": COMPARE,
    "|": BIT_OR, "^": BIT_XOR, "&": BIT_AND, "<<": SHIFT, ">>": SHIFT, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT,
    "%": PRODUCT,
}  # fmt: skip


class Refused(Exception):
    """An expression or a statement has no translation. The message names it."""


class Expression(NamedTuple):
    """Python text of an expression.

    Attributes:
        text: the text.
        rank: how tightly its outermost operator binds.
        wrapped: the text without the outermost wrap to the range of an unsigned type, and its rank. Sums of unsigned
            values wrap once, at the end.
    """

    text: str
    rank: int = ATOM
    wrapped: tuple[str, int] | None = None

    def at(self, rank: int) -> str:
        """Returns the text for a place where operators of a rank bind, in parentheses if it needs them."""
        return self.text if self.rank >= rank else f"({self.text})"


def call(function: str, *arguments: str) -> Expression:
    return Expression(f"{function}({', '.join(arguments)})")


def float_text(value: float) -> Expression:
    text = repr(float(value))
    if "inf" in text or "nan" in text:
        return Expression(f'float("{text}")')
    return Expression(text, ATOM if value >= 0 else UNARY)


def literal_value(text: str) -> Any:
    """Returns the value of a Python text that is a number, else None."""
    text = text.strip("()")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text) if text[-1:].isdigit() or text[-1:] == "." else None
    except ValueError:
        return None


def is_nonnegative(value: Expression) -> bool:
    literal = literal_value(value.text)
    return literal is not None and literal > 0 - 1 and value.text[:1] != "-"


def is_list_text(text: str) -> bool:
    return text.startswith("std.vector([")


class Parts:
    """The methods that the parts of the writer of expressions use of each other, and of the writer of functions."""

    program: Any
    unit: Any
    owning: Any
    held: dict[int, str]  # variables for expressions that have been evaluated before

    def variable(self, cursor: Any) -> Expression:
        raise NotImplementedError

    def is_boxed(self, cursor: Any) -> bool:
        raise NotImplementedError

    def box(self, cursor: Any) -> str:
        raise NotImplementedError

    def instance(self, declared: Any, callee: Any) -> str:
        """Returns the function of the instance of a generic lambda that a call takes; ``""`` for another lambda.

        The lambda is the dict of its instances where it is passed to a function.
        """
        raise NotImplementedError

    def write_lambda(self, cursor: Any) -> Expression:
        raise NotImplementedError

    def new_name(self, name: str) -> str:
        raise NotImplementedError

    def subscripted(self, base: Any) -> Expression:
        raise NotImplementedError

    def argument_types(self, type: Any) -> list[str]:
        raise NotImplementedError

    def word_name(self, name: str) -> str:
        raise NotImplementedError

    def bound_to(self, cursor: Any) -> str:
        raise NotImplementedError

    def moved(self, pointer: Any, sign: str, value: str, count: Expression) -> Expression:
        raise NotImplementedError

    def written(self, cursor: Any) -> list[Any]:
        raise NotImplementedError
