"""Parses an expression of CUDA C++ to a tree, with C++'s precedence.

Whatever is known of a formula is asked of its tree: the names that it reads, the calls in it, the type of each part
(:mod:`cupyops.programs.kinds`), the text of the kernel, and the translation to PyTorch.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from cupyops.compile.standard import NUMBERS

__all__ = ["CONSTANTS", "TYPES", "ExpressionError", "Node", "bare", "is_type", "parsed", "same", "walk"]

# Names of numbers. None of them is a variable.
CONSTANTS = {"INFINITY": float("inf"), "NAN": float("nan"), "true": True, "false": False, **NUMBERS}
# Names of types, which a cast may have.
TYPES = frozenset(
    (
        *("float", "double", "int", "unsigned", "signed", "long", "short", "char", "bool", "size_t", "uint"),
        *("acc_t", "scalar_t", "const"),
        *(f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
_BINARY = (
    *(("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">=")),
    *(("<<", ">>"), ("+", "-"), ("*", "/", "%")),
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<sign>\+\+|--|<<|>>|[<>=!]=|&&|\|\||::|[-+*/%<>=!?:(),\[\]&|^~.{}]))",
    re.ASCII,
)
_WHOLE = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)([uU]?)(?:ll?|LL?)?([uU]?)")
_DECIMAL = re.compile(r"((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)[fFlL]?")
_HEXADECIMAL = re.compile(r"(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFlL]?")
_DEEPEST = 200  # of a tree, whose parts are visited one within the other


class ExpressionError(Exception):
    """What is written is no expression that a program may have."""


@dataclass(frozen=True, eq=False)
class Node:
    """A part of an expression.

    Attributes:
        kind: ``"number"``, ``"name"``, ``"parentheses"``, ``"unary"``, ``"binary"``, ``"conditional"``, ``"call"``,
            ``"cast"``, ``"index"`` or ``"member"``.
        start, end: the place in the text.
        word: the name, the operator, the function or the type; of a number its text.
        parts: the operands or arguments. Those of an index are two names.
        value: of a number.
        depth: the number of parts that lie one within the other.
    """

    kind: str
    start: int
    end: int
    word: str = ""
    parts: tuple["Node", ...] = ()
    value: int | float = 0
    depth: int = 0


def bare(node: Node) -> Node:
    """Returns the part within parentheses."""
    while node.kind == "parentheses":
        node = node.parts[0]
    return node


def walk(node: Node) -> Iterator[Node]:
    """Yields a part and all parts in it, in the order of the text."""
    left = [node]
    while left:
        found = left.pop()
        yield found
        left += reversed(found.parts)


def same(a: Node, b: Node) -> bool:
    """Returns whether two expressions are equal except for spaces and parentheses."""
    a, b = bare(a), bare(b)
    return (
        (a.kind, a.word, len(a.parts)) == (b.kind, b.word, len(b.parts))
        and a.value == b.value
        and all(map(same, a.parts, b.parts))
    )


def is_type(word: str) -> bool:
    """Returns whether each word is one of a type."""
    return set(word.split()) <= TYPES


@lru_cache(4096)
def parsed(text: str) -> Node:
    """Returns the tree of an expression.

    >>> tree = parsed("x < w - m")
    >>> tree.word, [part.kind for part in tree.parts]
    ('<', ['name', 'binary'])

    Raises:
        ExpressionError: with the part of the text that is none.
    """
    return _Parser(text).whole


def _tokens(text: str) -> list[tuple[str, str, int, int]]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"`{text[at:].strip()[:1]}` is no part of an expression")
        kind = str(match.lastgroup)
        found.append((kind, match[kind], *match.span(kind)))
        at = match.end()
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._at, self._open = text, _tokens(text), 0, 0
        self.whole = self._conditional()
        if self._at < len(self._tokens):
            raise ExpressionError(f"expected an operator before `{text[self._tokens[self._at][2] :].strip()}`")

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at][:2] if at < len(self._tokens) else ("end", "")

    def _take(self, sign: str) -> bool:
        taken = self._peek() == ("sign", sign)
        self._at += taken
        return taken

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            rest = self._text[self._tokens[self._at][2] :].strip() if self._at < len(self._tokens) else "the end"
            raise ExpressionError(f"expected `{sign}` before `{rest}`")

    def _start(self) -> int:
        return self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)

    def _made(self, kind: str, start: int, word: str, *parts: Node, value: int | float = 0) -> Node:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > _DEEPEST:
            raise ExpressionError("the expression is too long: assign parts of it to names")
        return Node(kind, start, self._tokens[self._at - 1][3], word, parts, value, depth)

    def _conditional(self) -> Node:
        start, condition = self._start(), self._binary(0)
        if not self._take("?"):
            return condition
        first = self._conditional()
        self._need(":")
        return self._made("conditional", start, "?", condition, first, self._conditional())

    def _binary(self, level: int) -> Node:
        if level == len(_BINARY):
            return self._unary()
        start, left = self._start(), self._binary(level + 1)
        while self._peek()[0] == "sign" and (sign := self._peek()[1]) in _BINARY[level]:
            self._at += 1
            left = self._made("binary", start, sign, left, self._binary(level + 1))
        return left

    def _unary(self) -> Node:
        self._open += 1
        if self._open > _DEEPEST // 4:  # of parentheses and signs, each of which calls all functions of this class
            raise ExpressionError("the expression is too long: assign parts of it to names")
        start, (kind, word) = self._start(), self._peek()
        if kind == "sign" and word in ("-", "+", "!", "~"):
            self._at += 1
            found = self._made("unary", start, word, self._unary())
        elif (kind, word) == ("sign", "(") and (count := self._type_ahead(1)) and self._peek(count + 1)[1] == ")":
            word = " ".join(self._peek(1 + i)[1] for i in range(count))
            self._at += count + 2
            found = self._made("cast", start, word, self._unary())
        else:
            found = self._postfix()
        self._open -= 1
        return found

    def _type_ahead(self, ahead: int) -> int:
        """Returns the number of words of a type from this token on."""
        count = 0
        while self._peek(ahead + count)[0] == "word" and self._peek(ahead + count)[1] in TYPES:
            count += 1
        return count

    def _postfix(self) -> Node:
        start, found = self._start(), self._primary()
        while self._peek() == ("sign", ".") and self._peek(1)[0] == "word":
            self._at += 2
            found = self._made("member", start, self._tokens[self._at - 1][1], found)
        return found

    def _primary(self) -> Node:
        start, (kind, word) = self._start(), self._peek()
        self._at += 1
        if kind == "number":
            return self._made("number", start, word, value=_value(word))
        if (kind, word) == ("sign", "("):
            inner = self._conditional()
            self._need(")")
            return self._made("parentheses", start, "", inner)
        if (kind, word) == ("sign", "::") and self._peek()[0] == "word":
            word += self._peek()[1]
            self._at += 1
        elif kind != "word":
            rest = self._text[start:].strip()
            raise ExpressionError(f"expected a value before `{rest}`" if rest else "it ends within an expression")
        while self._peek() == ("sign", "::") and self._peek(1)[0] == "word":
            word += "::" + self._peek(1)[1]
            self._at += 2
        count = self._type_ahead(1) if self._peek() == ("sign", "<") else 0
        if count and (self._peek(count + 1), self._peek(count + 2)) == (("sign", ">"), ("sign", "(")):
            word += f"<{' '.join(self._peek(1 + i)[1] for i in range(count))}>"
            self._at += count + 2
        if self._take("("):
            arguments = [] if self._peek() == ("sign", ")") else [self._conditional()]
            while self._take(","):
                arguments.append(self._conditional())
            self._need(")")
            if word in TYPES and len(arguments) == 1:
                return self._made("cast", start, word, *arguments)
            return self._made("call", start, word, *arguments)
        if self._peek() == ("sign", "["):
            self._at += 1
            of, at = Node("name", start, self._tokens[self._at - 2][3], word), self._start()
            kind, index = self._peek()
            self._at += 1
            if kind != "word":
                raise ExpressionError(f"the index of {word}[...] must be a name")
            place = self._made("name", at, index)
            self._need("]")
            return self._made("index", start, word, of, place)
        if word in TYPES:
            raise ExpressionError(f"`{word}` is a reserved word, and can be no name")
        return self._made("name", start, word)


def _value(word: str) -> int | float:
    """Returns the value of a number in C++."""
    written = word.replace("'", "")
    if match := _WHOLE.fullmatch(written):
        digits = match[1]
        base = {"x": 16, "b": 2}.get(digits[1:2].lower(), 8 if digits[0] == "0" else 10)
        value = int(digits, base)
        if match[2] or match[3]:
            raise ExpressionError(f"unsigned numbers wrap around: write {value} for {word}")
        if value >= 2**63:
            raise ExpressionError(f"{word} has more than 63 bits: write {float(value)!r}")
        return value
    if match := _DECIMAL.fullmatch(written):
        return float(match[1])
    if match := _HEXADECIMAL.fullmatch(written):
        return float.fromhex(match[1])
    raise ExpressionError(f"`{word}` is not a number of CUDA C++")
