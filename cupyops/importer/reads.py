"""Declares the parameters that a kernel only reads as ``const``, which makes them inputs of a launch.

Kernels of extensions often take their inputs without ``const``. A launch would take such a parameter for an output: it would
count a write to the array, and refuse an array that requires a gradient. If this module marks a parameter wrongly, the
text does not compile: the compiler rejects a write through a ``const`` pointer.
"""

import re

from cupyops.compile.cuda_text import Code, Function, scan
from cupyops.compile.definitions import split
from cupyops.launch.kernel_source import signature_of
from cupyops.launch.parameter import Parameter

__all__ = ["with_const"]

_REFERENCE = re.compile(r"[(,][^(),;{}]*[\w>]\s*&\s*\w*\s*(?=[,)=])")  # a parameter
_WRITES = re.compile(r"\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")


def with_const(text: str, functions: list[Function]) -> str:
    """Returns a text in which the kernels' parameters that are only read are ``const``."""
    code = scan(text)
    references = any("const" not in found[0] for found in _REFERENCE.finditer(code.bare))
    places = []
    for f in functions:
        if not f.defined:
            continue
        try:
            parameters = signature_of(text, f.path).parameters
        except ValueError:  # a template whose arguments no array decides
            continue
        pieces = [(at, p) for at, p in split(code.bare[f.parameters : f.end]) if p.strip() and p.strip() != "void"]
        body = (f.end, code.end_of_function(f.parameters))
        for parameter, (at, piece) in zip(parameters, pieces, strict=True):
            if parameter.pointer and not parameter.const and _only_read(code, body, parameter, references):
                places.append(f.parameters + at + len(piece) - len(piece.lstrip()))
    for place in sorted(places, reverse=True):
        text = f"{text[:place]}const {text[place:]}"
    return text


def _only_read(code: Code, body: tuple[int, int], parameter: Parameter, references: bool) -> bool:
    """Returns whether every use of a parameter certainly reads an element or a size."""
    bare = code.bare
    rank = 1 if parameter.accessor is None else int(parameter.accessor.rank) if parameter.accessor.rank.isdigit() else 0
    uses = 0
    for match in re.compile(rf"(?<![\w.])(?<!->){parameter.name}\b").finditer(bare, *body):
        at = match.end()
        if parameter.accessor is not None and re.compile(r"\s*\.\s*(?:size|stride)\s*\(").match(bare, at):
            continue
        for _ in range(rank):
            opening = re.compile(r"\s*\[").match(bare, at)
            if opening is None:
                return False
            at = code.closing(opening.end() - 1) + 1 or len(bare)
        # A further bracket, a member, an address, or an argument for a reference may write the element.
        if re.compile(r"\s*(?:\[|\.|->)").match(bare, at) or _WRITES.match(bare, at):
            return False
        before = bare[max(match.start() - 80, 0) : match.start()].rstrip()
        taken = re.sub(r"[(\s]+\Z", "", before)
        if taken.endswith(("&", "++", "--")) and not taken.endswith("&&"):
            return False
        if references and before.endswith(("(", ",")) and re.compile(r"\s*[,)]").match(bare, at):
            return False
        uses += 1
    return uses > 0
