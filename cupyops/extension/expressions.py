"""Translates expressions of the host half of an extension from C++ to Python.

The calls of PyTorch's C++ library become those of its Python library: ``torch::cat({a, b}, 1)`` is ``torch.cat([a, b], 1)``.
A pointer or an accessor of a tensor becomes the tensor, because a launch takes tensors. An expression that is not
understood has no translation.
"""

import ast
import keyword
import re
from collections.abc import Collection, Sequence

from cupyops.compile.definitions import split

from .reading import pairs_of

__all__ = ["NotTranslated", "expression", "parts", "python_name", "split_angles"]


class NotTranslated(Exception):
    """An expression or a statement of C++ has no translation."""


_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[uUlLfF]*)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<string>\"(?:\\.|[^\"\\])*\")|(?P<mark>::|->|&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%<>!?:.,()\[\]{}~&|^=]))"
)
_DTYPES = {
    "kFloat": "float32",
    "kFloat32": "float32",
    "kDouble": "float64",
    "kFloat64": "float64",
    "kHalf": "float16",
    "kFloat16": "float16",
    "kBFloat16": "bfloat16",
    "kInt": "int32",
    "kInt32": "int32",
    "kLong": "int64",
    "kInt64": "int64",
    "kShort": "int16",
    "kInt16": "int16",
    "kChar": "int8",
    "kInt8": "int8",
    "kByte": "uint8",
    "kUInt8": "uint8",
    "kBool": "bool",
}
_WORDS = {"true": "True", "false": "False", "nullptr": "None", "NULL": "None", "nullopt": "None"}
_MARKS = {"->": ".", "&&": " and ", "||": " or ", "!": "not ", "{": "[", "}": "]"}
_INTEGERS = frozenset(
    ("int", "long", "short", "unsigned", "size_t", "int64_t", "int32_t", "uint32_t", "uint64_t", "uint")
)
_FLOATS = frozenset(("float", "double", "scalar_t", "acc_t", "accscalar_t"))
# Methods of a tensor that give a kernel's argument. They are left out, because a launch takes the tensor.
_ADDRESSES = frozenset(("data_ptr", "data", "mutable_data_ptr", "const_data_ptr", "packed_accessor", "accessor")) | {
    f"packed_accessor{bits}" for bits in (32, 64)
}
_RENAMED = {"scalar_type": "dtype", "dtype": "dtype", "sizes": "shape", "strides": "stride()", "device": "device"}
# C++ names without a counterpart in Python.
_UNKNOWN = frozenset(("TensorOptions", "new", "delete", "sizeof", "auto", "const", "cuda", "type", "string"))


def expression(text: str, floats: Collection[str] = ()) -> str:
    """Returns an expression of C++ in Python.

    Args:
        text: the expression, without comments.
        floats: the names of floating variables. The division of other variables is an integer division.

    Raises:
        NotTranslated: the expression is not understood.
    """
    words = set(re.findall(r"\b[A-Za-z_]\w*\b", text))
    floating = bool(
        re.search(r"\d\.\d|\d\.|\.\d|\b(?:float|double)\b|\blog|\bsqrt|\bexp", text)
    ) or not words.isdisjoint(floats)
    found = _Reader(_tokens(text), "/" if floating else "//").all()
    found = _options(found)
    try:
        tree = ast.parse(found, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        raise NotTranslated(text) from None
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
    }
    if not used.isdisjoint(_UNKNOWN | {"options"}):
        raise NotTranslated(text)
    return ast.unparse(_Python().visit(tree))


class _Python(ast.NodeTransformer):
    """Replaces methods of C++'s tensors that Python's tensors do not have, and functions of mathematics."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("ceil", "floor", "log", "log2", "sqrt", "exp"):
            node.func = ast.Attribute(ast.Name("math"), node.func.id)
        if not isinstance(node.func, ast.Attribute):
            return node
        x, method = node.func.value, node.func.attr
        if method == "defined" and not node.args:
            return ast.Compare(x, [ast.IsNot()], [ast.Constant(None)])
        if method == "Tensor" and not node.args and isinstance(x, ast.Name) and x.id == "torch":
            return ast.Constant(None)
        if method == "slice" and 2 <= len(node.args) <= 3 and not node.keywords:
            try:
                dimension = ast.literal_eval(node.args[0])
            except ValueError:
                raise NotTranslated(ast.unparse(node)) from None
            colon: list[ast.expr] = [ast.Slice() for _ in range(dimension)] if dimension >= 0 else [ast.Constant(...)]
            colon.append(ast.Slice(node.args[1], node.args[2] if len(node.args) > 2 else None))
            return ast.Subscript(x, colon[0] if len(colon) == 1 else ast.Tuple(colon))
        return node


def python_name(word: str) -> str:
    """Returns a name of C++ in Python: with an underscore if it is a keyword of Python."""
    return f"{word}_" if keyword.iskeyword(word) and word not in _WORDS.values() else word


def parts(text: str) -> list[str]:
    """Splits a C++ list at its commas, but not at commas in brackets and in template arguments."""
    return [part.strip() for _, part in split(text) if part.strip()]


def split_angles(text: str) -> tuple[str, str]:
    """Returns the text between the angle brackets with which a text begins, and the text behind them."""
    depth = 0
    for match in re.finditer(r"[<>()]", text):
        depth += (match[0] in "<(") - (match[0] in ">)")
        if not depth:
            return text[1 : match.start()], text[match.end() :]
    raise NotTranslated(text)


def _tokens(text: str) -> list[str]:
    found, at, text = [], 0, text.strip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise NotTranslated(text)
        found.append(token[0].strip())
        at = token.end()
    return found


def _options(text: str) -> str:
    """Replaces ``x.options()``, the last argument of an allocation, by the dtype and the device."""
    text = re.sub(r"([\w.]+)\.options\(\)\.dtype\(([\w.]+)\)", r"dtype=\2, device=\1.device", text)
    return re.sub(r"([\w.]+)\.options\(\)", r"dtype=\1.dtype, device=\1.device", text)


class _Reader:
    def __init__(self, tokens: Sequence[str], quotient: str) -> None:
        self._tokens, self._at, self._quotient = list(tokens), 0, quotient
        self._pairs = self._closing()

    def _closing(self) -> dict[int, int]:
        text = "".join(t if t in "()[]{}" and len(t) == 1 else " " for t in self._tokens)
        return pairs_of(text)

    def all(self) -> str:
        return self._list(len(self._tokens))

    def _list(self, end: int) -> str:
        """Returns the parts between commas up to a position."""
        found = []
        while self._at < end:
            found.append(self._part(end))
            if self._at < end:
                self._at += 1  # the comma
        return ", ".join(found)

    def _part(self, end: int) -> str:
        """Returns one part, with ``condition ? yes : no`` in Python's order."""
        pieces: list[str] = []
        while self._at < end and self._peek() != ",":
            token = self._peek()
            if token == "?":
                self._at += 1
                yes = self._until_colon(end)
                no = self._part(end)
                return f"({yes} if {_joined(pieces)} else {no})"
            if token == ":":
                break
            self._one(pieces)
        return _joined(pieces)

    def _until_colon(self, end: int) -> str:
        found = self._part(end)
        if self._peek() != ":":
            raise NotTranslated(found)
        self._at += 1
        return found

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _one(self, pieces: list[str]) -> None:
        """Translates one token, a group in brackets, or a cast."""
        token = self._peek()
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            pieces.append(token if token[:2] in ("0x", "0X") else token.rstrip("uUlLfF"))
            self._at += 1
        elif token[0].isalpha() or token[0] == "_":
            self._word(pieces)
        elif token in "([{":
            self._group(pieces)
        elif token in ("&", "|", "^", "~", "=", "::", "<<", ">>") and token not in ("<<", ">>"):
            if token != "::" or (pieces and pieces[-1][-1:].isalnum()):
                raise NotTranslated(token)
            self._at += 1
        elif token == "*" and (not pieces or pieces[-1].endswith(("(", " ", "="))):
            raise NotTranslated(token)
        else:
            pieces.append(self._quotient if token == "/" else _MARKS.get(token, token))
            self._at += 1

    def _group(self, pieces: list[str]) -> None:
        closing = self._pairs.get(self._at)
        if closing is None:
            raise NotTranslated("".join(self._tokens))
        inside = self._tokens[self._at + 1 : closing]
        opening = self._peek()
        called = bool(pieces) and re.search(r"[\w\])]$", pieces[-1]) is not None
        if opening == "(" and not called and (cast := _cast(inside)):
            self._at = closing + 1
            operand: list[str] = []
            if self._peek() == "-":
                operand.append("-")
                self._at += 1
            self._one(operand)
            while self._peek() in (".", "->", "(", "["):
                self._one(operand)
                if operand[-1] == ".":
                    self._word(operand)
            pieces.append(f"{cast}({_joined(operand)})")
            return
        if opening == "(" and not called and _is_pointer(inside):
            self._at = closing + 1
            return
        if opening == "{" and called:
            raise NotTranslated("".join(self._tokens))
        self._at += 1
        found = self._list(closing)
        self._at = closing + 1
        marks = {"(": "()", "[": "[]", "{": "[]"}[opening]
        pieces.append(f"{marks[0]}{found}{marks[1]}")

    def _word(self, pieces: list[str]) -> None:
        word = self._peek()
        self._at += 1
        if word in ("torch", "at", "c10") and self._peek() == "::":
            self._at += 1
            name = self._peek()
            self._at += 1
            if (
                name in ("cuda", "native", "indexing", "autograd", "TensorOptions", "dtype", "device")
                or not name.isidentifier()
            ):
                raise NotTranslated(name)
            if name in ("ceil_div",):
                pieces.append(name)
            else:
                pieces.append(_WORDS[name] if name in _WORDS else f"torch.{_DTYPES.get(name, name)}")
            return
        if word == "std" and self._peek() == "::":
            self._at += 1
            name = self._peek()
            self._at += 1
            if name == "get" and self._peek() == "<":
                index = self._angles()
                closing = self._pairs.get(self._at, -1)
                inside = _Reader(self._tokens[self._at + 1 : closing], self._quotient).all()
                self._at = closing + 1
                pieces.append(f"{inside}[{index}]")
                return
            if name in ("min", "max", "abs", "pow", "round"):
                if self._peek() == "<":
                    self._angles()
                pieces.append(name)
                return
            if name in ("make_tuple", "tie"):
                return
            if name in ("floor", "ceil", "log", "log2", "sqrt", "exp"):
                pieces.append(f"math.{name}")
                return
            if name == "vector" and self._peek() == "<":
                self._angles()
                return
            raise NotTranslated(name)
        if word in ("static_cast", "reinterpret_cast") and self._peek() == "<":
            kind = _tokens(self._angles())
            if _is_pointer(kind):
                return  # the tensor replaces its pointer, and the launch compares the tensor's dtype
            cast = _cast(kind)
            if not cast:
                raise NotTranslated(word)
            pieces.append(cast)
            return
        after_dot = bool(pieces) and pieces[-1] == "."
        if after_dot and word in _ADDRESSES:
            if self._peek() == "<":
                self._angles()
            if self._peek() != "(" or self._peek(1) != ")":
                raise NotTranslated(word)
            self._at += 2
            pieces.pop()
            return
        if after_dot and word in _RENAMED and self._peek() == "(" and self._peek(1) == ")":
            self._at += 2
            pieces.append(_RENAMED[word])
            return
        if after_dot and word in ("item", "toType", "is_cuda") and self._peek() in ("<", "("):
            if self._peek() == "<":
                self._angles()
            if word == "is_cuda":
                self._at += 2
            pieces.append("to" if word == "toType" else word)
            return
        if not after_dot and word in _DTYPES:
            pieces.append(f"torch.{_DTYPES[word]}")
            return
        if self._peek() == "::":
            raise NotTranslated(word)
        if word in _INTEGERS | {"float", "double", "bool"} and not after_dot and self._peek() != "(":
            raise NotTranslated(word)  # a type
        pieces.append(_CASTS.get(word, _WORDS.get(word, python_name(word))) if not after_dot else word)

    def _angles(self) -> str:
        """Returns the text in angle brackets, and moves the position behind the closing bracket."""
        depth, start = 0, self._at + 1
        while self._at < len(self._tokens):
            token = self._peek()
            depth += token.count("<") if token in ("<", "<<") else 0
            depth -= token.count(">") if token in (">", ">>") else 0
            self._at += 1
            if not depth:
                return " ".join(self._tokens[start : self._at - 1])
        raise NotTranslated("".join(self._tokens))


_CASTS = {**dict.fromkeys(_INTEGERS, "int"), "double": "float"}


def _cast(inside: Sequence[str]) -> str:
    """Returns the Python function of a cast to a type, or ``""`` if the tokens are no type of numbers."""
    words = [word for word in inside if word not in ("const", "std", "::")]
    if words and all(word in _INTEGERS for word in words):
        return "int"
    if len(words) == 1 and words[0] in _FLOATS:
        return "float"
    return "bool" if words == ["bool"] else ""


def _is_pointer(inside: Sequence[str]) -> bool:
    """Returns whether tokens are the type of a pointer."""
    return len(inside) > 1 and inside[-1] == "*" and all(t == "::" or t.isidentifier() for t in inside[:-1])


def _joined(pieces: Sequence[str]) -> str:
    """Returns the pieces of an expression with blanks around operators."""
    found = ""
    for i, piece in enumerate(pieces):
        binary = piece in ("+", "-", "*", "/", "//", "%", "<", ">", "<=", ">=", "==", "!=", "<<", ">>")
        if (
            binary
            and found
            and not (piece == "-" and (i == 0 or pieces[i - 1] in ("+", "-", "*", "/", "//", "<", ">")))
        ):
            found += f" {piece} "
        else:
            found += piece
    return found.strip()
