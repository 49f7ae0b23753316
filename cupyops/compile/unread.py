"""Leaves out the device code that names types of the host's libraries and that no kernel reads."""

import re
from collections.abc import Collection, Mapping

from .cuda_text import Code, scan
from .host_code import HOST_TYPE, WORD, Item, declarations, declared_names, macros_of
from .standard import unknown

__all__ = ["without_unread"]


def without_unread(texts: Mapping[str, str], roots: Collection[str]) -> dict[str, str]:
    """Returns texts without the declarations that name types of the host's libraries, if no other code reads them.

    The ``__device__`` functions of a functor for thrust, for one, are code that a kernel does not call.

    Args:
        texts: CUDA C++ without its host code, by name. A text may use the names of the others.
        roots: the names of the kernels.
    """
    if not any(of_host(scan(text).bare) for text in texts.values()):
        return dict(texts)
    suspects: set[tuple[str, Item]] = set()
    nodes: dict[str, list[tuple[str, Item]]] = {}  # the declarations of each name
    macros: dict[str, set[str]] = {}
    unread: list[str] = list(roots)
    for where, text in texts.items():
        code = scan(text)
        given = macros_of(text)
        for name, (_, body) in given.items():
            macros.setdefault(name, set()).update(WORD.findall(body))
        items = declarations(code, given)
        if items is None:
            unread += WORD.findall(code.bare)
            continue
        for item in items:
            piece = code.bare[item.start : item.end]
            declared = declared_names(piece)
            for name in declared:
                nodes.setdefault(name, []).append((where, item))
            if not declared:
                unread += WORD.findall(piece)
            elif of_host(piece):
                suspects.add((where, item))
    read: set[str] = set()
    kept: set[tuple[str, Item]] = set()
    while unread:
        name = unread.pop()
        if name in read:
            continue
        read.add(name)
        unread += macros.get(name, ())
        for where, item in nodes.get(name, ()):
            if (where, item) not in kept:
                kept.add((where, item))
                unread += WORD.findall(scan(texts[where]).bare[item.start : item.end])
    found = dict(texts)
    for where, item in sorted(suspects - kept, key=lambda key: -key[1].start):
        found[where] = _blanked(found[where], scan(texts[where]), item.start, item.end)
    return found


def of_host(bare: str) -> bool:
    """Returns whether code names types of the host's libraries."""
    return HOST_TYPE.search(bare) is not None or any(True for _ in unknown(bare))


def _blanked(text: str, code: Code, start: int, end: int) -> str:
    """Returns a text with blanks between two offsets. Directives stay."""
    pieces, at = [text[:start]], start
    for directive in (*code.directives_between(start, end), None):
        stop = end if directive is None else directive.start
        pieces.append(re.sub(r"[^\n]", " ", text[at:stop]))
        if directive is not None:
            pieces.append(text[stop : directive.end])
            at = directive.end
    return "".join(pieces) + text[end:]
