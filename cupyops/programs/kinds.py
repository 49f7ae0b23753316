"""The type of each part of a formula, by C++'s rules.

The kernel, the translation to PyTorch and the checks of a declaration all use these types. Arithmetic with whole numbers is
exact in each of them: what C++ rounds to a whole number, or what may not fit 64 bits, is refused, with what to write.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from .tree import CONSTANTS, ExpressionError, Node, bare, parsed, walk
from .words import CUDA_FUNCTIONS

__all__ = ["FLOATING", "KEEPING", "Kind", "Kinds", "joined", "kinds_of"]

_INT, _LONG = 2**31, 2**63
_COLUMNS = 2**31 - 1  # the most columns of a row, whose index is an int
FLOATING = ("float", "acc", "double")  # from the narrowest to the widest; "acc" is float or double


@dataclass(frozen=True)
class Kind:
    """The type of a value.

    Attributes:
        base: ``"whole"`` for bool and integers; ``"float"``, ``"acc"`` or ``"double"``; ``"other"`` for the result of a
            function that is not known.
        low, high: bounds of a whole number; None for one whose type wraps around or has 64 bits.
        wide: the whole number has 64 bits.
    """

    base: str
    low: int | None = None
    high: int | None = None
    wide: bool = False

    @property
    def whole(self) -> bool:
        return self.base == "whole"

    @property
    def floating(self) -> bool:
        return self.base in FLOATING

    @property
    def constant(self) -> int | None:
        """The value of a whole number that is the same everywhere."""
        return self.low if self.low == self.high else None


BOOL, ACC, OTHER, ANY_WHOLE = Kind("whole", 0, 1), Kind("acc"), Kind("other"), Kind("whole", wide=True)
# Functions of whole numbers that return whole numbers. Other functions of CUDA compute in floating numbers.
KEEPING = {"abs": 1, "min": 2, "max": 2}
_TESTS = frozenset(("isnan", "isinf", "isfinite", "signbit"))
_TO_WHOLE = frozenset(
    (
        *("lrint", "llrint", "lround", "llround", "ilogb", "labs", "llabs", "llmax", "llmin", "umax", "umin"),
        *("ullmax", "ullmin"),
    )
)
_WIDTHS = {"bool": None, "char": 8, "signed char": 8, "short": 16, "int": 32, "int8_t": 8, "int16_t": 16, "int32_t": 32}


class Kinds:
    """The types of all parts of an expression. Subscripts are parts.

    Raises:
        ExpressionError: an operation on whole numbers means something else in C++ than in arithmetic.
    """

    def __init__(self, tree: Node, whole: Collection[str], text: str) -> None:
        self._whole, self._text = whole, text
        self._found: dict[Node, Kind] = {}
        for node in reversed(list(walk(tree))):  # the parts of a node come after it
            self._found[node] = self._of(node)

    def __getitem__(self, node: Node) -> Kind:
        return self._found[node]

    def _written(self, node: Node) -> str:
        return self._text[node.start : node.end]

    def _of(self, node: Node) -> Kind:
        parts = [self._found[part] for part in node.parts]
        if node.kind == "number":
            return _whole(int(node.value), int(node.value)) if isinstance(node.value, int) else _literal(node.word)
        if node.kind == "name":
            return self._name(node.word)
        if node.kind == "parentheses":
            return parts[0]
        if node.kind == "cast":
            return _cast(node.word, parts[0])
        if node.kind == "index":
            return ACC
        if node.kind == "conditional":
            return joined(parts[1:])
        if node.kind == "unary":
            return self._unary(node, parts[0])
        if node.kind == "binary":
            return self._binary(node, *parts)
        return _call(node.word, parts) if node.kind == "call" else OTHER

    def _name(self, name: str) -> Kind:
        if name in CONSTANTS:
            value = CONSTANTS[name]
            return Kind("whole", int(value), int(value)) if isinstance(value, bool) else _literal(name)
        if name not in self._whole:
            return ACC
        if name == "N":
            return Kind("whole", 0, _COLUMNS, wide=True)
        return Kind("whole", 0 if name == "j" else -_COLUMNS, _COLUMNS)

    def _unary(self, node: Node, of: Kind) -> Kind:
        if node.word == "!":
            return BOOL
        if node.word == "~" and of.floating:
            raise ExpressionError("~ is of whole numbers in CUDA C++: write ! for `not`")
        if not of.whole or of.low is None or of.high is None or node.word == "+":
            return of
        low, high = (-of.high, -of.low) if node.word == "-" else (~of.high, ~of.low)
        return _whole(low, high, of.wide)

    def _binary(self, node: Node, a: Kind, b: Kind) -> Kind:
        sign = node.word
        if sign in ("==", "!=", "<", ">", "<=", ">=", "&&", "||"):
            return BOOL
        if sign in ("%", "^", "&", "|", "<<", ">>"):
            return self._of_whole_numbers(node, a, b)
        if not (a.whole and b.whole):
            of = joined([a, b])
            return ACC if sign == "/" and of == OTHER else of  # the kernel divides by acc_t(b)
        if sign == "/":
            return self._quotient(node, a, b)
        if a.low is None or a.high is None or b.low is None or b.high is None:
            return ANY_WHOLE
        if sign == "*":
            ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        else:
            ends = [a.low + b.low, a.high + b.high] if sign == "+" else [a.low - b.high, a.high - b.low]
        if min(ends) < -_LONG or max(ends) >= _LONG:
            raise ExpressionError(
                f"{self._written(node)} may not fit a whole number of 64 bits: write {self._as_acc(node.parts[0])} "
                f"{sign} {self._written(node.parts[1])}"
            )
        return _whole(min(ends), max(ends), a.wide or b.wide)

    def _quotient(self, node: Node, a: Kind, b: Kind) -> Kind:
        if b.constant == 0:
            raise ExpressionError(f"{self._written(node)} divides by 0")
        if a.constant is not None and b.constant and a.constant % b.constant == 0:
            return _whole(a.constant // b.constant, a.constant // b.constant, a.wide or b.wide)
        first, second = (bare(part) for part in node.parts)
        written, divisor = self._written(node.parts[0]), self._written(node.parts[1])
        if first.kind == "number" and _plain(first.word):
            real = f"{first.word}.0 / {divisor}"
        elif second.kind == "number" and _plain(second.word):
            real = f"{written} / {second.word}.0"
        else:
            real = f"{self._as_acc(node.parts[0])} / {divisor}"
        if first.kind == second.kind == "number" and b.constant:
            is_what = f"{int((a.constant or 0) / b.constant)} in CUDA C++, a division of whole numbers"
            raise ExpressionError(f"{self._written(node)} is {is_what}: write {real}")
        raise ExpressionError(
            f"{self._written(node)} is a division of whole numbers, which CUDA C++ rounds to a whole number: write "
            f"{real}, or trunc({real}) for the whole number"
        )

    def _as_acc(self, node: Node) -> str:
        written = self._written(node)
        return f"acc_t{written}" if node.kind == "parentheses" else f"acc_t({written})"

    def _of_whole_numbers(self, node: Node, a: Kind, b: Kind) -> Kind:
        sign = node.word
        if a.floating or b.floating:
            first, second = (_short(part, name) for part, name in zip(node.parts, ("a", "b"), strict=True))
            if sign == "%":
                raise ExpressionError(f"% is of whole numbers in CUDA C++: write fmod({first}, {second})")
            if sign == "^":
                product = f"{first} * {first}, or " if second == "2" else ""
                words = "^ is exclusive or in CUDA C++, of whole numbers alone"
                raise ExpressionError(f"{words}: write {product}pow({first}, {second})")
            instead = {
                "&": "&& for `and`, and parentheses around comparisons",
                "|": "|| for `or`, and parentheses around comparisons",
                "<<": f"{first} * exp2({second})",
                ">>": f"{first} / exp2({second})",
            }
            raise ExpressionError(f"{sign} is of whole numbers in CUDA C++: write {instead[sign]}")
        if not (a.whole and b.whole):
            return OTHER
        if sign in ("<<", ">>"):
            return self._shift(node, a, b)
        if sign == "%" and b.constant == 0:
            raise ExpressionError(f"{self._written(node)} divides by 0")
        if a.low is None or a.high is None or b.low is None or b.high is None:
            return ANY_WHOLE
        if sign == "%":
            most = min(max(-a.low, a.high), max(-b.low, b.high) - 1)
            return Kind("whole", -most if a.low < 0 else 0, most, a.wide or b.wide)
        bits = max(abs(end).bit_length() for end in (a.low, a.high, b.low, b.high))
        return Kind("whole", -(2**bits) if min(a.low, b.low) < 0 else 0, 2**bits - 1, a.wide or b.wide)

    def _shift(self, node: Node, a: Kind, b: Kind) -> Kind:
        by = b.constant
        if by is None or not 0 <= by < 63:
            power = f"exp2({self._as_acc(node.parts[1])})"
            value, sign = self._as_acc(node.parts[0]), "*" if node.word == "<<" else "/"
            real = f"{value} {sign} {power}" if sign == "*" else f"floor({value} / {power})"
            raise ExpressionError(f"a shift must be by a number from 0 to 62: for {self._written(node)} write {real}")
        if a.low is None or a.high is None:
            return ANY_WHOLE
        if node.word == ">>":
            return Kind("whole", a.low >> by, a.high >> by, a.wide)
        if a.low << by < -_LONG or a.high << by >= _LONG:
            raise ExpressionError(
                f"{self._written(node)} may not fit a whole number of 64 bits: write {self._as_acc(node.parts[0])} * "
                f"{2.0**by!r}"
            )
        return _whole(a.low << by, a.high << by, a.wide)


@lru_cache(4096)
def _kinds(text: str, whole: frozenset[str]) -> Kinds:
    return Kinds(parsed(text), whole, text)


def kinds_of(text: str, whole: Collection[str] = ()) -> Kinds:
    """Returns the types of the parts of an expression.

    Args:
        text: the expression.
        whole: names that are whole numbers: ``j``, ``N`` and indices.

    Raises:
        ExpressionError: as :class:`Kinds`.
    """
    return _kinds(text, frozenset(whole))


def _whole(low: int, high: int, wide: bool = False) -> Kind:
    return Kind("whole", low, high, wide or low < -_INT or high >= _INT)


def _literal(word: str) -> Kind:
    """A number with a fraction has the type of the arithmetic, unless it ends with f."""
    return Kind("float") if word in ("INFINITY", "NAN") or (word[0] in ".0123456789" and word[-1] in "fF") else ACC


def _plain(word: str) -> bool:
    return word.isdecimal() and (word == "0" or word[0] != "0")


def _short(node: Node, otherwise: str) -> str:
    return node.word if node.kind in ("name", "number") else otherwise


def joined(kinds: Collection[Kind]) -> Kind:
    """The type of arithmetic between values, and of a choice between them."""
    floating = [k.base for k in kinds if k.floating]
    if floating:
        return Kind(max(floating, key=FLOATING.index))
    if not all(k.whole for k in kinds):
        return OTHER
    lows, highs = [k.low for k in kinds], [k.high for k in kinds]
    wide = any(k.wide for k in kinds)
    if None in lows or None in highs:
        return Kind("whole", wide=wide)
    return Kind("whole", min(low for low in lows if low is not None), max(h for h in highs if h is not None), wide)


def _cast(word: str, of: Kind) -> Kind:
    word = " ".join(w for w in word.split() if w != "const")
    if word in ("acc_t", "float", "double"):
        return Kind(word.removesuffix("_t"))
    if word == "scalar_t":
        return OTHER
    if word == "bool":
        return BOOL
    bits = _WIDTHS.get(word)
    if bits is None:
        return ANY_WHOLE
    if of.low is not None and of.high is not None and -(2 ** (bits - 1)) <= of.low and of.high < 2 ** (bits - 1):
        return Kind("whole", of.low, of.high)
    return Kind("whole", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _call(word: str, parts: list[Kind]) -> Kind:
    name = word.removeprefix("::").removeprefix("std::")
    if name in _TESTS:
        return BOOL
    if name in _TO_WHOLE:
        return ANY_WHOLE
    if name in KEEPING and len(parts) == KEEPING[name] and all(p.whole for p in parts):
        if len(parts) == 2:
            return joined(parts)
        of = parts[0]
        if of.low is None or of.high is None:
            return of
        ends = (abs(of.low), abs(of.high))
        return _whole(0 if of.low <= 0 <= of.high else min(ends), max(ends), of.wide)
    if name in ("sum", "min", "max", "column_sum", "rounded") and len(parts) == 1:
        return ACC
    if name in CUDA_FUNCTIONS:
        return Kind("double") if any(p.base == "double" for p in parts) else ACC
    if name.endswith("f") and name[:-1] in CUDA_FUNCTIONS:
        return Kind("float")
    return OTHER
