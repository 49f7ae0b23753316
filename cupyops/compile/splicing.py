"""Replaces the ``#include`` directives of a text by the texts of its headers."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from .cuda_text import Directive, scan
from .declarations import WORD
from .system_headers import header, in_text

__all__ = ["Splicing", "without"]

_GUARD = re.compile(r"(?:!\s*defined\s*\(?\s*)?([A-Za-z_]\w*)\s*\)?\s*")


@dataclass
class Splicing:
    """How the headers of a text take the places of their directives.

    Attributes:
        known: the texts of the headers, by name.
        own: the names of the headers that are not the shared ones.
        hidden: by name, the macros without which a header is compiled.
        absent: the headers that are left out where their directives are compiled. The compiler reads the directives of other unknown
            headers.
        state: returns whether the code of a text at an offset is compiled; None if only the compiler knows.
        system_lines: returns the lines that take the place of the directive of a system header, or None if the directive stays.
    """

    known: Mapping[str, str]
    own: Collection[str]
    hidden: Mapping[str, Mapping[str, str]]
    absent: Collection[str]
    state: Callable[[str, int], bool | None]
    system_lines: Callable[[str, str], list[str] | None]
    _guarded: set[str] = field(default_factory=set)

    def whole(
        self,
        text: str,
        filename: str,
        seen: set[str] | None = None,
        around: tuple[str, ...] = (),
        hides: bool = True,
    ) -> str:
        """Returns a text with its headers in place of their directives. Removes those of system headers whose names need no header, and
        those of a header that is there already, unless it has no guard.

        Args:
            text, filename: the text and its name.
            seen: the headers that are there already.
            around: the headers in which the text is included.
            hides: no header around the text is compiled without macros.
        """
        seen = set[str]() if seen is None else seen
        seen.add(filename)
        pieces, at, line = [f'#line 1 "{filename}"\n'], 0, 1
        for directive in scan(text).directives:
            once = _is_once(directive)
            name, bracketed = directive.header, directive.rest[:1] == "<"
            state = self.state(filename, directive.start) if name else False
            missing = name in self.absent and state is True
            # A folder of the text may have a file with the name of a system header. An #include in quotes means that file.
            given = name in self.known and in_text(name, directive.rest[:1] == '"')
            system = bool(name) and not given and not missing and (bracketed or header(name) is not None)
            instead = self.system_lines(name, directive.rest[0]) if system else None
            stays = (system and instead is None) or not (system or given or missing)
            if not once and (not name or stays):
                continue
            pieces.append(text[at : directive.start])
            line += text.count("\n", at, directive.end)
            at = directive.end
            if once or instead == []:
                pieces.append("\n" * text.count("\n", directive.start, directive.end))
                continue
            if instead:
                pieces.append("\n".join(instead))
            elif given and (name not in self.own or state is not False):
                inner = (*around, filename)
                if name not in seen or (name in self.own and name not in inner and not _is_guarded(self.known[name])):
                    pieces.append(self._header(name, state is None, seen, inner, hides))
            pieces.append(f'\n#line {line + 1} "{filename}"')
        return "".join(pieces) + text[at:]

    def _header(self, name: str, undecided: bool, seen: set[str], around: tuple[str, ...], hides: bool) -> str:
        """Returns the text of a header with its headers.

        Another directive may include the header again if the compiler leaves out the code of this one. So a directive in such code
        counts for that code alone, and ``#pragma once`` becomes a guard.
        """
        mine = self.hidden.get(name, {}) if hides else {}
        undecided = undecided and name in self.own
        spliced = self.whole(self.known[name], name, set(seen) if undecided else seen, around, hides and not mine)
        spliced = without(spliced, mine) if mine else spliced
        if undecided:
            self._guarded.add(name)
        if name not in self._guarded or not any(map(_is_once, scan(self.known[name]).directives)):
            return spliced
        # Each header has a guard of its own: `a-b.h` and `a_b.h` have two.
        own = re.sub(r"[^A-Za-z0-9]", lambda c: f"_{ord(c[0]):x}_", name)
        guard = f"CUPYOPS_ONCE_{own}"
        return f"#ifndef {guard}\n#define {guard}\n{spliced}\n#endif"


def without(source: str, macros: Mapping[str, str]) -> str:
    """Returns a header's text between lines that undefine macros and lines that define them again."""
    before = [f"#undef {name}" for name in macros]
    return "\n".join([*before, source, *(f"#define {name} {value}" for name, value in macros.items())])


def _is_once(directive: Directive) -> bool:
    return directive.name == "pragma" and directive.rest.split()[:1] == ["once"]


def _is_guarded(text: str) -> bool:
    """Returns whether a header has an include guard: ``#pragma once``, or a macro that it tests and defines."""
    directives = scan(text).directives
    asked = {guard[1] for d in directives if d.name in ("ifndef", "if") and (guard := _GUARD.fullmatch(d.rest))}
    return any(
        _is_once(d) or (d.name == "define" and not asked.isdisjoint(WORD.findall(d.rest)[:1])) for d in directives
    )
