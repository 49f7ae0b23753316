"""Chooses branches of conditionals whose braces match only after preprocessing."""

import re

from .cuda_text import Code

__all__ = ["first_branches"]


def first_branches(code: Code, compiled: str) -> str:
    """Returns code with one branch of each conditional whose branches have braces without a match, and blanks for the others.

    Such branches are `if (a) {` before `#else` and `if (b) {` behind it. The first branch that no condition removes stays.
    """
    bare = code.bare
    opened: list[list[int]] = []  # of each conditional: the end of a directive, the start of the next one, and so on
    for directive in code.directives:
        if directive.name in ("if", "ifdef", "ifndef"):
            opened.append([directive.end])
        elif opened and directive.name in ("elif", "elifdef", "elifndef", "else", "endif"):
            opened[-1] += [directive.start, directive.end]
            if directive.name != "endif":
                continue
            places = opened.pop()[:-1]
            branches = list(zip(places[::2], places[1::2], strict=True))
            if all(_matches(bare[start:end]) for start, end in branches):
                continue
            live = [span for span in branches if compiled[slice(*span)].strip() or not bare[slice(*span)].strip()]
            for start, end in (span for span in branches if span != [*live, *branches][0]):
                bare = bare[:start] + re.sub(r"[^\n]", " ", bare[start:end]) + bare[end:]
    return bare


def _matches(branch: str) -> bool:
    """Returns whether the braces and parentheses of a branch have their matches in the branch."""
    for opening, closing in ("{}", "()"):
        depth = 0
        for mark in re.findall(rf"[{opening}{closing}]", branch):
            depth += 1 if mark == opening else -1
            if depth < 0:
                return False
        if depth:
            return False
    return True
