"""Headers that a text includes and that no package or folder provides.

Many kernels need nothing of the headers of their projects, so a directive without a header is left out. The compiler's error
names what a kernel lacks. A text is refused where the missing header could make another kernel of it without an error.
"""

import re
import warnings
from collections.abc import Collection, Mapping, Sequence

from cupyops.errors import nearest

from .cuda_text import scan
from .declarations import WORD
from .preprocess import CONDITIONALS, Preprocessed, undefined_by
from .system_headers import found_in, header

__all__ = ["give", "leave_out"]

_NO_CODE = re.compile(r'(?:extern\s*"C(?:\+\+)?"|namespace\b[\w\s:]*)\s*\{|[};\s]+')


def give(name: str) -> str:
    """Returns how to give a header."""
    return f"give its text as headers={{{name!r}: ...}}, or its folder as options=('-I...',)"


def leave_out(
    followed: Preprocessed, texts: Mapping[str, str], known: Mapping[str, str], options: Sequence[str], filename: str
) -> Collection[str]:
    """Warns of each missing header, and returns their names. Their directives are left out: a kernel may not need the header, and
    otherwise the compiler's error has the missing name.

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
    missing: dict[str, tuple[str, str]] = {}
    for name, live, directive, where in followed.includes:
        if live and not (name in known or header(name) is not None or found_in(options, name)):
            missing.setdefault(name, (f'"{name}"' if directive.rest[0] == '"' else f"<{name}>", where or filename))
    macros = [name for name in followed.free(texts) if name not in undefined_by(options)] if missing else []
    decides = bool(macros) and _decide(followed, followed.with_undecided(macros), texts)
    for name, (shown, where) in missing.items():
        words = f"{where}: #include {shown}: no such header is known"
        if decides:
            macro, *others = macros
            more = f"; so with {', '.join(others)}" if others else ""
            raise ValueError(
                f"{words}, and a condition of the text reads {macro}, which the header may define; {give(name)}, or decide the "
                f"condition by options=('-D{macro}',) or ('-U{macro}',){more}"
            )
        told = f"so it is left out{nearest(name, known)}; if the kernel uses it, {give(name)}"
        warnings.warn(f"{words}, {told}", stacklevel=4)
    return missing.keys()


def _decide(followed: Preprocessed, other: Preprocessed, texts: Mapping[str, str]) -> bool:
    """Returns whether code, one of the texts or a macro that they read is undecided in another result alone."""
    codes = {where: scan(text) for where, text in texts.items()}
    read: set[str] = set()
    for code in codes.values():
        read.update(WORD.findall(code.bare))
        read.update(word for d in code.directives if d.name == "define" for word in WORD.findall(d.rest)[1:])
        read.update(word for d in code.directives if d.name in CONDITIONALS for word in WORD.findall(d.rest))
    for where, code in codes.items():
        for start, end, state in other.spans(where, texts[where]):
            if state is not None or followed.live(where, start) is None:
                continue
            directives = code.directives_between(start, end)
            named = {word for d in directives if d.name in ("define", "undef") for word in WORD.findall(d.rest)[:1]}
            if (
                _NO_CODE.sub("", code.bare[start:end])
                or named & read
                or any(d.header in texts for d in directives if d.header)
            ):
                return True
    return False
