"""Headers that a text includes and that no package or folder provides.

Many kernels need nothing of the headers of their projects, so a directive without a header is left out. The compiler's error
names what a kernel lacks. A text is refused where the missing header could make another kernel of it without an error.
"""

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence

from cupyops.errors import nearest

from .cuda_text import Code, Directive, scan
from .declarations import WORD
from .preprocess import CONDITIONALS, Preprocessed, undefined_by
from .system_headers import found_in, header

__all__ = ["give", "leave_out"]

_NO_CODE = re.compile(r'(?:extern\s*"C(?:\+\+)?"|namespace\b[\w\s:]*)\s*\{|[};\s]+')


def _absent(followed: Preprocessed, known: Collection[str], options: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns the missing headers of a text: by name, the name in its quotes or brackets, and where the header is
    included first."""
    found: dict[str, tuple[str, str]] = {}
    for name, live, directive, where in followed.includes:
        given = name in known or header(name) is not None or found_in(options, name)
        if live and not given:
            found.setdefault(name, (f'"{name}"' if directive.rest[0] == '"' else f"<{name}>", where))
    return found


def give(name: str) -> str:
    """Returns how to give a header."""
    return f"give its text as headers={{{name!r}: ...}}, or its folder as options=('-I...',)"


def leave_out(
    followed: Preprocessed, texts: Mapping[str, str], known: Mapping[str, str], options: Sequence[str], filename: str
) -> None:
    """Warns of each missing header. Its directive is left out: a kernel may not need the header, and otherwise the
    compiler's error has the missing name.

    Args:
        followed: the directives of the text.
        texts: the text and its headers without what a GPU does not compile, by name.
        known: the texts of all known headers, by name.
        options: NVRTC options.
        filename: the file name of the text in messages.

    Raises:
        ValueError: a condition of the text reads a macro that the header may define, and code that is compiled depends on
            the condition.
    """
    missing = _absent(followed, known, options)
    macros = dict.fromkeys(_deciding(followed, texts, options)) if missing else {}
    for name, (shown, where) in missing.items():
        words = f"{where or filename}: #include {shown}: no such header is known"
        if macros:
            macro, *others = macros
            more = f"; so with {', '.join(others)}" if others else ""
            raise ValueError(
                f"{words}, and a condition of the text reads {macro}, which the header may define; {give(name)}, or decide the "
                f"condition by options=('-D{macro}',) or ('-U{macro}',){more}"
            )
        told = f"so it is left out{nearest(name, known)}; if the kernel uses it, {give(name)}"
        warnings.warn(f"{words}, {told}", stacklevel=4)


def _deciding(followed: Preprocessed, texts: Mapping[str, str], options: Sequence[str]) -> Iterator[str]:
    """Yields the macros that nothing defines and on which code that is compiled depends."""
    given = undefined_by(options)
    codes = {where: scan(text) for where, text in texts.items()}
    read: set[str] = set()
    for code in codes.values():
        read.update(WORD.findall(code.bare))
        for directive in code.directives:
            if directive.name == "define":
                read.update(WORD.findall(directive.rest)[1:])
            elif directive.name in CONDITIONALS:
                read.update(WORD.findall(directive.rest))
    for macro, where, directive in followed.unknown(texts):
        if macro not in given and _decides(codes[where], directive, texts.keys(), read):
            yield macro


def _decides(code: Code, condition: Directive, known: Collection[str], read: set[str]) -> bool:
    """Returns whether the branches of a conditional have code, a header of `known` or a macro of `read`."""
    opened: list[Directive] = []
    for directive in code.directives:
        if directive.name in ("if", "ifdef", "ifndef"):
            opened.append(directive)
        elif directive.name == "endif" and opened:
            first = opened.pop()
            if first.start <= condition.start < directive.start:
                break
    else:
        return True
    if _NO_CODE.sub("", code.bare[first.end : directive.start]):
        return True
    for inner in code.directives_between(first.end, directive.start):
        defined = WORD.findall(inner.rest)[:1] if inner.name in ("define", "undef") else []
        if (inner.header and inner.header in known) or not read.isdisjoint(defined):
            return True
    return False
