"""The names of the C++ library and of Thrust that kernels may use, and where CUDA's C++ library has them.

nvcc reads the host's library, whose templates kernels may instantiate if they are ``constexpr``. Under NVRTC, CUDA's C++
library has the same names. Thrust is mostly host code. The types and function objects that kernels use of it are those of CUDA's
C++ library; a kernel that calls an algorithm, with ``thrust::seq`` or without a policy, runs it in each thread alone, and its random
numbers are those of Thrust. The files in ``names/`` have the definitions.
"""

import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .cuda_text import scan
from .declarations import WORD

__all__ = [
    "STD",
    "THRUST",
    "Names",
    "foreign_thrust",
    "library_lines",
    "names_in",
    "specializations",
    "specialized",
    "thrust_lines",
]

STD, THRUST = "std.cuh", "thrust.cuh"
_OF_NAMES = re.compile(r"#define (CUPYOPS_\w+)\(name\)")
_OPENS_STD = re.compile(r"\bnamespace\s+std\s*\{")
_OF_THRUST = re.compile(r"(?<![\w:])(?:::\s*)?thrust\s*::\s*(\w+)")


class Names(NamedTuple):
    """The names of a file in ``names/``.

    Attributes:
        macros: the replacements of macros.
        imported: names of CUDA's libraries, each with the directive that includes it.
        defined: other names, each with its definition, which may define several.
    """

    macros: dict[str, str]
    imported: dict[str, str]
    defined: dict[str, str]

    def definitions(self, used: Iterable[str]) -> list[str]:
        """Returns the definitions of names and of the names in them, in the order of the file. A macro ``CUPYOPS_...(name)`` is
        applied to each of its names."""
        used = [name for name in used if name in self.defined]
        wanted, unread = set[str](), [*used]
        while unread:
            definition = self.defined[unread.pop()]
            if definition not in wanted:
                wanted.add(definition)
                unread += self.defined.keys() & {*WORD.findall(definition)}
        found = []
        for definition in dict.fromkeys(self.defined.values()):
            if definition in wanted:
                found.append(definition)
                if macro := _OF_NAMES.match(definition):
                    found += [f"{macro[1]}({name})" for name in sorted(used) if self.defined[name] == definition]
        return found


@cache
def names_in(file: str) -> Names:
    """Returns the names of a file in ``names/``. Empty lines divide it: a part has macros, or a comment with names and what defines
    them, a directive or code."""
    found = Names({}, {}, {})
    for part in (Path(__file__).parent / "names" / file).read_text(encoding="utf-8").split("\n\n")[1:]:
        comment, code = re.fullmatch(r"((?://.*\n)*)([\s\S]*?)\n*", part).groups()  # type: ignore[union-attr]
        if comment:
            of = found.imported if code.startswith("#include <cu") else found.defined
            of.update(dict.fromkeys(WORD.findall(comment), code))
        else:
            found.macros.update(
                (name, value) for _, name, value in (line.split(maxsplit=2) for line in code.split("\n"))
            )
    return found


def library_lines(of_std: Collection[str]) -> tuple[list[str], list[str]]:
    """Returns the lines that include the headers of CUDA's C++ library for names of ``std``, and those that are in the
    namespace ``std``."""
    includes = {name: include for name, include in names_in(STD).imported.items() if name in of_std}
    # CUDA's C++ library declares the others in std itself.
    within = [f"using cuda::std::{name};" for name in includes if name not in ("tuple_size", "tuple_element")]
    return [*dict.fromkeys(includes.values())], within


@cache
def foreign_thrust() -> re.Pattern[str]:
    """Returns the expression of a name of Thrust that kernels do not have."""
    known = names_in(THRUST)
    return re.compile(rf"\bthrust\s*::\s*(?!(?:{'|'.join(sorted({*known.imported, *known.defined}))})\b)(\w+)")


def thrust_lines(code: str) -> list[str]:
    """Returns the lines that define the names of Thrust that code uses."""
    known, used = names_in(THRUST), {m[1] for m in _OF_THRUST.finditer(code)}
    includes = {name: include for name, include in known.imported.items() if name in used}
    within = [f"using cuda::{'std::' if '/std/' in include else ''}{name};" for name, include in includes.items()]
    within += known.definitions(used)
    return [*dict.fromkeys(includes.values()), "namespace thrust {", *within, "}"] if within else []


@cache
def _specialized() -> re.Pattern[str]:
    names = "|".join(sorted(names_in(STD).imported))
    return re.compile(rf"\btemplate\s*<[^<>;{{}}]*>\s*(?:struct|class)\s+({names})\s*<")


def specialized(code: str) -> frozenset[str]:
    """Returns the classes of ``std`` that code specializes in ``namespace std``."""
    return frozenset(_specialized().findall(code)) if _OPENS_STD.search(code) else frozenset()


def specializations(text: str, own: str) -> str:
    """Returns a text for NVRTC that specializes library classes, such as ``numeric_limits``, in ``namespace
    cuda::std``, where NVRTC has them, not in ``namespace std``. `own` is the code of the text without shared
    headers."""
    if not _OPENS_STD.search(own) or not _specialized().search(own):
        return text
    code = scan(text)
    for match in reversed([*_specialized().finditer(code.bare)]):
        end = code.bare.find(";", code.end_of_function(match.start())) + 1
        if end and code.scope(match.start()) == ("std",):
            inner = text[match.start() : end]
            text = f"{text[: match.start()]}}} namespace cuda {{ namespace std {{ {inner} }} }} namespace std {{{text[end:]}"
    return text
