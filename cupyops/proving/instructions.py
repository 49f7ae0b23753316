"""What PTX instructions do to registers, and which memory they access.

An instruction that computes something else than an index gives a number of which nothing is known. An instruction that is not
in the tables may do anything: the kernel is not judged.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .ptx import Instruction, width_of
from .solver import NotJudged
from .terms import TRUE, Condition, Poly, all_of, any_of, at_most, constant, negated, symmetric
from .words import Words

__all__ = ["CLUSTER_BLOCKS", "Access", "Instructions", "Registers"]

Registers = dict[str, Any]  # a Poly for each register, a Condition for each predicate


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


# Families without a memory access, whose results are registers. Of other results than those below nothing is known.
_RESULTS = """
    abs activemask add addc and bfe bfi bfind bmsk brev clz cnot copysign cos cvt cvta
    div dp2a dp4a elect ex2 fma fns isspacep istypep lg2 lop3 mad mad24 madc mapa match max
    min mma mov mul mul24 neg not or popc prmt rcp redux rem rsqrt sad selp
    set setp shf shfl shl shr sin slct sqrt sub subc szext tanh testp vote xor
"""
_PURE = frozenset(_RESULTS.split())
# Instructions that access no memory of the kernel and have no result, or one that `_PURE` describes.
_ORDER = frozenset(["bar", "barrier", "membar", "fence", "nanosleep", "griddepcontrol", "setmaxnreg", "pmevent"])
_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"])
_BULK = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
    "cp.async.bulk.global.shared::cta.bulk_group",
)
CLUSTER_BLOCKS = "the blocks of the cluster"  # as if they were the bytes of an array
_INTEGER = re.compile(r"[usb](?:8|16|32|64)$")


class Instructions:
    """Runs instructions.

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

    def run(self, ins: Instruction, registers: Registers, path: Condition) -> None:
        """Runs one instruction that is no branch and no call, in place."""
        guard = self.guard(ins, registers)
        before = dict(registers) if guard is not TRUE else {}
        self._run(ins, registers, all_of(path, guard))
        for name in self.written(ins) if guard is not TRUE else ():
            new: Any = registers[name]
            old: Any = before.get(name)
            if old is None:  # not set before, or not on each path
                old = self.words.any_condition() if isinstance(new, Condition) else self.words.unknown(64, "unset")
            if isinstance(new, Condition):
                registers[name] = any_of(all_of(guard, new), all_of(negated(guard), old))
            else:
                registers[name] = self.words.choice(guard, new, old)

    def guard(self, ins: Instruction, registers: Registers) -> Condition:
        if not ins.guard:
            return TRUE
        found: Condition = self._predicate(ins.guard, registers)
        return negated(found) if ins.inverse else found

    def written(self, ins: Instruction) -> list[str]:
        """Returns the registers that an instruction writes."""
        family = ins.opcode[0]
        if (family in ("st", "red", *_ORDER) and "red" not in ins.opcode[1:]) or not ins.operands:
            return []
        first = ins.operands[0]
        return (
            [one for one in re.findall(r"[%$\w.@]+", first) if one in self.types] if not first.startswith("[") else []
        )

    def _run(self, ins: Instruction, registers: Registers, path: Condition) -> None:
        family, kind = ins.opcode[0], ins.opcode[-1]
        if family in ("ld", "st", "atom", "red", "cp", "ldmatrix", "mbarrier"):
            self._memory(ins, registers, path)
        elif family in _ORDER or family in _PURE:
            exact = getattr(self, f"_{family}", None) if family in _PURE else None
            found = None
            if exact is not None and (_INTEGER.match(kind) or kind == "pred" or family == "setp"):
                found = exact(ins, registers, path)
            if found is None:
                self._anything(ins, registers)
            elif len(self.written(ins)) == 1:
                registers[self.written(ins)[0]] = found
        else:
            raise NotJudged(f"the instruction {'.'.join(ins.opcode)}", ins.line)

    def _anything(self, ins: Instruction, registers: Registers) -> None:
        for name in self.written(ins):
            kind = self.types[name]
            registers[name] = self.words.any_condition() if kind == "pred" else self.words.unknown(width_of(kind))

    # Operands

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

    # Arithmetic; each method returns None for a form of which nothing is said

    def _mov(self, ins: Instruction, registers: Registers, path: Condition) -> Any:
        to, value = ins.operands
        if ins.opcode[-1] == "pred":
            return self._predicate(value, registers)
        bits = width_of(ins.opcode[-1])
        if to.startswith("{"):
            parts = to[1:-1].split(",")
            word, each = self._word(value, registers), bits // len(parts)
            for i, part in enumerate(parts):
                if part in self.types:
                    if i == 0:
                        registers[part] = self.words.low_bits(word, each) if bits > each else word
                    else:
                        whole = self.words.number(word, bits, False, path)
                        registers[part] = self.words.low_bits(self.words.floor(whole, 1 << (each * i)), each)
            return TRUE
        if value.startswith("{"):
            parts = value[1:-1].split(",")
            each, total = bits // len(parts), constant(0)
            for i, part in enumerate(parts):
                total += self.words.number(self._word(part, registers), each, False, path) * (1 << (each * i))
            return total
        return self._word(value, registers)

    def _cvta(self, ins: Instruction, registers: Registers, path: Condition) -> Poly:
        return self._word(ins.operands[1], registers)  # an address is its variable's, in every space

    def _plain(self, ins: Instruction) -> bool:
        return (
            not {"cc", "sat", "ftz", "f16", "f16x2", "bf16", "bf16x2"} & set(ins.opcode) and "x" not in ins.opcode[-1]
        )

    def _two(self, ins: Instruction, registers: Registers) -> tuple[Poly, Poly]:
        return self._word(ins.operands[1], registers), self._word(ins.operands[2], registers)

    def _add(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        a, b = self._two(ins, registers)
        return symmetric(a + b, width_of(ins.opcode[-1])) if self._plain(ins) else None

    def _sub(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        a, b = self._two(ins, registers)
        return symmetric(a - b, width_of(ins.opcode[-1])) if self._plain(ins) else None

    def _mul(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        return self._product(ins, registers, path) if self._plain(ins) else None

    def _mad(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        product = self._product(ins, registers, path) if self._plain(ins) else None
        bits = width_of(ins.opcode[-1]) * (2 if "wide" in ins.opcode else 1)
        return None if product is None else symmetric(product + self._word(ins.operands[3], registers), bits)

    def _product(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        bits = width_of(ins.opcode[-1])
        if "lo" in ins.opcode:
            a, b = self._two(ins, registers)
            return self._small(symmetric(a, bits), symmetric(b, bits), bits)
        a, b = self._numbers(ins, ins.operands[1:3], registers, path)
        if "wide" in ins.opcode:
            return self._small(a, b, 2 * bits)
        if "hi" in ins.opcode:
            return self.words.floor(a * b, 1 << bits)
        return None

    def _small(self, a: Poly, b: Poly, bits: int) -> Poly | None:
        if len(a.terms) * len(b.terms) > 64 or max(len(m) for p in (a, b) for m in (*p.terms, ())) > 6:
            return None
        return symmetric(a * b, bits)

    def _neg(self, ins: Instruction, registers: Registers, path: Condition) -> Poly:
        return -self._word(ins.operands[1], registers)

    def _not(self, ins: Instruction, registers: Registers, path: Condition) -> Any:
        if ins.opcode[-1] == "pred":
            return negated(self._predicate(ins.operands[1], registers))
        return -self._word(ins.operands[1], registers) - 1

    def _abs(self, ins: Instruction, registers: Registers, path: Condition) -> Poly:
        (a,) = self._numbers(ins, ins.operands[1:2], registers, path)
        return self.words.choice(self.words.compared("ge", a, constant(0)), a, -a)

    def _min(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        if "relu" in ins.opcode:
            return None
        a, b = self._numbers(ins, ins.operands[1:3], registers, path)
        return self.words.choice(self.words.compared("le", a, b), a, b)

    def _max(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        if "relu" in ins.opcode:
            return None
        a, b = self._numbers(ins, ins.operands[1:3], registers, path)
        return self.words.choice(self.words.compared("ge", a, b), a, b)

    def _div(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        a, b = self._numbers(ins, ins.operands[1:3], registers, path)
        found = self.words.divided(a, b, path, ins.opcode[-1].startswith("s"))
        return None if found is None else found[0]

    def _rem(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        a, b = self._numbers(ins, ins.operands[1:3], registers, path)
        found = self.words.divided(a, b, path, ins.opcode[-1].startswith("s"))
        return None if found is None else found[1]

    def _shl(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        a, bits = self._word(ins.operands[1], registers), width_of(ins.opcode[-1])
        by = self._word(ins.operands[2], registers).number
        return None if by is None else constant(0) if by >= bits else symmetric(a * (1 << by), bits)

    def _shr(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        (a,), bits = self._numbers(ins, ins.operands[1:2], registers, path), width_of(ins.opcode[-1])
        by = self._word(ins.operands[2], registers).number
        if (
            by == bits - 1
            and ins.opcode[-1].startswith("s")
            and self.words.asks
            and self.words.solver.implies(path, at_most(-a))
        ):
            return constant(0)  # the sign, in a signed division
        return None if by is None else self.words.floor(a, 1 << min(by, bits))

    def _bfe(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        (a,) = self._numbers(ins, ins.operands[1:2], registers, path, False)
        first, count = (self._word(o, registers).number for o in ins.operands[2:4])
        if first is None or count is None or not ins.opcode[-1].startswith("u"):
            return None
        return self.words.low_bits(self.words.floor(a, 1 << first), count)

    def _logic(self, ins: Instruction, registers: Registers, path: Condition) -> Any:
        how, kind = ins.opcode[0], ins.opcode[-1]
        if kind == "pred":
            return _combined(how, *(self._predicate(o, registers) for o in ins.operands[1:3]))
        a, b = self._two(ins, registers)
        if a.number is None and b.number is None:
            a, b = self._numbers(ins, ins.operands[1:3], registers, path, False)
        elif how != "and":
            a, b = (self.words.number(p, width_of(kind), False, path) for p in (a, b))
        return self.words.combined(how, a, b, width_of(kind))

    _and = _or = _xor = _logic

    def _popc(self, ins: Instruction, registers: Registers, path: Condition) -> Poly:
        return self.words.space.fresh("count", 0, width_of(ins.opcode[-1]))

    _clz = _popc

    def _selp(self, ins: Instruction, registers: Registers, path: Condition) -> Poly:
        return self.words.choice(self._predicate(ins.operands[3], registers), *self._two(ins, registers))

    def _setp(self, ins: Instruction, registers: Registers, path: Condition) -> Condition:
        kind, how = ins.opcode[-1], ins.opcode[1]
        if _INTEGER.match(kind) and how in _COMPARISONS:
            raw = self._two_at(ins, registers, 1)
            if self.compared is not None:
                self.compared.append(raw)
            unsigned = kind.startswith("u") or how in ("lo", "ls", "hi", "hs")
            a, b = self._numbers(ins, ins.operands[1:3], registers, path, not unsigned)
            found = self.words.compared(how, a, b)
        else:
            found = self.words.any_condition()
        both = next((o for o in ins.opcode[2:-1] if o in ("and", "or", "xor")), None)
        targets = ins.operands[0].split("|")
        other = self._predicate(ins.operands[3], registers) if both else None
        for i, name in enumerate(targets):
            value = negated(found) if i else found
            value = _combined(both, value, other) if both and other is not None else value
            if name in self.types:
                registers[name] = value
        return registers.get(targets[0], found)

    def _two_at(self, ins: Instruction, registers: Registers, first: int) -> tuple[Poly, Poly]:
        a, b = (self._word(o, registers) for o in ins.operands[first : first + 2])
        return a, b

    def _cvt(self, ins: Instruction, registers: Registers, path: Condition) -> Poly | None:
        to, of = ins.opcode[-2:]
        if not (_INTEGER.match(to) and _INTEGER.match(of)) or "sat" in ins.opcode:
            return None
        value = self._word(ins.operands[1], registers)
        if width_of(to) > width_of(of):
            value = self.words.number(value, width_of(of), of.startswith("s"), path)
        if width_of(to) < width_of(self.types.get(ins.operands[0], to)):
            return self.words.number(value, width_of(to), to.startswith("s"), path)
        return self.words.narrowed(value, width_of(to))

    # Memory

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
        if family == "ld" and _INTEGER.match(kind) and width_of(kind) < 32:
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


def _combined(how: str | None, a: Condition, b: Condition) -> Condition:
    if how == "and":
        return all_of(a, b)
    if how == "or":
        return any_of(a, b)
    return any_of(all_of(a, negated(b)), all_of(negated(a), b))
