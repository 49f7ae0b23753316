"""Resolves the macros and the type names in a kernel's declaration.

``typedef float real;``, ``#define RESTRICT __restrict__`` and ``#define POINTER(T) T* __restrict__`` are followed, and an
enumeration stands for its integer type. Alias templates, ``template <bool B> using Out = std::conditional_t<B, float,
int>``, and the member types of a struct, ``Vector<float>::Type``, are followed, too. A name that a branch of an
undecided ``#if`` defines is left as it is, since only a compiler decides which definition counts.
"""

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

from cupyops.compile.cuda_text import scan
from cupyops.compile.definitions import split
from cupyops.compile.preprocess import preprocess, value_of
from cupyops.dtypes import DTYPES

from .structs import Struct, aliases_in, arguments_in, key_of, structs_in, substituted, template_parameters

__all__ = ["TypeNames", "c_dtype", "defined_types", "dtype_of", "type_names"]

# The dtype of each type of C that is a number.
C_TYPES = {d.c_type: d.name for d in DTYPES.values()} | {
    "char": "int8",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "int16_t": "int16",
    "uint16_t": "uint16",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "intmax_t": "int64",
    "uintmax_t": "uint64",
    "intptr_t": "int64",
    "uintptr_t": "uint64",
    "size_t": "uint64",
    "ssize_t": "int64",
    "ptrdiff_t": "int64",
    "uint": "uint32",
    "ushort": "uint16",
    "ulong": "uint32" if sys.platform == "win32" else "uint64",
    "cufftReal": "float32",
    "cufftDoubleReal": "float64",
    "half": "float16",
    "nv_bfloat16": "bfloat16",
    **{f"{space}::Half": "float16" for space in ("at", "c10", "torch")},
    **{f"{space}::BFloat16": "bfloat16" for space in ("at", "c10", "torch")},
    "nvcuda::wmma::layout_t": "int32",
    "wmma::layout_t": "int32",
    **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8_e5m2", "__nv_fp8_e8m0"), "uint8"),
    "__nv_fp8_storage_t": "uint8",
    "__nv_fp8x2_storage_t": "uint16",
    "__nv_fp8x4_storage_t": "uint32",
    "clock_t": "int32" if sys.platform == "win32" else "int64",
}

_MACRO = re.compile(r"(\w+)(?![\w(])")  # a macro without parameters
_USED = re.compile(r"\busing\s+(?P<path>(?:::\s*)?(?:\w+\s*::\s*)+(?P<name>\w+))\s*;")  # `using space::name;`
_OPENED = re.compile(r"\busing\s+namespace\s+([\w:]+)\s*;")
# A typedef does not match across another `typedef`, so that the time stays linear in the text.
_ALIAS = re.compile(
    r"\busing\s+(?P<using>\w+)\s*=(?P<target>[^;{}=]*)|\btypedef\b(?P<typedef>(?:(?!\btypedef\b)[^;{}])*);"
)
# An enumeration, also one that a typedef names. The braces of an enumeration have no braces inside.
_ENUMERATION = re.compile(
    r"\benum\b(?:\s+(?:class|struct)\b)?(?:\s+(?P<tag>\w+))?(?:\s*:\s*(?P<of>[\w:\s]{1,64}?))?"
    r"\s*\{[^{}]*\}(?:\s*(?P<name>\w+))?\s*;"
)
_INSTANCE = re.compile(r"(?:[\w\s]*::)*\s*(\w+)\s*<(.*)>", re.DOTALL)
_MEMBER = re.compile(r"(.+?)\s*::\s*(\w+)", re.DOTALL)  # a member type of a struct
_SAME = re.compile(r"(?:std\s*::\s*)?is_same(?:_v\s*<([^<>,]*),([^<>,]*)>|\s*<([^<>,]*),([^<>,]*)>\s*::\s*value)")
_FUNCTION = re.compile(r"\(\s*\*\s*(\w+)\s*\)\s*\(")  # the name of a pointer to a function
_ARGUMENTS = re.compile(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>")  # of a template
_LAST_WORD = re.compile(r"\b(\w+)\s*(?=,|\Z)")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_DEPTH = 8  # macros and types within one another
_LONGEST = 10_000  # characters of an expanded declaration

_FIXED = re.compile(r"(?:std::)?u?int(?:8|16|32)_t|uint|ushort")
_STD = re.compile(r"\A(?:::\s*)?(?:(?:cuda\s*::\s*)?std\s*::\s*)?")
# NVRTC has the host's `long`.
_LONG = "int" if sys.platform == "win32" else "long long"
# An empty class, which a call passes as a byte.
_EMPTY = re.compile(r"(?:integral_constant|bool_constant)\s*<.*>|(?:true|false)_type")
Scope = tuple[str, ...]


class TypeNames:
    """The macros and type names before a kernel.

    Args:
        macros: the text of each macro without parameters; None for an undecided one.
        types: the scopes and the targets of each type name; the target is None for an undecided one.
        scope: the namespaces of the kernel.
        given: the types and numbers that the kernel's name gives for the parameters of its template.
        hidden: the parameters of the kernel's template.
        functions: the parameters and the text of each macro with parameters.
        templates: the scopes, the parameters and the targets of each alias template.
        structs: returns the structs of the text and of its headers, by name.
        opened: the namespaces of ``using namespace``.
    """

    def __init__(
        self,
        macros: Mapping[str, str | None],
        types: Mapping[str, Sequence[tuple[Scope, str | None]]],
        scope: Scope = (),
        given: Mapping[str, str] | None = None,
        hidden: frozenset[str] = frozenset(),
        functions: Mapping[str, tuple[tuple[str, ...], str]] | None = None,
        templates: Mapping[str, Sequence[tuple[Scope, tuple[str, ...], str]]] | None = None,
        structs: Callable[[], Mapping[str, Struct]] = dict,
        opened: Collection[Scope] = (),
    ) -> None:
        self._opened = opened
        self._macros, self._types, self._scope = macros, types, scope
        self._given, self._hidden, self._functions = given or {}, hidden, functions or {}
        self._templates, self._structs = templates or {}, structs

    def expanded(self, code: str) -> str:
        """Returns code with its macros replaced by their texts."""
        for _ in range(_DEPTH):
            new = _WORD.sub(self._text, self._called(code))
            if new == code or len(new) > _LONGEST:
                break
            code = new
        return code

    def _called(self, code: str) -> str:
        """Returns code with its macros that have parameters replaced by their texts."""
        for call in _CALL.finditer(code):
            parameters, text = self._functions.get(call[1], ((), ""))
            end = _closing(code, call.end())
            if call[1] not in self._functions or call[1] in self._hidden or end < 0:
                continue
            arguments = [part.strip() for _, part in split(code[call.end() : end])]
            if len(arguments) == max(len(parameters), 1) and "#" not in text:
                by_name = dict(zip(parameters, arguments, strict=False))
                text = _WORD.sub(lambda word: by_name.get(word[0], word[0]), text)  # noqa: B023 - called at once
                return code[: call.start()] + text + self._called(code[end + 1 :])
        return code

    def _text(self, match: re.Match[str]) -> str:
        text = None if match[0] in self._hidden else self._macros.get(match[0])
        return match[0] if text is None else text

    def argument(self, parameter: str) -> str | None:
        """Returns the type or number that the kernel's name gives for a parameter of its template, or None."""
        return self._given.get(parameter)

    def target(self, base: str) -> str:
        """Returns the type that a type name stands for, or the name itself."""
        for _ in range(_DEPTH):
            if base in self._given:
                base = self._given[base]
                continue
            if (instance := self._instantiated(base)) is not None:
                base = instance
                continue
            path = [word for word in re.split(r"\s*::\s*", base) if word]
            if base in self._hidden or not path:
                break
            visible = [
                target for scope, target in self._types.get(path[-1], ()) if self._visible(scope, tuple(path[:-1]))
            ]
            if not visible or visible[0] is None or set(visible) != {visible[0]}:
                break
            base = " ".join(re.sub(r"\btypename\b", " ", self.expanded(visible[0])).split())
        return base

    def _instantiated(self, base: str) -> str | None:
        """Returns the target of an instance of an alias template, or of a member type of a struct, or None."""
        if "<" not in base and "::" not in base:
            return None
        if (found := _INSTANCE.fullmatch(base)) is not None:
            arguments = [" ".join(part.split()) for _, part in split(found[2])]
            if "" in arguments:  # defaults
                return None
            path = tuple(word for word in re.split(r"\s*::\s*", base.partition("<")[0]) if word)
            if path[-1] in ("opmath_type", "acc_type") and path[:-1] in (("at",), ("c10",)):
                return self._widened(arguments[0])
            if path in (("std", "conditional_t"), ("cuda", "std", "conditional_t")):
                return self._conditional(arguments)
            for scope, parameters, target in self._templates.get(path[-1], ()):
                if len(parameters) == len(arguments) and self._visible(scope, path[:-1]):
                    by_name = dict(zip(parameters, arguments, strict=True))
                    named = _WORD.sub(lambda word: by_name.get(word[0], word[0]), target)  # noqa: B023 - called at once
                    return " ".join(re.sub(r"\btypename\b", " ", named).split())
            for scope, used in self._types.get(path[-1], ()):  # `using space::name;`
                if used and used.endswith(f"::{path[-1]}") and not path[:-1] and self._visible(scope, ()):
                    return f"{used}<{found[2]}>"
        if (member := _MEMBER.fullmatch(base)) is None:
            return None
        if re.fullmatch(r"(?:cuda\s*::\s*)?std\s*::\s*conditional\s*<.*>", member[1]) and member[2] == "type":
            return self._conditional([" ".join(part.split()) for _, part in split(member[1].partition("<")[2][:-1])])
        of = self._given.get(member[1], member[1])
        name = self.instance(of) if "<" in of else of.rpartition("::")[2].strip()
        path = tuple(word for word in re.split(r"\s*::\s*", of.partition("<")[0]) if word)[:-1]
        struct = self._chosen(name, path)
        if key_of(nested := f"{name}::{member[2]}") in self._structs() and nested != base:
            return nested
        aliases = aliases_in(struct.body) if struct else {}
        if struct is None or member[2] not in aliases:
            return None  # an inherited type, for one
        declared = aliases[member[2]]
        for _ in range(_DEPTH):
            declared = re.sub(r"(?<![\w:])[A-Za-z_]\w*\b", lambda word: aliases.get(word[0], word[0]), declared)
        try:
            target = substituted(declared, struct, name)
        except ValueError:
            return None
        return " ".join(re.sub(r"\btypename\b", " ", target).split())

    def _chosen(self, name: str, path: Scope) -> Struct | None:
        """Returns a struct, or the definition of a template for an instance; None if only a compiler knows which definition holds."""
        structs = self._structs()
        tag = name.partition("<")[0]
        others = [key for key in structs if key.startswith(f"{tag}<")]
        chosen = name if name in structs else tag
        if "<" in name and others:
            if any(structs[key].parameters for key in others):
                return None  # a partial specialization
            if chosen == tag:
                wanted, *found = [[*map(self._kind, arguments_in(key))] for key in (name, *others)]
                if any("" in of or len(of) != len(wanted) for of in (wanted, *found)):
                    return None
                chosen = dict(zip(map(tuple, found), others, strict=True)).get(tuple(wanted), tag)
        struct = structs.get(chosen)
        return struct if struct is not None and self._visible(struct.scope, path) else None

    def _kind(self, argument: str) -> str:
        """Returns one spelling for all arguments of a template that are the same type or number, or "" for another argument."""
        target = self.target(self.expanded(argument))
        if target in ("true", "false") or re.fullmatch(r"0|-?[1-9][0-9]*", target):
            return {"true": "1", "false": "0"}.get(target, target)
        words = target.split()
        if words and {"char", "short", "int", "long", "signed", "unsigned"}.issuperset(words):
            sign = "unsigned " if "unsigned" in words else "signed " if words == ["signed", "char"] else ""
            kind = next((k for k in ("char", "short", "long") if k in words), "int")
            return sign + " ".join([kind] * max(words.count("long"), 1))
        if words in (["float"], ["double"], ["bool"]):
            return target
        dtype = dtype_of(target)
        plain = dtype in ("float16", "bfloat16") or _FIXED.fullmatch(target)
        return DTYPES[dtype].c_type if dtype and plain else ""

    def _conditional(self, arguments: Sequence[str]) -> str | None:
        """Returns the type that a condition chooses, or None."""

        def same(match: re.Match[str]) -> str:
            a, b = (self._kind(part.strip()) for part in (match[1] or match[3], match[2] or match[4]))
            return str(int(a == b)) if a and b else match[0]

        if len(arguments) != 3:
            return None
        condition = _WORD.sub(lambda word: self._given.get(word[0], word[0]), _SAME.sub(same, arguments[0]))
        value = value_of(re.sub(r"\bfalse\b", "0", self.expanded(condition)))
        return (
            None if value is None or set(_WORD.findall(condition)) - {"true", "false"} else arguments[1 if value else 2]
        )

    def _widened(self, base: str) -> str | None:
        """Returns the type in which PyTorch computes with numbers of a type, or None."""
        target = self.target(base)
        if target == "scalar_t":
            return "acc_t"
        dtype = dtype_of(target)
        return None if dtype is None else "float" if dtype in ("float16", "bfloat16") else target

    def instance(self, base: str) -> str:
        """Returns the name of a class, or of an instance of a template with the arguments that its names stand for.

        The namespaces before the name are left out: ``Pair<float, 2>`` for ``a::Pair<T, N>``.
        """
        base = self.target(self.expanded(base))
        found = _INSTANCE.fullmatch(base)
        if found is None:
            return base.rpartition("::")[2].strip()
        spelled = (re.sub(r"\s*\*\s*", "*", " ".join(part.split())) for _, part in split(found[2]))
        given = (_WORD.sub(lambda word: self._given.get(word[0], word[0]), part) for part in spelled)
        arguments = map(self.target, given)
        return f"{found[1]}<{', '.join(self.instance(a) if '<' in a else a for a in arguments)}>"

    def _visible(self, scope: Scope, outer: Scope) -> bool:
        if outer:
            return scope[len(scope) - len(outer) :] == outer
        return scope == self._scope[: len(scope)] or any(scope[len(scope) - len(o) :] == o for o in self._opened)


def type_names(
    text: str,
    headers: Mapping[str, str],
    defines: Mapping[str, str],
    until: int,
    scope: Scope = (),
    given: Mapping[str, str] | None = None,
    hidden: frozenset[str] = frozenset(),
) -> TypeNames:
    """Returns the macros and type names that a text and its headers define before an offset.

    The constants of a kernel are no part of the result: the declaration may use them by name.
    """
    found = preprocess(text, headers, defines, until)
    types: dict[str, list[tuple[Scope, str | None]]] = {}
    templates: dict[str, list[tuple[Scope, tuple[str, ...], str]]] = {}
    opened = {path for source in (text, *headers.values()) for path in _opened(source)}
    for where, source in (("", text), *headers.items()):
        for place, scope_of, name, target, parameters in _aliases(source):
            live = found.live(where, place)
            if live is not False and (where or place < until):
                types.setdefault(name, []).append((scope_of, target if live and parameters is None else None))
                if live and parameters and target:
                    templates.setdefault(name, []).append((scope_of, parameters, target))

    def structs() -> dict[str, Struct]:
        texts = (("", text), *headers.items())
        compiled = ((source, found.compiled(where, scan(source).bare)) for where, source in texts)
        return {name: struct for source, bare in compiled for name, struct in structs_in(source, bare).items()}

    numbers = {name for name, value in defines.items() if value.lstrip("-").isdigit()}
    macros = {name: value for name, value in found.macros.items() if name not in numbers}
    return TypeNames(macros, types, scope, given, hidden, found.functions, templates, structs, opened)


@lru_cache(64)
def _opened(text: str) -> frozenset[Scope]:
    """Returns the namespaces of the directives ``using namespace`` of a text outside functions and classes."""
    code = scan(text)
    found = (m[1] for m in _OPENED.finditer(code.bare) if code.scope(m.start()) is not None)
    return frozenset(tuple(re.findall(r"\w+", path)) for path in found)


def defined_types(text: str) -> tuple[frozenset[str], Mapping[str, Sequence[Scope]]]:
    """Returns the macros without parameters that a text defines, and the type names that the text declares outside
    functions and classes. Each type name maps to the namespaces of its declarations."""
    types: dict[str, list[Scope]] = {}
    for _, scope, name, *_ in _aliases(text):
        types.setdefault(name, []).append(scope)
    macros = (_MACRO.match(d.rest) for d in scan(text).directives if d.name == "define")
    return frozenset(m[1] for m in macros if m), types


@lru_cache(64)
def _aliases(text: str) -> list[tuple[int, Scope, str, str | None, tuple[str, ...] | None]]:
    """Returns offset, scope, name and target of the type names that a text declares outside functions and classes, and
    the parameters of an alias template."""
    code = scan(text)
    found: list[tuple[int, Scope, str, str | None, tuple[str, ...] | None]] = []
    for match in _ENUMERATION.finditer(code.bare):
        scope = code.scope(match.start())
        names = {match["tag"], match["name"]} if "typedef" in _before(code.bare, match.start()) else {match["tag"]}
        if scope is not None:
            of = " ".join((match["of"] or "int").split())
            found += [(match.start(), scope, name, of, None) for name in sorted(filter(None, names))]
    for match in _USED.finditer(code.bare):
        if (scope := code.scope(match.start())) is not None:
            found.append((match.start(), scope, match["name"], "".join(match["path"].split()), None))
    for match in _ALIAS.finditer(code.bare):
        place = match.start()
        scope = code.scope(place)
        if scope is None:
            continue
        if match["using"]:
            before = code.bare[max(0, place - 256) : place].rstrip()
            parameters = (template_parameters(before) or ()) if before.endswith(">") else None
            found.append((place, scope, match["using"], " ".join(match["target"].split()), parameters))
            continue
        declared = match["typedef"].rstrip()
        if (function := _FUNCTION.search(declared)) is not None:
            found.append((place, scope, function[1], "unsigned long long", None))  # the address of a function
            continue
        plain = _ARGUMENTS.sub(lambda m: "_" * len(m[0]), declared)
        for name in _LAST_WORD.findall(plain):
            # A typedef of several names, of an array or of a function is not taken apart.
            simple = not re.search(r"[,()[\]]", plain) and declared.endswith(name)
            found.append((place, scope, name, " ".join(declared[: -len(name)].split()) if simple else None, None))
    return found


def _before(bare: str, place: int) -> str:
    """Returns the code between an offset and the end of the declaration before it."""
    return bare[max(bare.rfind(c, 0, place) for c in ";{}") + 1 : place]


def _closing(code: str, start: int) -> int:
    """Returns the offset of the parenthesis that closes the one before an offset, or -1."""
    depth = 1
    for at in range(start, len(code)):
        depth += (code[at] == "(") - (code[at] == ")")
        if not depth:
            return at
    return -1


def dtype_of(base: str) -> str | None:
    """Returns the dtype of a type of C, or None for another type."""
    words = " ".join(word for word in _STD.sub("", base, count=1).split() if word not in ("const", "volatile"))
    return "uint8" if _EMPTY.fullmatch(words) else C_TYPES.get(_integer(words))


def _integer(base: str) -> str:
    """Returns the usual spelling of an integer type: ``unsigned long long`` for ``long long unsigned int``."""
    words = base.split()
    if not words or not {"char", "short", "int", "long", "signed", "unsigned"}.issuperset(words):
        return base
    kind = next((k for k in ("char", "short") if k in words), " ".join(["long"] * words.count("long")) or "int")
    kind = _LONG if kind == "long" else kind
    if "unsigned" in words:
        return f"unsigned {kind}"
    return "signed char" if kind == "char" else kind


def c_dtype(base: str) -> str | None:
    """Returns the name of the dtype of a C type, or None for a type that is no number of a fixed width."""
    name = C_TYPES.get(_integer(" ".join(base.split())))
    return name if name in DTYPES else None
