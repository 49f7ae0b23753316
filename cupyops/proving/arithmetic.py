"""Arithmetic instructions of PTX. Each method returns None for a form of which nothing is said."""

from typing import Any

from .operands import INTEGER, Operands, Registers
from .ptx import Instruction, width_of
from .terms import TRUE, Condition, Poly, all_of, any_of, at_most, constant, negated, symmetric

__all__ = ["Arithmetic"]

_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"])


class Arithmetic(Operands):
    """Instructions whose results are registers."""

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
        if INTEGER.match(kind) and how in _COMPARISONS:
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
        if not (INTEGER.match(to) and INTEGER.match(of)) or "sat" in ins.opcode:
            return None
        value = self._word(ins.operands[1], registers)
        if width_of(to) > width_of(of):
            value = self.words.number(value, width_of(of), of.startswith("s"), path)
        if width_of(to) < width_of(self.types.get(ins.operands[0], to)):
            return self.words.number(value, width_of(to), to.startswith("s"), path)
        return self.words.narrowed(value, width_of(to))


def _combined(how: str | None, a: Condition, b: Condition) -> Condition:
    if how == "and":
        return all_of(a, b)
    if how == "or":
        return any_of(a, b)
    return any_of(all_of(a, negated(b)), all_of(negated(a), b))
