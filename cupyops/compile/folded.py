"""Marks constants ``constexpr`` where a compiler says that they have to be.

nvcc folds ``const double b = 1. / a;`` outside functions, and takes ``static const float half = 0.5f;`` in a class. NVRTC takes
``b`` for a variable of the GPU, which code would have to initialize, and refuses ``half``, as g++ and clang do.
"""

import re

__all__ = ["folded"]

# The errors of NVRTC, which shows the line with a caret below the name or below the `=` after it, and those of g++ and clang, which give the column.
_OF_NVRTC = re.compile(
    r"(\S.*?)\((\d+)\): error: (?:dynamic initialization is not supported|a member of type .* cannot have an in-class init).*\n"
    r"  (.*)\n  ( *)\^"
)
_OF_HOST = re.compile(
    r"^(\S.*?):(\d+):(\d+): error: .*(?:needed for in-class initialization|requires 'constexpr' specifier)",
    re.MULTILINE,
)
_NO_CONSTANT = re.compile(
    r"(\S.*?)\((\d+)\): error: (?:expression must have a constant value|identifier \"\w+\" is undefined)"
)
_READS = re.compile(r'the value of variable "(?:\w+::)*(\w+)" \(declared at line (\d+)\)')
_LINE = re.compile(r'[ \t]*#[ \t]*line[ \t]+(\d+)[ \t]+"(.*)"')
_MARKED = "constexpr const"  # only a text that has been here has both words
_DECLARATION = re.compile(rf"\b(?:static\s+)?{_MARKED}\b[^;]*;")


def folded(text: str, log: str) -> str:
    """Returns a text whose constants that a compiler names are ``constexpr``. A constant that still is none, since its value calls a
    function or reads such a constant, is left out: the host computes it, and no kernel may read it.

    Args:
        text: what was compiled.
        log: the messages of NVRTC, g++ or clang.
    """
    lines = text.split("\n")
    places = _places(lines)

    def mark(file: str, number: str, name: str) -> bool:
        at = places.get((file, int(number)), 0)
        found = [*re.finditer(rf"(?<!constexpr )\bconst\b(?=[^;{{}}]*\b{name}\b\s*(?:[=\[{{(,;]|$))", lines[at])]
        if found:
            lines[at] = f"{lines[at][: found[-1].start()]}{_MARKED}{lines[at][found[-1].end() :]}"
        return bool(found)

    for file, number, column in _OF_HOST.findall(log):
        mark(file, number, _name_at(lines[places.get((file, int(number)), 0)], int(column) - 1))
    for message in log.split("\n\n"):
        if found := _OF_NVRTC.match(message):
            mark(found[1], found[2], _name_at(found[3], len(found[4])))
        elif found := _NO_CONSTANT.match(message):
            marked = [mark(found[1], number, name) for name, number in _READS.findall(message)]
            at = places.get((found[1], int(found[2])), 0)
            lines[at] = lines[at] if any(marked) else _DECLARATION.sub(";", lines[at])
    return "\n".join(lines)


def _name_at(line: str, column: int) -> str:
    """Returns the word at a column, or the word before it."""
    return ([word[0] for word in re.finditer(r"\w+", line) if word.start() <= column] or [""])[-1]


def _places(lines: list[str]) -> dict[tuple[str, int], int]:
    """Returns the index of each line by the file and the number that directives give the line."""
    found: dict[tuple[str, int], int] = {}
    file, number = "cupyops.cu", 1
    for at, line in enumerate(lines):
        if directive := _LINE.match(line):
            file, number = directive[2], int(directive[1])
        else:
            found.setdefault((file, number), at)
            number += 1
    return found
