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
_CONST = re.compile(r"(?<!constexpr )\bconst\b")
_DECLARATION = re.compile(rf"\b(?:static\s+)?{_MARKED}\b[^;]*;")


def folded(text: str, log: str) -> str:
    """Returns a text whose constants that a compiler names are ``constexpr``. A constant that still is none, since its value calls a
    function or reads such a constant, is left out: the host computes it, and no kernel may read it.

    Args:
        text: what was compiled.
        log: the messages of NVRTC, g++ or clang.
    """
    places, changes = _places(text), dict[int, tuple[int, str]]()

    def mark(file: str, number: str, name: str) -> bool:
        line = places.get((file, int(number)), (0, 0))
        for declared in re.compile(rf"\b{name}\b\s*(?:[=\[{{(,;]|$)", re.MULTILINE).finditer(text, *line):
            head = max(text.rfind(c, 0, declared.start()) for c in ";{}") + 1
            if found := [*_CONST.finditer(text, head, declared.start())]:
                changes[found[-1].start()] = found[-1].end(), _MARKED
                return True
        return False

    for file, number, column in _OF_HOST.findall(log):
        mark(file, number, _name_at(text[slice(*places.get((file, int(number)), (0, 0)))], int(column) - 1))
    for message in log.split("\n\n"):
        if found := _OF_NVRTC.match(message):
            mark(found[1], found[2], _name_at(found[3], len(found[4])))
        elif found := _NO_CONSTANT.match(message):
            marked = [mark(found[1], number, name) for name, number in _READS.findall(message)]
            start, end = places.get((found[1], int(found[2])), (0, 0))
            for declared in () if any(marked) else _DECLARATION.finditer(text):
                if declared.start() < end and start < declared.end():
                    changes[declared.start()] = declared.end(), ";" + "\n" * declared[0].count("\n")
    for start in sorted(changes, reverse=True):
        end, instead = changes[start]
        text = f"{text[:start]}{instead}{text[end:]}"
    return text


def _name_at(line: str, column: int) -> str:
    """Returns the word at a column, or the word before it."""
    return ([word[0] for word in re.finditer(r"\w+", line) if word.start() <= column] or ["const"])[-1]


def _places(text: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns the span of each line by the file and the number that directives give the line."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    file, number, at = "cupyops.cu", 1, 0
    for line in text.split("\n"):
        if directive := _LINE.match(line):
            file, number = directive[2], int(directive[1])
        else:
            found.setdefault((file, number), (at, at + len(line)))
            number += 1
        at += len(line) + 1
    return found
