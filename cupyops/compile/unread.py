"""Leaves out the host code of the texts of one compilation, and the device code that names types of libraries without their
headers and that no kernel reads."""

import re
from collections import Counter
from collections.abc import Collection, Mapping

from .cuda_text import Code, scan, without_loop
from .declarations import WORD, Item, declarations, declared_names, items_of, macros_of
from .host_code import HOST_TYPE, host_code
from .preprocess import preprocess
from .standard import MACROS, unknown

__all__ = ["host_code_of", "read_spans", "without_unread"]

_OF_DEVICE = re.compile(r"\b__(?:device|global|constant)__\b|\b\w*DEVICE\w*\b")
_CALLED_UNSEEN = frozenset(("begin", "end", "get", "swap"))
_USING = re.compile(r"\busing\s+(?:::\s*)?(?:\w+\s*::\s*)+(\w+)\s*;")
# Libraries for kernels that are not part of CUDA. An option `-I` may give the folder of their headers, so a declaration that
# a kernel reads stays.
_OF_OTHERS = re.compile(r"\b(?:cutlass|cute|glm|Eigen)\s*::")
# Names in capitals, where a text uses them and where it declares them.
_CAPITALS = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b(?<=\w\w\w)")
_DECLARED = re.compile(r"(?!\b(?:return|case|else)\b)\b(?:\w+[\s>*&]|\})\s*(?:\.\.\.\s*)?([A-Z][A-Z0-9_]{2,})\b")
_FURTHER = re.compile(r",\s*([A-Z][A-Z0-9_]{2,})\s*=(?!=)")  # `const float ONE = 1, TWO = 2;`
_FORWARD = re.compile(r"\s*(?:template\s*<[^{}()]*>\s*)?(?:struct|class|union)\s+\w+\s*;")
_PASTED = re.compile(r"\b\w+(?:\s*##\s*\w+)+")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(([^()]*)\)")
_DEPTH = 4  # macros within one another
_LONGEST = 100_000  # characters of an expanded declaration
_PASTES = re.compile(r"\s*##\s*")
_TEMPLATE = re.compile(r"template\s*<")
_NAMES = re.compile(r"[A-Za-z_]\w*(?:\s+[A-Za-z_]\w*)*")  # of several definitions of one macro
_ENUM = re.compile(r"\benum\b[^;{}]*\{([^{}]*)\}")


def host_code_of(
    texts: Mapping[str, str], macros: str, defines: Mapping[str, str]
) -> tuple[dict[str, str], frozenset[str]]:
    """Returns texts of one compilation without their host code, and the names of the types that are left out.

    A class is left out if it names a type that is left out of another text.

    Args:
        texts: CUDA C++, by name.
        macros: texts whose macros these texts use.
        defines: macros that are defined before the texts.
    """
    headers = {name: text for name, text in texts.items() if name}
    followed = preprocess(texts.get("", ""), headers, defines)
    compiled = {name: followed.compiled(name, scan(text).bare) for name, text in texts.items()}
    words = {name: frozenset(WORD.findall(scan(text).bare)) for name, text in texts.items()}
    found = {name: host_code(text, macros, frozenset(), compiled[name]) for name, text in texts.items()}
    gone: frozenset[str] = frozenset()
    # A round changes only the texts that name a type of the round before.
    while more := frozenset[str]().union(*(of_one.types for of_one in found.values())) - gone:
        gone |= more
        for name in [name for name in texts if not more.isdisjoint(words[name])]:
            found[name] = host_code(texts[name], macros, gone, compiled[name])
    return {name: of_one.text for name, of_one in found.items()}, gone


def without_unread(
    texts: Mapping[str, str],
    roots: Collection[str],
    defined: Collection[str] = (),
    gone: Collection[str] = (),
    simulated: bool = False,
) -> dict[str, str]:
    """Returns texts without the declarations that name types of the host, of its libraries or of libraries such as CUTLASS, or macros
    that nothing defines, if no other code reads these declarations; and without the functions and classes of headers that no
    kernel reads.

    The ``__device__`` functions of a functor for thrust, for one, are code that a kernel does not call. So is a function for
    a macro that the build of a project defines, if the kernel does not call the function.

    Args:
        texts: CUDA C++ without its host code, by name. A text may use the names of the others.
        roots: the names of the kernels.
        defined: the macros that the texts and their headers define.
        gone: the types of the host that are left out of the texts.
        simulated: whether the simulator compiles the texts. A host's compiler looks up names in templates that nothing
            instantiates, which NVRTC does not do: templates of the text that no kernel reads are left out.
    """
    texts = {where: _without_library(text) if where else text for where, text in _without_usings(texts).items()}
    undefined = _undefined(texts, defined)
    if (
        len(texts) == 1
        and not undefined
        and not gone
        and not (simulated and any("template" in text for text in texts.values()))
        and not any(of_host(scan(text).bare) or "<<<" in text for text in texts.values())
    ):
        return dict(texts)
    found, graph = dict(texts), _Declarations(texts, [name for root in roots for name in WORD.findall(root)])
    undefined |= {*gone} - graph.nodes.keys()
    suspects = {
        (where, item)
        for where, item in graph.named
        if (where, item) in graph.launches
        or of_host(piece := graph.piece(where, item))
        or not undefined.isdisjoint(WORD.findall(piece))
    }
    kept = graph.read(roots)
    left_out = _with_readers(suspects - kept, kept, graph)
    # Of a header, kernels need no function and no class that none of them reads. The rest of a header counts as read.
    optional = {
        key
        for key in graph.named
        if (key[0] or (simulated and _TEMPLATE.match(graph.piece(*key)))) and _is_optional(graph.piece(*key))
    }
    rest = [word for key in {*graph.named} - optional - left_out for word in graph.words(*key)]
    left_out |= optional - graph.read([*roots, *rest])
    for where, item in sorted(left_out, key=lambda key: -key[1].start):
        found[where] = _blanked(found[where], scan(texts[where]), item.start, item.end)
    return found


def _without_library(text: str) -> str:
    """Returns a header without its code if the code is of the host and its declarations cannot be read, as those of a library in one
    file."""
    code = scan(text)
    if _OF_DEVICE.search(text) or declarations(code, macros_of(text)) is not None or not of_host(code.bare):
        return text
    return _blanked(text, code, 0, len(text))


def _is_optional(piece: str) -> bool:
    """Returns whether a declaration is a function or a class that only code with its name uses."""
    head = re.sub(r"\A\s*(?:template\s*<[^{}()]*>\s*)*", "", piece)
    if re.match(r"(?:struct|class)\b", head):
        return re.search(r"\}\s*;\s*\Z", head) is not None
    function = re.match(r"(?!typedef\b|using\b|enum\b|union\b|extern\s+\"|static_assert\b)[^=;{}]*\(", head)
    # A range-based loop and a destructor call functions without their names.
    return function is not None and declared_names(piece).isdisjoint(_CALLED_UNSEEN) and "~" not in function[0]


def _without_usings(texts: Mapping[str, str]) -> dict[str, str]:
    """Returns texts without the declarations ``using space::name;`` whose names no other code has: the function may be host
    code, which is left out."""
    found, codes = dict(texts), {where: scan(text) for where, text in texts.items()}
    usings = [(where, match) for where, code in codes.items() for match in _USING.finditer(code.bare)]
    if not usings:
        return found
    counts = Counter(word for code in codes.values() for word in WORD.findall(code.bare))
    counts.update(word for code in codes.values() for d in code.directives for word in WORD.findall(d.rest))
    of_usings = Counter(match[1] for _, match in usings)
    for where, match in sorted(usings, key=lambda using: -using[1].start()):
        if counts[match[1]] == of_usings[match[1]]:
            found[where] = _blanked(found[where], codes[where], match.start(), match.end())
    return found


class _Declarations:
    """The declarations of texts, and which of them a kernel reads.

    Args:
        texts: CUDA C++ without its host code.
        roots: the names of the kernels; without them, all kernels count as read.

    Attributes:
        named: the declarations that declare names and are no kernels, and the kernels of headers that are not `roots`.
        others: the other declarations, which count as read.
        nodes: the declarations of each name.
        launches: the calls of macros that define a kernel and the host's function that launches it.
    """

    def __init__(self, texts: Mapping[str, str], roots: Collection[str] = ()) -> None:
        self._bare = {where: scan(text).bare for where, text in texts.items()}
        self._macros: dict[str, set[str]] = {}
        self._unread: list[str] = []
        self.named: list[tuple[str, Item]] = []
        self.others: list[tuple[str, Item]] = []
        self.nodes: dict[str, list[tuple[str, Item]]] = {}
        self.launches: set[tuple[str, Item]] = set()
        # The call of a macro outside functions declares what the macro's text declares.
        spaces = {n: of for text in texts.values() for n, of in macros_of(text).items()}
        calls = {n: body for text in texts.values() for n, (parameters, body) in macros_of(text).items() if parameters}
        pasting = {name for name, body in calls.items() if "##" in body}
        while more := {name for name in calls.keys() - pasting if not pasting.isdisjoint(WORD.findall(calls[name]))}:
            pasting |= more
        self._pasting = {name: calls[name] for name in pasting}
        # The name of a function in a header may be a macro, which the including text defines. It then declares another name.
        renamed = {n for t in texts.values() for n, of in macros_of(t).items() if not of[0] and _NAMES.fullmatch(of[1])}
        for where, text in texts.items():
            code, given = scan(text), macros_of(text)
            for name, (_, body) in given.items():
                self._macros.setdefault(name, set()).update(WORD.findall(body))
            items = declarations(code, spaces | given)
            if items is None:
                self._unread += WORD.findall(code.bare)
                self.others.append((where, Item(0, len(code.bare), -1)))
                continue
            for item in items:
                piece = self.piece(where, item)
                declared = declared_names(piece)
                called = next((calls[name] for name in declared if name in calls), None)
                declared = declared if called is None else _declared_by(piece, calls)
                if called is not None and "<<<" in called:
                    self.launches.add((where, item))
                for name in declared:
                    self.nodes.setdefault(name, []).append((where, item))
                # Of a header, a kernel reads no other kernel.
                other = where and roots and declared.isdisjoint(roots)
                unknown_name = not renamed.isdisjoint(declared)
                if not declared or unknown_name or ("__global__" in piece and not other):
                    self._unread += self.words(where, item)
                    self.others.append((where, item))
                else:
                    self.named.append((where, item))

    def piece(self, where: str, item: Item) -> str:
        """Returns the code of a declaration."""
        return self._bare[where][item.start : item.end]

    def words(self, where: str, item: Item) -> list[str]:
        """Returns the names in a declaration, and those that its calls of macros make by ``##``."""
        piece = self.piece(where, item)
        return [*WORD.findall(piece), *_made(_expanded(piece, self._pasting))]

    def read(self, roots: Collection[str]) -> set[tuple[str, Item]]:
        """Returns the declarations with names that kernels read, directly or through others."""
        unread, read = [*roots, *self._unread], set[str]()
        kept: set[tuple[str, Item]] = set()
        while unread:
            name = unread.pop()
            if name in read:
                continue
            read.add(name)
            unread += self._macros.get(name, ())
            for where, item in self.nodes.get(name, ()):
                if (where, item) not in kept:
                    kept.add((where, item))
                    unread += self.words(where, item)
        return kept


def _declared_by(call: str, macros: Mapping[str, str]) -> frozenset[str]:
    """Returns the names that the call of a macro declares: those of the declarations in the macro's text, and those that it makes
    by ``##``, such as ``AtomicAdd`` of ``Atomic##NAME``."""
    body = _expanded(call, macros)
    joined = _PASTES.sub("", body)
    items = items_of(joined, {}) or ()
    return frozenset(_made(body)).union(*(declared_names(joined[i.start : i.end]) for i in items))


def _expanded(code: str, macros: Mapping[str, str]) -> str:
    """Returns code with the texts of macros in place of their calls. ``##`` stays.

    Args:
        code: the code.
        macros: the parameters and the texts of macros with parameters, by name.
    """

    def text_of(call: re.Match[str]) -> str:
        if call[1] not in macros:
            return call[0]
        parameters, _, body = macros[call[1]].partition(")")
        names = (name.strip() for name in parameters.split(","))
        given = dict(zip(names, (argument.strip() for argument in call[2].split(",")), strict=False))
        return WORD.sub(lambda word: given.get(word[0], word[0]), body)

    for _ in range(_DEPTH if macros else 0):
        before, code = code, _CALLED.sub(text_of, code)
        if code == before or len(code) > _LONGEST:
            break
    return code


def _made(body: str) -> list[str]:
    """Returns the names that the text of a macro makes by ``##``."""
    return [_PASTES.sub("", m[0]) for m in _PASTED.finditer(body)]


def read_spans(texts: Mapping[str, str]) -> dict[str, list[tuple[int, int]]]:
    """Returns, for each text, the offsets of the declarations that the kernels of the texts read, and of the kernels."""
    graph = _Declarations(texts)
    found: dict[str, list[tuple[int, int]]] = {where: [] for where in texts}
    for where, item in {*graph.read(()), *graph.others}:
        found[where].append((item.start, item.end))
    return found


def _with_readers(
    left_out: set[tuple[str, Item]], kept: set[tuple[str, Item]], graph: _Declarations
) -> set[tuple[str, Item]]:
    """Returns declarations that are left out, with the others that no kernel reads and that read one of them.

    Args:
        left_out: the declarations.
        kept: those that a kernel reads.
        graph: all declarations.
    """
    left_out = set(left_out)
    words = {
        (where, item): set(graph.words(where, item))
        for where, item in {key for keys in graph.nodes.values() for key in keys} - kept
    }
    while True:
        defined = (
            (name, [key for key in keys if not _FORWARD.match(graph.piece(*key))]) for name, keys in graph.nodes.items()
        )
        gone = {name for name, keys in defined if keys and left_out.issuperset(keys)}
        more = {key for key, read in words.items() if not gone.isdisjoint(read)} - left_out
        if not more:
            return left_out
        left_out |= more


def _undefined(texts: Mapping[str, str], defined: Collection[str]) -> set[str]:
    """Returns the names in capitals that texts use and that nothing declares: neither a macro, nor a declaration."""
    used: set[str] = set()
    known = {*defined, *MACROS}
    for text in texts.values():
        bare = scan(text).bare
        used.update(_CAPITALS.findall(bare))
        known.update(match[1] for match in _DECLARED.finditer(bare))
        known.update(_FURTHER.findall(bare))
        known.update(word for body in _ENUM.findall(bare) for word in WORD.findall(body))
    return used - known


def of_host(bare: str) -> bool:
    """Returns whether code names types of the host's libraries, or of a library that is not part of CUDA."""
    named = HOST_TYPE.search(bare) or _OF_OTHERS.search(bare)
    return named is not None or any(True for _ in unknown(bare))


def _blanked(text: str, code: Code, start: int, end: int) -> str:
    """Returns a text with blanks between two offsets. Directives stay."""
    pieces, at = [text[:start]], start
    for directive in (*code.directives_between(start, end), None):
        stop = end if directive is None else directive.start
        pieces.append(re.sub(r"[^\n]", " ", text[at:stop]))
        if directive is not None:
            pieces.append(without_loop(text[stop : directive.end], directive))
            at = directive.end
    return "".join(pieces) + text[end:]
