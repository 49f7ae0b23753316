"""Parses CUDA files with host code by libclang, as host compilation sees them, and wraps functions that its Python
binding lacks.

No header of the machine is read. The words of :mod:`.words` are one header, and PyTorch's operators are declared from
their schemas. An include that is not found in the user's folders is an empty file: a name that it would declare is then
unknown, and clang says so where it is used.
"""

import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from cupyops.compile.cuda_text import LINKAGE
from cupyops.compile.device_half import MARKS
from cupyops.compile.system_headers import header as header_of
from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install

from . import autograd, classes, cublas, device_algorithms, functional, python_objects, random_state, standard, thrust  # noqa: F401  their import declares the words

__all__ = [
    "Problem",
    "Unit",
    "end_of",
    "evaluated",
    "header_file",
    "initializer",
    "is_invalid",
    "joined",
    "operator_of",
    "parse",
    "place_of",
    "source_of",
    "template_arguments",
]

WORDS = "/cupyops/words.h"
OPERATORS = "/cupyops/operators.h"
MAIN = "/cupyops/program.cu"
_INCLUDES = "/cupyops/include"
_HEADERS = "/cupyops/headers"
_FLAGS = (
    "-xcuda", "-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++", "--cuda-host-only", "--cuda-gpu-arch=sm_90",
    "-target", "x86_64-unknown-linux-gnu", "-ferror-limit=0", "-ftemplate-depth=4096", "-Wno-everything", "-fno-caret-diagnostics",
    *(f"-D{name}=__host__ __device__" for name in sorted(MARKS) if not name.startswith("__")),
    "-DNDEBUG", "-DTORCH_EXTENSION_NAME=extension", "-D__CUDACC__=1", "-D__NVCC__=1",
)  # fmt: skip
# clang goes on after an include that it does not find, and keeps no trace of a body's text.
_KEEP_GOING = 0x200


@cache
def clang() -> Any:
    """Returns the module ``clang.cindex`` with the functions of libclang that it does not declare.

    Raises:
        MissingDependencyError: libclang is not installed.
    """
    try:
        from clang import cindex

        library = cindex.conf.lib
    except Exception as error:  # no package, or no shared library for this machine
        told = f"reading a CUDA file with a host half needs libclang: {pip_install('import')}"
        raise MissingDependencyError(told) from error
    pointer, unsigned = ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)
    for name, arguments, result in (
        ("clang_getCursorBinaryOperatorKind", [cindex.Cursor], ctypes.c_int),
        ("clang_getCursorUnaryOperatorKind", [cindex.Cursor], ctypes.c_int),
        (
            "clang_getSpellingLocation",
            [cindex.SourceLocation, ctypes.POINTER(cindex.c_object_p), unsigned, unsigned, unsigned],
            None,
        ),
        ("clang_Cursor_Evaluate", [cindex.Cursor], pointer),
        ("clang_Cursor_getVarDeclInitializer", [cindex.Cursor], cindex.Cursor),
        ("clang_Cursor_getTemplateArgumentKind", [cindex.Cursor, ctypes.c_uint], ctypes.c_int),
        ("clang_Cursor_isNull", [cindex.Cursor], ctypes.c_int),
        ("clang_isInvalidDeclaration", [cindex.Cursor], ctypes.c_uint),
        ("clang_EvalResult_getKind", [pointer], ctypes.c_int),
        ("clang_EvalResult_isUnsignedInt", [pointer], ctypes.c_uint),
        ("clang_EvalResult_getAsLongLong", [pointer], ctypes.c_longlong),
        ("clang_EvalResult_getAsUnsigned", [pointer], ctypes.c_ulonglong),
        ("clang_EvalResult_getAsDouble", [pointer], ctypes.c_double),
        ("clang_EvalResult_dispose", [pointer], None),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return cindex


@dataclass(frozen=True)
class Problem:
    """An error of clang: its message, with the file, the line and the offset of its place."""

    message: str
    file: str
    line: int
    offset: int


@dataclass
class Unit:
    """A parsed program.

    Attributes:
        cursor: the root of the tree.
        files: the user's files by the names under which clang knows them: the sources, and what they include.
        problems: the errors in them.
        missing: the names of the files that they include in quotes, and that were not found.
        parts: the units of the sources, if they are not one.
        once: the headers without a guard, of which each source has the same text.
    """

    cursor: Any
    files: dict[str, str]
    problems: list[Problem]
    missing: tuple[str, ...] = ()
    keeps: Any = field(repr=False, default=None)
    parts: tuple["Unit", ...] = ()
    once: frozenset[str] = frozenset()

    def mine(self, cursor: Any) -> bool:
        """Returns whether a declaration is in a file of the user."""
        file = cursor.location.file
        return file is not None and file.name in self.files

    def declarations(self, parent: Any = None) -> Iterator[Any]:
        """Yields the user's declarations at file scope and in namespaces."""
        if self.parts and parent is None:
            for part in self.parts:
                yield from part.declarations()
            return
        for child in (parent or self.cursor).get_children():
            if not self.mine(child):
                continue
            if child.kind.name in ("NAMESPACE", "LINKAGE_SPEC", "UNEXPOSED_DECL"):
                yield from self.declarations(child)
            else:
                yield child

    @cached_property
    def _defined(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for declared in self.declarations() if self.parts else ():
            if declared.linkage.name != "INTERNAL" and declared.is_definition():
                found.setdefault(_linked_name(declared), declared)
        return found

    def definition(self, declared: Any) -> Any:
        """Returns the definition of a function or a variable, which may be in another source; None if there is none."""
        return declared.get_definition() or self._defined.get(_linked_name(declared))


def _with_own_macros(name: str, text: str) -> str:
    """Returns the file that includes a source. The macros of a source end with it, and the earlier macros hold
    again."""
    macros = dict.fromkeys(_DEFINED.findall(text))
    pushed, popped = ("".join(f'#pragma {act}_macro("{m}")\n' for m in macros) for act in ("push", "pop"))
    return f'{pushed}#include "{name}"\n{popped}'


def _linked_name(declared: Any) -> str:
    """Returns the name by which a linker finds a declaration. In clang's own names, a parameter ``const int`` differs
    from ``int``."""
    is_template = "TEMPLATE" in declared.kind.name
    return str(declared.get_usr() if is_template else declared.mangled_name or declared.get_usr())


def joined(parts: Sequence[Unit]) -> Unit:
    """Returns sources that have been parsed apart as one program."""
    files = {name: text for part in parts for name, text in part.files.items()}
    problems = list(dict.fromkeys(p for part in parts for p in part.problems))
    missing = tuple(dict.fromkeys(name for part in parts for name in part.missing))
    once = frozenset[str]().union(*(part.once for part in parts))
    return Unit(parts[0].cursor, files, problems, missing, parts=tuple(parts), once=once)


def is_invalid(cursor: Any) -> bool:
    """Returns whether clang found an error in a declaration. Its type in the tree is then wrong."""
    return bool(clang().conf.lib.clang_isInvalidDeclaration(cursor))


def parse(
    sources: Sequence[tuple[str, str]],
    options: Sequence[str] = (),
    include: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Unit:
    """Parses texts, each with its file name, as one program.

    Args:
        sources: the names and the texts. A text may include the others, and files of the folders.
        options: ``-D``, ``-U`` and ``-std=``.
        include: folders of the files that they include.
        headers: texts by name for ``#include "name"``. A file of the program has the name in :func:`header_file`.

    Raises:
        MissingDependencyError: libclang is not installed.
    """
    from . import operators, words

    cindex = clang()
    texts = {os.path.abspath(name) if os.path.dirname(name) else f"/cupyops/{name}": text for name, text in sources}
    folders = [*include, *dict.fromkeys(map(os.path.dirname, texts)), _HEADERS]
    main = "".join(map(_with_own_macros, texts, texts.values()))
    if len(texts) == 1 and all(_is_plain(*source) for source in texts.items()):
        main = f"{_PLAIN}{main}#pragma clang force_cuda_host_device end\n"
    texts |= {header_file(name): text for name, text in (headers or {}).items()}
    texts = {name: _launches_closed(LINKAGE.sub(r"\g<0> ", text)) for name, text in texts.items()}
    files = {MAIN: main, **texts}
    absent: dict[str, str] = {f"{_INCLUDES}/{name}": "" for name in _known_includes(texts.values())}
    asked = [o for o in options if o.startswith(("-D", "-U", "-std="))]
    if not any(o.startswith("-std=") for o in asked):
        asked.append("-std=c++17")
    arguments = [*_FLAGS, *asked, *(f"-I{folder}" for folder in folders), f"-I{_INCLUDES}", "-include", WORDS]
    names = set(re.findall(r"[A-Za-z_]\w*", "\n".join((*texts.values(), *_included(texts, folders)))))
    own_macros = {name for text in texts.values() for name in _DEFINED.findall(text)}
    once: dict[str, str] = {}
    while True:
        header = words.declarations(names)
        own = [(WORDS, operators.header(header, names)), *files.items(), *absent.items(), *once.items()]
        unit = cindex.Index.create().parse(MAIN, args=arguments, unsaved_files=own, options=_KEEP_GOING)
        problems, missing, again = [], set(), len(once)
        for found in unit.diagnostics:
            if found.severity < cindex.Diagnostic.Error:
                continue
            if len(sources) > 1 and (twice := _read_twice(found)) and twice not in files and twice not in once:
                with open(twice, encoding="utf-8") as file:
                    text = file.read()
                # Macros of the sources may give it another meaning in each.
                if own_macros.isdisjoint(re.findall(r"[A-Za-z_]\w*", text)):
                    once[twice] = f"{text}\n#pragma once\n"
            if lost := re.match(r"'(.+)' file not found", found.spelling):
                missing.add(f"{_INCLUDES}/{lost[1]}")
            # An error in a template of the words is the user's where it is instantiated, as the notes say. A word with
            # a lambda's type has no definition, which is not an error.
            for location in (found.location, *(note.location for note in found.children)):
                place = _spelled(location)
                if place[0] not in files:
                    place = (location.file.name if location.file else "", location.line, location.offset)
                is_user = place[0] in files or (place[0] and not place[0].startswith("/cupyops/"))
                if is_user and "does not have linkage" not in found.spelling:
                    problems.append(Problem(found.spelling, *place))
                    break
        if missing <= absent.keys() and len(once) == again:
            break
        absent |= dict.fromkeys(missing, "")
    for included in unit.get_includes():
        name = included.include.name
        if name not in texts and not name.startswith("/cupyops/"):
            with open(name, encoding="utf-8") as file:
                texts[name] = file.read()
    quoted = {
        name for text in texts.values() for name in re.findall(r'(?m)^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', text)
    }
    lacking = tuple(n for n in quoted if f"{_INCLUDES}/{n}" in absent and header_of(n) is None)
    return Unit(unit.cursor, texts, problems, tuple(sorted(lacking)), unit, once=frozenset(once))


# Definitions of CUDA's keywords for a C++ compiler.
_PLAIN = "#undef __CUDACC__\n#undef __NVCC__\n#define __device__\n#define __host__\n#pragma clang force_cuda_host_device begin\n"


def _is_plain(name: str, text: str) -> bool:
    """Returns whether nvcc would not compile a source, and the source has no kernels by mistake."""
    return name.endswith((".cpp", ".cc", ".cxx")) and "__global__" not in text


def _read_twice(found: Any) -> str:
    """Returns the file whose line an error reports as a redefinition of itself, since several sources include it;
    ``""`` for other errors."""
    if not found.spelling.startswith("redefinition of") or found.location.file is None:
        return ""
    name, line = found.location.file.name, found.location.line
    notes = [n.location for n in found.children if n.location.file is not None]
    return name if any((n.file.name, n.line) == (name, line) for n in notes) else ""


def _included(texts: Mapping[str, str], folders: Sequence[str]) -> list[str]:
    """Returns the texts of the files that texts include from folders, and of those that these include."""
    found: dict[str, str] = {}
    todo = list(texts.items())
    while todo:
        file, text = todo.pop()
        for name in re.findall(r"(?m)^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", text):
            for folder in (os.path.dirname(file), *folders):
                path = os.path.normpath(os.path.join(folder, name))
                if path not in found and path not in texts and os.path.isfile(path):
                    with open(path, encoding="utf-8", errors="replace") as opened:
                        found[path] = opened.read()
                    todo.append((path, found[path]))
                    break
    return list(found.values())


def header_file(name: str) -> str:
    """Returns the file name in the program of a header that is given as a text."""
    return name if os.path.isabs(name) else f"{_HEADERS}/{name}"


def _known_includes(texts: Any) -> list[str]:
    """Returns the names in angle brackets: headers of CUDA, PyTorch and the standard library, which the words replace."""
    return [name for text in texts for name in re.findall(r"(?m)^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", text)]


# A launch that is written `<< <...>> >`, as some formatters leave it. nvcc accepts it. The replacement keeps all offsets.
_LAUNCH = re.compile(r"<<( +)<((?:[^;{}])*?)>>( *)>(?= *\()")


def _closed(match: re.Match[str]) -> str:
    return f"<<<{match[1]}{match[2]}>>>{match[3]}"


# A grid or a block as a braced list, ``k<<<n, {16, 16}>>>(x)``, which nvcc takes for a dim3, and clang for no expression.
_CONFIGURED = re.compile(r"<<<[^;]*?>>>(?= *\()")
_BRACED = re.compile(r"(<<<|,)(\s*)(?=\{)")


def _launches_closed(text: str) -> str:
    return _CONFIGURED.sub(lambda m: _BRACED.sub(r"\1\2dim3", m[0]), _LAUNCH.sub(_closed, text))


_DEFINED = re.compile(r"(?m)^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)")
_BINARY = (
    "", ".*", "->*", "*", "/", "%", "+", "-", "<<", ">>", "<=>", "<", ">", "<=", ">=", "==", "!=", "&", "^", "|", "&&",
    "||", "=", "*=", "/=", "%=", "+=", "-=", "<<=", ">>=", "&=", "^=", "|=", ",",
)  # fmt: skip
_UNARY = ("", "x++", "x--", "++", "--", "&", "*", "+", "-", "~", "!")


def operator_of(cursor: Any) -> str:
    """Returns the operator of an expression: ``"+"``, ``"+="``; ``"x++"`` for the form after its operand."""
    library = clang().conf.lib
    if cursor.kind.name == "UNARY_OPERATOR":
        kind = library.clang_getCursorUnaryOperatorKind(cursor)
        return _UNARY[kind] if kind < len(_UNARY) else ""
    kind = library.clang_getCursorBinaryOperatorKind(cursor)
    return _BINARY[kind] if kind < len(_BINARY) else ""


def evaluated(cursor: Any) -> int | float | None:
    """Returns the value of a constant expression of numbers, or None if clang knows none."""
    library = clang().conf.lib
    result = library.clang_Cursor_Evaluate(cursor)
    if not result:
        return None
    try:
        kind = library.clang_EvalResult_getKind(result)
        if kind == 1:
            if library.clang_EvalResult_isUnsignedInt(result):
                return int(library.clang_EvalResult_getAsUnsigned(result))
            return int(library.clang_EvalResult_getAsLongLong(result))
        return float(library.clang_EvalResult_getAsDouble(result)) if kind == 2 else None
    finally:
        library.clang_EvalResult_dispose(result)


def initializer(cursor: Any) -> Any:
    """Returns the initializer of a variable, or None."""
    library = clang().conf.lib
    found = library.clang_Cursor_getVarDeclInitializer(cursor)
    if library.clang_Cursor_isNull(found):
        return None
    found._tu = cursor._tu  # the binding keeps the tree alive by it
    return found


def template_arguments(declared: Any) -> list[Any]:
    """Returns the template arguments of a specialisation: clang's types, integers, and None for arguments that libclang
    does not report."""
    found: list[Any] = []
    count = max(0, declared.get_num_template_arguments())
    template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared) if count else None
    parameters = [] if template is None else [c for c in template.get_children() if c.kind.name.startswith("TEMPLATE_")]
    for i in range(count):
        kind = clang().conf.lib.clang_Cursor_getTemplateArgumentKind(declared, i)
        value = None
        if kind == 1:
            value = declared.get_template_argument_type(i)
        elif kind == 4:
            value = int(declared.get_template_argument_value(i))
            if i < len(parameters) and parameters[i].type.get_canonical().kind.name == "BOOL":
                value &= 1  # true has all bits
        found.append(value)
    return found


def _spelled(location: Any) -> tuple[str, int, int]:
    """Returns the file, the line and the offset of the text of a token, which may be an argument of a macro."""
    cindex = clang()
    file, line, column, offset = cindex.c_object_p(), ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    cindex.conf.lib.clang_getSpellingLocation(
        location, ctypes.byref(file), ctypes.byref(line), ctypes.byref(column), ctypes.byref(offset)
    )
    if not file:
        return "", 0, 0
    return str(cindex.File(file).name), line.value, offset.value


def place_of(unit: Unit, cursor: Any) -> tuple[str, int, int]:
    """Returns the file, the line and the offset of an expression's text; of the macro's use if a word's macro has the text."""
    place = _spelled(cursor.extent.start)
    if place[0] in unit.files:
        return place
    start = cursor.extent.start
    return (start.file.name if start.file else "", start.line, start.offset)


def end_of(unit: Unit, cursor: Any) -> int:
    """Returns the offset after an expression's text, see :func:`place_of`."""
    end = _spelled(cursor.extent.end)
    return end[2] if end[0] in unit.files else cursor.extent.end.offset


def source_of(unit: Unit, cursor: Any) -> str:
    """Returns the text of an expression as the user wrote it; ``""`` if it is not one piece of a file."""
    start, end = _spelled(cursor.extent.start), _spelled(cursor.extent.end)
    if start[0] == end[0] and start[0] in unit.files and start[2] < end[2]:
        return unit.files[start[0]].encode()[start[2] : end[2]].decode(errors="replace")
    return ""
