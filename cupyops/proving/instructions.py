"""What PTX instructions do to registers, and which memory they access.

An instruction that computes something else than an index gives a number of which nothing is known. An instruction that is not
in the tables may do anything: the kernel is not judged.
"""

from typing import Any

from .arithmetic import Arithmetic
from .memory import Memory
from .operands import INTEGER, ORDER, Registers
from .ptx import Instruction
from .solver import NotJudged
from .terms import TRUE, Condition, all_of, any_of, negated

__all__ = ["Instructions"]

# Families without a memory access, whose results are registers. Of other results than those below nothing is known.
_RESULTS = """
    abs activemask add addc and bfe bfi bfind bmsk brev clz cnot copysign cos cvt cvta
    div dp2a dp4a elect ex2 fma fns isspacep istypep lg2 lop3 mad mad24 madc mapa match max
    min mma mov mul mul24 neg not or popc prmt rcp redux rem rsqrt sad selp
    set setp shf shfl shl shr sin slct sqrt sub subc szext tanh testp vote xor
"""
_PURE = frozenset(_RESULTS.split())


class Instructions(Arithmetic, Memory):
    """Runs instructions."""

    def run(self, ins: Instruction, registers: Registers, path: Condition) -> None:
        """Runs one instruction that is neither a branch nor a call, in place."""
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

    def _run(self, ins: Instruction, registers: Registers, path: Condition) -> None:
        family, kind = ins.opcode[0], ins.opcode[-1]
        if family in ("ld", "st", "atom", "red", "cp", "ldmatrix", "mbarrier"):
            self._memory(ins, registers, path)
        elif family in ORDER or family in _PURE:
            exact = getattr(self, f"_{family}", None) if family in _PURE else None
            found = None
            if exact is not None and (INTEGER.match(kind) or kind == "pred" or family == "setp"):
                found = exact(ins, registers, path)
            if found is None:
                self._anything(ins, registers)
            elif len(self.written(ins)) == 1:
                registers[self.written(ins)[0]] = found
        else:
            raise NotJudged(f"the instruction {'.'.join(ins.opcode)}", ins.line)
