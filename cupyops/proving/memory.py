"""Instructions of PTX that access memory, and those of clusters and bulk copies."""

import re

from .operands import INTEGER, Access, Operands, Registers
from .ptx import Instruction, width_of
from .solver import NotJudged
from .terms import TRUE, Condition, Poly, constant

__all__ = ["CLUSTER_BLOCKS", "Memory"]

_BULK = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
    "cp.async.bulk.global.shared::cta.bulk_group",
)
CLUSTER_BLOCKS = "the blocks of the cluster"  # as if they were the bytes of an array


class Memory(Operands):
    """Instructions that access memory."""

    def _memory(self, ins: Instruction, registers: Registers, path: Condition) -> None:
        family, kind, parts = ins.opcode[0], ins.opcode[-1], ins.opcode
        if "bulk" in parts:
            self._bulk(ins, registers, path)
            return
        if family == "mbarrier" or parts[:2] == ("st", "async"):
            self._barrier(ins, registers, path)
            return
        if {"mbarrier", "tensor", "reduce", "multimem", "cluster"} & {p.partition("::")[0] for p in parts} or any(
            "shared::cluster" in p for p in ins.operands
        ):
            raise NotJudged(f"the instruction {'.'.join(parts)}", ins.line)
        if family == "cp":
            if parts[1] != "async":
                raise NotJudged(f"the instruction {'.'.join(parts)}", ins.line)
            if "commit_group" in parts or "wait_group" in parts or "wait_all" in parts:
                return
            size = self._word(ins.operands[2], registers).number
            if size is None or len(ins.operands) > 3:
                raise NotJudged(f"the size of {'.'.join(parts)}", ins.line)
            for operand, write in ((ins.operands[0], True), (ins.operands[1], False)):
                self._access(operand, size, write, ins, registers, path)
            return
        if family == "ldmatrix":
            size = 16
        else:
            vector = next((int(p[1]) for p in parts if re.fullmatch(r"v[248]", p)), 1)
            size = max(width_of(kind) // 8, 1) * vector
        if "param" in parts:
            self._parameter(ins, registers)
            return
        place = next(i for i, o in enumerate(ins.operands) if o.startswith("["))
        self._access(ins.operands[place], size, family in ("st", "atom", "red"), ins, registers, path)
        self._anything(ins, registers)
        if family == "ld" and INTEGER.match(kind) and width_of(kind) < 32:
            low = -(1 << (width_of(kind) - 1)) if kind.startswith("s") else 0
            for name in self.written(ins):
                registers[name] = self.words.space.hide(
                    self.words.space.fresh("loaded", low, low + (1 << width_of(kind)) - 1)
                )

    def _access(
        self, operand: str, size: int, write: bool, ins: Instruction, registers: Registers, path: Condition
    ) -> None:
        address = self._address(operand, registers)
        opcode = ".".join(ins.opcode)
        self.accessed(Access(address, constant(size), size & -size, path, ins.line, write, opcode))

    def _bulk(self, ins: Instruction, registers: Registers, path: Condition) -> None:
        """Runs a bulk copy between global memory and shared memory."""
        opcode = ".".join(ins.opcode)
        if {"commit_group", "wait_group"} & {*ins.opcode}:
            return
        if not opcode.startswith(_BULK) or len(ins.operands) != 3 + ("mbarrier" in opcode):
            raise NotJudged(f"the instruction {opcode}", ins.line)
        size = self.words.number(self._word(ins.operands[2], registers), 32, False, path)
        for operand, write in ((ins.operands[0], True), (ins.operands[1], False)):
            self.accessed(Access(self._address(operand, registers), size, 16, path, ins.line, write, opcode))
        for operand in ins.operands[3:]:
            self._access(operand, 8, True, ins, registers, path)

    def _barrier(self, ins: Instruction, registers: Registers, path: Condition) -> None:
        """Runs an instruction with an mbarrier, or a store to another block that arrives at one."""
        if ins.opcode[1] not in ("init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "async"):
            raise NotJudged(f"the instruction {'.'.join(ins.opcode)}", ins.line)
        places = [o for o in ins.operands if o.startswith("[")]
        vector = next((int(p[1]) for p in ins.opcode if re.fullmatch(r"v[24]", p)), 1)
        sizes = (8,) if ins.opcode[0] == "mbarrier" else (width_of(ins.opcode[-1]) // 8 * vector, 8)
        for place, size in zip(places, sizes, strict=True):
            self._access(place, size, True, ins, registers, path)
        self._anything(ins, registers)

    def _mapa(self, ins: Instruction, registers: Registers, path: Condition) -> Poly:
        """Returns the address of another block's variable, which is that of the own variable: all blocks have the same ones."""
        block = self.words.number(self._word(ins.operands[2], registers), 32, False, path)
        where = self.symbols[CLUSTER_BLOCKS] + block
        self.accessed(Access(where, constant(1), 1, path, ins.line, False, ".".join(ins.opcode)))
        return self._word(ins.operands[1], registers)

    def _address(self, operand: str, registers: Registers) -> Poly:
        name, _, offset = operand[1:-1].partition("+")
        return self._word(name, registers) + (int(offset, 0) if offset else 0)

    def _parameter(self, ins: Instruction, registers: Registers) -> None:
        """Reads or writes a parameter of the kernel, or of a call."""
        place = next(o for o in ins.operands if o.startswith("["))
        name, _, shift = place[1:-1].partition("+")
        if (shift and not shift.lstrip("-").isdigit()) or name in self.types:
            self._anything(ins, registers)  # a part of a struct, by an index
            return
        kind, offset = ins.opcode[-1], int(shift or 0)
        bits = width_of(kind)
        values = re.findall(r"[^{},]+", next(o for o in ins.operands if not o.startswith("[")))
        for i, one in enumerate(values):
            key = f"{name}+{offset + i * bits // 8}"
            if ins.opcode[0] == "st":
                registers[key] = self._word(one, registers)
                continue
            found = registers.get(key)
            if found is None:
                found = self.parameter(name, offset + i * bits // 8, bits)
            if found is None:
                found = self.words.unknown(bits)
            if bits < width_of(self.types[one]):
                found = self.words.number(found, bits, kind.startswith("s"), TRUE)
            registers[one] = found
