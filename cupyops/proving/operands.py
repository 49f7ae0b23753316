"""The operands of PTX instructions: registers, and what they hold."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .ptx import Instruction, width_of
from .solver import NotJudged
from .terms import TRUE, Condition, Poly, constant, negated
from .words import Words

__all__ = ["INTEGER", "ORDER", "Access", "Operands", "Registers"]

Registers = dict[str, Any]  # a Poly for each register, a Condition for each predicate
INTEGER = re.compile(r"[usb](?:8|16|32|64)$")
# Instructions that access no memory of the kernel and have no result, or one of which nothing is known.
ORDER = frozenset(["bar", "barrier", "membar", "fence", "nanosleep", "griddepcontrol", "setmaxnreg", "pmevent"])


@dataclass(frozen=True)
class Access:
    """An access to memory: `size` bytes at an address that is a multiple of `unit`, on a path, of a source line."""

    address: Poly
    size: Poly
    unit: int
    path: Condition
    line: str
    write: bool
    opcode: str


class Operands:
    """Reads and writes operands.

    Args:
        words: the arithmetic.
        special: the values of ``%tid.x`` and the like.
        symbols: the addresses of variables, by name.
        parameter: returns the value of a kernel's parameter from its number, an offset and the bits.
        accessed: is called with each access.
        types: the types of registers.
    """

    def __init__(
        self,
        words: Words,
        special: dict[str, Poly],
        symbols: dict[str, Poly],
        parameter: Callable[[str, int, int], Poly | None],
        accessed: Callable[[Access], None],
    ) -> None:
        self.words, self.special, self.symbols = words, special, symbols
        self.parameter, self.accessed = parameter, accessed
        self.compared: list[tuple[Poly, Poly]] | None = None
        self.types: dict[str, str] = {}

    def written(self, ins: Instruction) -> list[str]:
        """Returns the registers that an instruction writes."""
        family = ins.opcode[0]
        if (family in ("st", "red", *ORDER) and "red" not in ins.opcode[1:]) or not ins.operands:
            return []
        first = ins.operands[0]
        return (
            [one for one in re.findall(r"[%$\w.@]+", first) if one in self.types] if not first.startswith("[") else []
        )

    def _anything(self, ins: Instruction, registers: Registers) -> None:
        for name in self.written(ins):
            kind = self.types[name]
            registers[name] = self.words.any_condition() if kind == "pred" else self.words.unknown(width_of(kind))

    def _word(self, operand: str, registers: Registers) -> Poly:
        """Returns a word that may stand for the operand modulo its bits."""
        if operand in registers:
            found = registers[operand]
            assert isinstance(found, Poly)
            return found
        if operand in self.types:  # no path has written the register
            registers[operand] = self.words.unknown(width_of(self.types[operand]), "unset")
            return registers[operand]
        if operand in self.special:
            return self.special[operand]
        if operand.startswith("%"):
            return self.words.space.fresh(
                operand, 0, 31 if operand == "%laneid" else (1 << 64) - 1 if "64" in operand else (1 << 32) - 1
            )
        if operand in self.symbols:
            return self.symbols[operand]
        if re.match(r"0[fdFD][0-9a-fA-F]+$", operand):
            return constant(int(operand[2:], 16))
        if re.match(r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+)U?$", operand):
            return constant(int(operand.rstrip("U"), 0))
        symbol, _, offset = operand.partition("+")
        if symbol in self.symbols and offset.lstrip("-").isdigit():
            return self.symbols[symbol] + int(offset)
        raise NotJudged(f"the operand {operand}")

    def _predicate(self, operand: str, registers: Registers) -> Condition:
        if operand.startswith("!"):
            return negated(self._predicate(operand[1:], registers))
        found = registers.get(operand)
        if operand in ("0", "-1", "1"):
            return negated(TRUE) if operand == "0" else TRUE
        if not isinstance(found, Condition):
            found = registers[operand] = self.words.any_condition()
        return found

    def _numbers(
        self,
        ins: Instruction,
        operands: Sequence[str],
        registers: Registers,
        path: Condition,
        signed: bool | None = None,
    ) -> list[Poly]:
        """Returns operands as numbers of the instruction's type."""
        kind = ins.opcode[-1]
        sign = kind.startswith("s") if signed is None else signed
        return [self.words.number(self._word(o, registers), width_of(kind), sign, path) for o in operands]
