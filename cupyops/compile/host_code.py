"""Leaves the host code of a text out: nvcc compiles a text for the host and for the GPU, and NVRTC for the GPU alone.

Host code is a function without ``__device__``, ``__global__`` and ``constexpr``, a variable outside functions that kernels
cannot read, and a declaration that names host types. Blanks replace the host code, so every other character keeps its
offset, and directives stay. A member function without ``__device__`` keeps its declaration and loses its body. A
prototype stays if a ``constexpr`` function calls it: the compiler reads the function, whether or not a kernel uses it.

Where braces match only after preprocessing, the longest branch of each such conditional counts, and then the next one. A text whose braces do not
match is returned as it is.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from .cpp_library import FOREIGN_THRUST
from .cuda_text import scan, without_loop
from .declarations import (
    ALIAS,
    CALL,
    CAPITALS,
    KEPT,
    OF_CLASS,
    TYPE,
    WORD,
    Item,
    declarations,
    declared_names,
    is_function,
    items_of,
    macros_of,
    name_of,
    plain_head,
)
from .members import behind_labels, class_of, is_literal, is_of_device
from .standard import unknown

__all__ = ["HOST_TYPE", "HostCode", "host_code"]

_DEVICE = "__global__|__device__|__constant__|__shared__|__managed__|constexpr|consteval|__host_device__"
# Macros of the headers of PyTorch, which pytorch.cuh defines, and of CUTLASS, which NVRTC reads.
_DEVICE += "|C10_DEVICE|C10_HOST_DEVICE|CUTLASS_DEVICE|CUTLASS_HOST_DEVICE|CUTE_DEVICE|CUTE_HOST_DEVICE"
_MARKED = re.compile(rf"\b(?:{_DEVICE})\b")
_DECLARES_TYPE = re.compile(r"(?:template\s*<[^{}()]*>\s*)?(?:struct|using|typedef)\b")
_SPACE_ALIAS = re.compile(r"\s*namespace\s+\w+\s*=\s*([\w:]+)\s*;")
_CLASS_INSTANCE = re.compile(r"\s*(?:extern\s+)?template\s+(?:struct|class)\s+(?:\w+\s*::\s*)*(\w+)\s*<[^;{}]*;")
_USING_NAMESPACE = re.compile(r"\s*using\s+namespace\s+([\w:]+)\s*;")
_NAMESPACES = re.compile(r"\bnamespace\s+([A-Za-z_]\w*)[\w:\s]*[{=]")
_OF_CUDA = frozenset(("cooperative_groups", "cg", "nvcuda", "wmma", "cuda", "cub", "std"))
_OF_LIBRARIES = frozenset(("thrust", "torch", "at", "at::cuda::detail", "c10", "cute", "cutlass", "glm"))
_OF_PYTORCH = (
    r"\w*TensorAccessor\w*|\w*PtrTraits|TensorInfo|IndexToOffset|IntDivider|DivMod|ATenCeilDiv|Half|BFloat16|OpMathType|AccumulateType"
    r"|numeric_limits|opmath_type|acc_type|acc_type_device|DeviceType|ceil_div|complex|fast\w*AtomicAdd|PhiloxCudaState|_isnan|load"
    r"|Block1D|(?:Warp|Block)Reduce\w*|aligned_vector|kCUDABlockReduce\w+|compat\s*::\s*\w+"
)
HOST_TYPE = re.compile(
    # PyTorch's names that kernels_cu/shared/pytorch.cuh defines are for kernels.
    rf"\b(?:torch|at|c10)\s*::(?!\s*(?:(?:headeronly|native|cuda|detail|compat|memory|cuda_utils)\s*::\s*)*(?:{_OF_PYTORCH})\b|\s*cuda\s*::\s*philox\b)"
    r"|\b(?:pybind11|py|cv|boost|google|gflags|absl|nlohmann|msgpack|fmt|spdlog|tbb|YAML|chrono|filesystem|this_thread)\s*::|\bnamespace\s+\w+\s*=\s*(?:google|boost)\b|\bcuda(?:Stream|Event|Graph\w*|Array|MemPool)_t\b|\bcudaDeviceProp\b"
    r"|\bCU(?:mem[A-Z]\w*|device|context|module|function|stream|event|deviceptr)\b"
    r"|\b(?:cublas|cudnn|cufft|cusparse|cusolver|nccl|curandGenerator)\w*_t\b|\bcufftHandle\b|\bFILE\b|\bpthread_\w+\b"
    r"|\bstruct\s+(?:timeval|timespec|rusage|tm)\b(?!\s*\{)|\b(?:timeval|timespec)\s+\w+\s*[,;]"
    rf"|{FOREIGN_THRUST.pattern}"
)
_HOST_TYPE_OF_MEMBERS = re.compile(HOST_TYPE.pattern.replace("Stream|Event|", ""))
_CONST = re.compile(  # `const int`, and `int const`
    r"\s*(?:(?:static|inline|extern|volatile)\s+)*(?:(?:unsigned|signed|char|short|int|long|float|double|bool|\w+_t)\s+)*const\b"
)
_USED = re.compile(r"\s*using\s+(?:::\s*)?(?:\w+\s*::\s*)+(\w+)\s*;")
_CONSTANT = re.compile(r"\s*(?:(?:static|inline)\s+)*constexpr\b[^(){}=]*=[^{}]*;")  # of a trait, for one
# The explicit instantiation of a kernel, which is left out: a call instantiates the kernel by its name.
_INSTANTIATES = re.compile(r"\btemplate\s+(?:\w+\s+)*?__global__\b")
# A class that is defined outside of its class, `struct Outer<T>::Inner`.
_WITHIN = re.compile(
    r"\s*(?:struct|class|union)\s+([A-Za-z_]\w*)\s*(?:<(?:[^<>;{}]|<(?:[^<>]|<[^<>]*>)*>)*>\s*)?::\s*[A-Za-z_]"
)
_INITIALIZERS = re.compile(r"\)\s*(?:noexcept\s*)?(:)(?!:)")
_CONVERTS = re.compile(r"\b(?:auto|decltype)\b")  # the compiler deduces the type from the body
_CONSTEXPR = re.compile(r"\b(?:constexpr|consteval)\b[^;{}=]*\)[^;{}()=]*(\{)")
_BRACES = re.compile(r"[{}]")
_DEPTH = 4  # macros within one another
_DESTRUCTOR = re.compile(r"(?<!virtual )~\s*[A-Za-z_]\w*\s*\(")
_APART = re.compile(
    r"\s*(?:(?:public|private|protected)\s*:\s*)*(?:template\b[^(){};]*>\s*)?(?:(?:inline|constexpr|const)\s+)*(static|friend)\b"
)
# A stream of the host's library where `using namespace std` stands.
_FRIEND = re.compile(r"\s*\bfriend\b")
_LITERAL = re.compile(r"::\s*operator\s+_\w+\s*\(\s*[^)\s]")  # `operator "" _h(long double)`, whose quotes are blank
_STREAM = re.compile(r"\b[io]?stream\s*&")
_SPECIAL = re.compile(r"\s*(?:struct|class)\s+([A-Za-z_]\w*)\s*<")
_DERIVED = re.compile(r"\b(?:struct|class)\s+(?:\w+\s+)?\w+\s*:(?!:)([^;{}()]*)\{")


class HostCode(NamedTuple):
    """The result of :func:`host_code`.

    Attributes:
        text: the text without its host code.
        names: the names of the functions and variables that are left out.
        types: the names of the types that are left out.
    """

    text: str
    names: tuple[str, ...]
    types: frozenset[str] = frozenset()


@lru_cache(512)
def host_code(
    text: str, macros: str = "", gone: frozenset[str] = frozenset(), compiled: str = "", rank: int = 0
) -> HostCode:
    """Returns a text without its host code.

    Args:
        text: CUDA C++.
        macros: other texts, whose macros this text uses.
        gone: the types that are left out of other texts.
        compiled: the code of the text with blanks for what conditions remove; ``""`` if no condition is decided.
        rank: where braces match only after preprocessing, the branch that counts: 0 for the longest, which is followed by the next
            one.
    """
    code = scan(text)
    if not re.search(r"[;}]", code.bare):
        return HostCode(text, ())
    given = _given(text, macros)
    items = declarations(code, given, compiled, rank)
    if items is None:
        return HostCode(text, ())
    read = _read_by_constexpr(text, macros)
    spaces = {*_OF_CUDA, *_spaces_of(text), *_spaces_of(macros)}
    pieces, at, names = [], 0, []
    types = set(gone)
    taken = _passed(text) | _passed(macros)
    bases: frozenset[str] | None = None
    for item in items:
        piece = (compiled or code.bare)[item.start : item.end]
        name = _left_out(piece, item.brace - item.start, given, spaces)
        if name and item.brace >= 0 and is_of_device(plain_head(piece[: item.brace - item.start]), text, macros):
            continue
        if name is not None and item.brace < 0 and _is_prototype(code.bare[item.start : item.end], read):
            continue
        if name is None and item.brace >= 0:
            name = _apart(piece, item.brace - item.start, types, partial(code.scope, item.start), given)
        declared = declared_names(code.bare[item.start : item.end]) if types or name == "" else frozenset[str]()
        # An alias of a type that is left out, and a class of the host that names it, are left out, too.
        # Two classes in different namespaces may have one name, and one of them may be left out.
        words = {*WORD.findall(code.bare[item.start : item.end])} - declared if types and name is None else set()
        if name is None and not types.isdisjoint(words):
            plain = plain_head(code.bare[item.start : item.end])
            of_host = TYPE.match(plain) and not _has_marked_members(plain, given)
            used = _USED.match(plain)
            name = (
                "" if of_host or ALIAS.match(plain) or _CONSTANT.match(plain) or (used and used[1] in types) else None
            )
            if name is not None and (variable := OF_CLASS.match(plain)) is not None:
                name = variable[1]
        if name == "" and (used := _USED.match(plain_head(piece))) is not None:
            declared = frozenset((used[1],))  # `using std::vector;`
        elif name == "" and CALL.match(plain_head(piece)):
            declared = frozenset()  # the name of a macro is no type
        types |= declared if name == "" else set()
        # Of the type of a kernel's parameter and of a base of device code, the members that name such types are left out alone.
        of_item = declared_names(code.bare[item.start : item.end]) if item.brace >= 0 else frozenset[str]()
        passed = not taken.isdisjoint(of_item)
        if name == "" and of_item and not passed:
            bases = _bases((text, macros), given) if bases is None else bases
            passed = not bases.isdisjoint(of_item) or is_literal(piece, of_item)
        if name == "" and (passed or _FRIEND.search(piece)):
            cut = _bodies_of_members(code.bare, item, given, frozenset(types - declared), True)
            # Of another class, only its friends may name types of the host.
            edges = [edge for span in cut if passed or _FRIEND.match(code.bare, *span) for edge in span]
            edges = [item.start, *edges, item.end]
            rest = " ".join(code.bare[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
            foreign = _HOST_TYPE_OF_MEMBERS.search(rest) or (not passed and bool(unknown(rest)))
            if cut and (types - declared).isdisjoint(WORD.findall(rest)) and not foreign:
                name, types, passed = None, types - declared, True
        spans = [(item.start, item.end)]
        if name is not None:
            names.append(name)
        else:
            spans = _bodies_of_members(code.bare, item, given, frozenset(types), passed)
        for start, stop in spans:
            place = start
            for directive in (*code.directives_between(start, stop), None):
                end = stop if directive is None else directive.start
                blank = re.sub(r"[^\n]", " ", text[place:end])
                if name is None and place == start and blank:
                    blank = ";" + blank[1:]
                pieces += [text[at:place], blank]
                at = place = end if directive is None else directive.end
                if directive is not None:
                    pieces.append(without_loop(text[end:at], directive))
    found = HostCode("".join(pieces) + text[at:], tuple(n for n in names if n), frozenset(types - gone))
    if rank or items_of(code.bare, given) is not None:
        return found
    other = host_code(text, macros, gone, compiled, 1)
    both = "".join(a if a != of_text else b for of_text, a, b in zip(text, found.text, other.text, strict=True))
    return HostCode(both, tuple(dict.fromkeys((*found.names, *other.names))), found.types | other.types)


def _apart(
    piece: str,
    brace: int,
    types: Collection[str],
    scope: Callable[[], tuple[str, ...] | None],
    macros: Mapping[str, tuple[bool, str]],
) -> str | None:
    """Returns the name of a declaration that completes another one which kernels do not have: a member or a class, defined outside
    of its class, of a class that is left out, or a specialization of a class of the host's library in ``namespace std``. Returns None
    for any other declaration.

    Args:
        piece: the code of the declaration.
        brace: the offset of its first brace.
        types: the types that are left out.
        scope: returns the namespaces around the declaration.
        macros: the macros of :func:`macros_of`.
    """
    head = piece[:brace]
    plain = plain_head(head)
    if TYPE.match(plain):
        within = _WITHIN.match(plain)
        if within is not None and within[1] in types and not _has_marked_members(piece, macros):
            return within[1]
        special = _SPECIAL.match(plain)
        of_host = special is not None and bool(unknown(f"std::{special[1]}")) and scope() == ("std",)
        return special[1] if special is not None and of_host else None
    of_class = class_of(plain) if types else ""
    return of_class if of_class in types and is_function(head) and not _has_marked_members(head, macros) else None


def _read_by_constexpr(text: str, others: str) -> frozenset[str]:
    """Returns the names that the bodies of the ``constexpr`` functions of a text and of others contain, directly or by
    macros."""
    macros = macros_of(text) | macros_of(others)
    found = set(_words_of_constexpr(text) | _words_of_constexpr(others))
    new = found & macros.keys()
    while new:
        words = {word for name in new for word in WORD.findall(macros[name][1])} - found
        found |= words
        new = words & macros.keys()
    return frozenset(found)


@lru_cache(256)
def _words_of_constexpr(text: str) -> frozenset[str]:
    """Returns the words in the bodies of a text's ``constexpr`` functions."""
    bare, found, seen = scan(text).bare, set[str](), 0
    for match in _CONSTEXPR.finditer(bare):
        if match.start(1) < seen:  # within another body
            continue
        depth, seen = 0, len(bare)
        for brace in _BRACES.finditer(bare, match.start(1)):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                seen = brace.end()
                break
        found.update(WORD.findall(bare[match.start(1) : seen]))
    return frozenset(found)


def _names_host(code: str) -> bool:
    """Returns whether code names types of the host."""
    return HOST_TYPE.search(code) is not None or bool(unknown(code))


def _is_prototype(item: str, names: frozenset[str]) -> bool:
    """Returns whether a declaration is the prototype of a function that ``names`` contains, with types that NVRTC
    has."""
    head = plain_head(item)
    # Macros with parameters may stand before the name.
    declared = set(re.findall(r"([A-Za-z_]\w*)\s*\(", head))
    return bool(declared & names) and "=" not in head and not _names_host(item)


@lru_cache(256)
def _given(text: str, others: str) -> dict[str, tuple[bool, str]]:
    """Returns the macros of a text and of others, as :func:`_closed` does. Each round of a compilation asks for them."""
    own, of_others = macros_of(text), macros_of(others)
    return _closed_of(others) if own.keys() <= of_others.keys() else _closed(own | of_others)


@lru_cache(16)
def _closed_of(text: str) -> dict[str, tuple[bool, str]]:
    return _closed(macros_of(text))


def _closed(macros: Mapping[str, tuple[bool, str]]) -> dict[str, tuple[bool, str]]:
    """Returns the macros, each with ``__device__`` and the like appended if its replacement contains such a word by
    another macro."""
    found = dict(macros)
    words = {name: set(re.findall(r"\b[A-Za-z_]\w*\b", text)) for name, (_, text) in found.items()}
    while True:
        new = {
            name: (parameters, f"{text} {_MARKED.search(found[other][1])[0]}")  # type: ignore[index]
            for name, (parameters, text) in found.items()
            if not _MARKED.search(text)
            and (other := next((w for w in words[name] & found.keys() if _MARKED.search(found[w][1])), ""))
        }
        if not new:
            return found
        found |= new


@lru_cache(256)
def _spaces_of(text: str) -> frozenset[str]:
    """Returns the namespaces that a text declares."""
    return frozenset(_NAMESPACES.findall(scan(text).bare))


@lru_cache(256)
def _passed(text: str) -> frozenset[str]:
    """Returns the words in the parameters of a text's kernels."""
    code = scan(text)
    found = (code.bare[f.parameters : f.end] for f in code.functions if f.end > 0)
    return frozenset(word for listed in found for word in WORD.findall(listed))


def _bases(texts: Iterable[str], macros: Mapping[str, tuple[bool, str]]) -> frozenset[str]:
    """Returns the words in the lists of bases of the classes of texts that have device functions."""
    derived = ((scan(text), m) for text in texts for m in _DERIVED.finditer(scan(text).bare))
    found = (
        m for code, m in derived if _has_marked_members(code.bare[m.end() : code.end_of_function(m.end() - 1)], macros)
    )
    return frozenset(word for match in found for word in WORD.findall(match[1]))


def _bodies_of_members(
    bare: str, item: Item, macros: Mapping[str, tuple[bool, str]], gone: frozenset[str], passed: bool
) -> list[tuple[int, int]]:
    """Returns the offsets of the bodies of the member functions of a class that are host code. Their declarations stay, unless
    they name types that kernels do not have and the class has device functions, or is the type of a kernel's parameter. Other
    classes that name such types are left out as a whole.

    Args:
        bare: the code of the text.
        item: the class.
        macros: the macros of :func:`macros_of`.
        gone: types that are left out.
        passed: whether the class is the type of a kernel's parameter.
    """
    head = bare[item.start : item.brace] if item.brace >= 0 else ""
    if not TYPE.match(plain_head(head)) or re.match(r"\s*(?:typedef\s+)?enum\b", plain_head(head)):
        return []
    closing = bare.rfind("}", item.brace, item.end)
    members = items_of(bare[item.brace + 1 : closing], macros) or []
    of_device = _has_marked_members(bare[item.brace : item.end], macros)
    own = declared_names(bare[item.start : item.end])
    found = []
    for member in members:
        start = item.brace + 1 + member.start
        body = member.brace >= 0
        signature = bare[start : item.brace + 1 + (member.brace if body else member.end)]
        words = re.findall(r"\b[A-Za-z_]\w*\b", signature)
        function = is_function(signature.rstrip("; \t\r\n"))
        # A static member of a type of the host takes no place in an object, and a friend is declared elsewhere.
        apart = _APART.match(plain_head(signature))
        literal = apart and apart[1] == "friend" and _LITERAL.search(signature) and not _MARKED.search(signature)
        if literal:  # host code, of which the declaration is left out
            found.append((start, item.brace + 1 + member.end))
            continue
        if (of_device or passed) and not body and apart and (apart[1] == "friend" or not function):
            stream = apart[1] == "friend" and _STREAM.search(signature)
            if stream or _names_host(signature):
                found.append((start + behind_labels(signature), item.brace + 1 + member.end))
            continue
        marked = any(_MARKED.search(word) or _MARKED.search(macros.get(word, (False, ""))[1]) for word in words)
        if marked or not function:
            whole = bare[start : item.brace + 1 + member.end]
            # The compiler reads a function that is constexpr, whether or not a kernel calls it.
            if passed and function and not of_device and _names_host(whole):
                found.append((start + behind_labels(signature), item.brace + 1 + member.end))
            continue
        # NVRTC refuses the word __host__ alone.
        if of_device and re.search(r"\b__host__\b", signature):
            found.append((start, item.brace + 1 + member.end))
            continue
        # A destructor that is host code leaves a class that the compiler destroys: a kernel's parameter may have it.
        named = _names_host(signature) or _STREAM.search(signature) or not gone.isdisjoint({*words} - own)
        if _DESTRUCTOR.search(signature) or ((of_device or passed) and named):
            found.append((start + behind_labels(signature), item.brace + 1 + member.end))
        elif body and not _CONVERTS.search(signature):
            initializers = _INITIALIZERS.search(signature)
            begin = start + (initializers.start(1) if initializers else len(signature))
            found.append((begin, item.brace + 1 + member.end))
    return found


def _left_out(item: str, brace: int, macros: Mapping[str, tuple[bool, str]], spaces: set[str]) -> str | None:
    """Returns the name of a declaration that is host code, ``""`` for one without a name, and None for one that stays."""
    head = item[:brace] if brace >= 0 else item
    marked = bool(_MARKED.search(head)) or any(
        word in macros and _MARKED.search(macros[word][1]) for word in re.findall(r"\b[A-Za-z_]\w*\b", head)
    )
    plain = plain_head(head)
    called = CALL.match(plain)
    if called is not None and _INSTANTIATES.search(macros.get(called[1], (False, ""))[1]):
        return ""
    text = "" if called is None else _text_of(called[1], macros)
    if _DECLARES_TYPE.match(text):
        # Of a class, as of one without a macro, members with __device__ count. A member may be constexpr.
        foreign = _names_host(f"{text} {item}")
        return "" if foreign and not _has_marked_members(text, macros) else None
    if marked or not plain.strip(" \t\r\n;"):
        return None
    if is_function(head) and brace >= 0:
        return name_of(plain)
    if (instance := _CLASS_INSTANCE.match(plain)) is not None:
        return instance[1]
    if (space := _USING_NAMESPACE.match(plain) or _SPACE_ALIAS.match(plain)) is not None:
        path = space[1].lstrip(":")
        own = path.partition("::")[0] in spaces - {"std"} and not FOREIGN_THRUST.search(path)
        return None if own or path in _OF_LIBRARIES else ""
    if KEPT.match(plain):
        # A kernel's parameter may be a struct that has a stream or an event as a member.
        of_host = HOST_TYPE if not TYPE.match(plain) else _HOST_TYPE_OF_MEMBERS
        hosts = of_host.search(item) or bool(unknown(item))
        return "" if hosts and not _has_marked_members(item, macros) else None
    if called is not None and (macros[called[1]][0] if called[1] in macros else CAPITALS.fullmatch(called[1])):
        return ""  # a macro whose text has no device code
    if "(" in plain.partition("=")[0] or re.match(r"\s*template\b(?!\s*(?:<|struct\b|class\b|union\b))", plain):
        return name_of(plain)
    constant = (
        _CONST.match(plain)
        and not re.search(r"\*(?!\s*const\b)", plain.partition("=")[0])
        and not re.search(r"\bstruct\b[^=]*\[", plain.partition("=")[0])  # a table of the host
    )
    # A template of a variable, or a static member of one of a class.
    if (re.match(r"\s*template\b", head) or constant) and not _names_host(item):
        return None
    return name_of(re.split(r"[=\[;]", plain)[0])


def _text_of(macro: str, macros: Mapping[str, tuple[bool, str]]) -> str:
    """Returns the text of a macro with parameters, or that of the macro that the text calls first."""
    for _ in range(_DEPTH):
        text = macros.get(macro, (False, ""))[1].partition(")")[2].lstrip()
        called = CALL.match(text)
        if called is None or not macros.get(called[1], (False, ""))[0]:
            break
        macro = called[1]
    return text


def _has_marked_members(item: str, macros: Mapping[str, tuple[bool, str]]) -> bool:
    """Returns whether a declaration has ``__device__`` or ``__host__``, itself or by a macro."""
    if re.search(r"\b__(?:device|host)__\b", item):
        return True
    return any(word in macros and _MARKED.search(macros[word][1]) for word in set(WORD.findall(item)))
