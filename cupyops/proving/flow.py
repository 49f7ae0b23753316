"""The flow of control of a PTX function: edges, loops, and the registers that later blocks read."""

import re
from dataclasses import dataclass, field
from functools import cached_property

from .ptx import Function, Instruction
from .solver import NotJudged

__all__ = ["Flow"]


@dataclass
class Flow:
    """Attributes:
    order: the blocks in an order in which each block follows its predecessors, edges back to a loop's head left out.
    loops: the blocks of each loop, by the loop's head.
    """

    function: Function
    order: list[int] = field(default_factory=list)
    loops: dict[int, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[int] = set()
        order: list[int] = []
        stack = [(0, iter(self.successors[0]))]
        seen.add(0)
        while stack:
            block, rest = stack[-1]
            after = next((s for s in rest if s not in seen), None)
            if after is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(after)
                stack.append((after, iter(self.successors[after])))
        self.order = order[::-1]
        self._find_loops()

    @cached_property
    def successors(self) -> list[list[int]]:
        blocks, found = self.function.blocks, []
        for number, block in enumerate(blocks):
            last = block[-1] if block else None
            after = [number + 1] if number + 1 < len(blocks) else []
            if last is not None and last.opcode[0] == "bra":
                to = self.function.labels[last.operands[0]]
                after = [to, *after] if last.guard else [to]
            elif last is not None and last.opcode[0] == "brx":
                raise NotJudged("a branch by a table", last.line)
            elif last is not None and last.opcode[0] in ("ret", "exit", "trap") and not last.guard:
                after = []
            found.append(list(dict.fromkeys(after)))
        return found

    def _find_loops(self) -> None:
        place = {block: i for i, block in enumerate(self.order)}
        before: dict[int, list[int]] = {b: [] for b in self.order}
        for b in self.order:
            for s in self.successors[b]:
                before[s].append(b)
        dominators: dict[int, int] = {self.order[0]: self.order[0]}
        changed = True
        while changed:
            changed = False
            for b in self.order[1:]:
                known = [p for p in before[b] if p in dominators]
                new = known[0]
                for p in known[1:]:
                    while new != p:
                        while place[p] > place[new]:
                            p = dominators[p]
                        while place[new] > place[p]:
                            new = dominators[new]
                if dominators.get(b) != new:
                    dominators[b], changed = new, True
        for b in self.order:
            for head in self.successors[b]:
                if place[head] > place[b]:
                    continue
                above = b
                while above != head and above != self.order[0]:
                    above = dominators[above]
                if above != head:
                    last = self.function.blocks[b][-1] if self.function.blocks[b] else None
                    raise NotJudged("a jump into a loop", last.line if last else "")
                body, todo = {head}, [b]
                while todo:
                    one = todo.pop()
                    if one not in body:
                        body.add(one)
                        todo += before[one]
                self.loops[head] = self.loops.get(head, frozenset()) | body

    @cached_property
    def live(self) -> list[set[str]]:
        """The registers that a block or those after it read before they write them, and the values of calls."""
        blocks = self.function.blocks
        reads: list[set[str]] = []
        writes: list[set[str]] = []
        for block in blocks:
            read: set[str] = set()
            written: set[str] = set()
            for ins in block:
                read |= registers_read(ins) - written
                written |= set() if ins.guard else registers_named(ins.operands[:1]) - set(_addresses(ins))
            reads.append(read)
            writes.append(written)
        live = [set(r) for r in reads]
        changed = True
        while changed:
            changed = False
            for b in reversed(range(len(blocks))):
                after = set().union(*(live[s] for s in self.successors[b])) if self.successors[b] else set()
                new = reads[b] | (after - writes[b])
                if new != live[b]:
                    live[b], changed = new, True
        return live


def registers_named(operands: "tuple[str, ...] | list[str]") -> set[str]:
    return {name for o in operands for name in re.findall(r"%[\w$@]+|\b[A-Za-z_$][\w$@]*", o)}


def _addresses(ins: Instruction) -> list[str]:
    first = ins.operands[0] if ins.operands else ""
    return list(registers_named([first])) if first.startswith("[") or ins.opcode[0] in ("st", "red") else []


def registers_read(ins: Instruction) -> set[str]:
    """Returns the registers that an instruction may read. What it writes under a guard counts, since the old value may stay."""
    found = registers_named(ins.operands[1:])
    if ins.guard:
        found |= {ins.guard} | registers_named(ins.operands[:1])
    if ins.opcode[0] in ("st", "red", "cp", "bar", "bra") or (ins.operands and ins.operands[0].startswith("[")):
        found |= registers_named(ins.operands[:1])
    return found
