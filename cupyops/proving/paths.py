"""Runs a PTX function for all executions at once: each block once, with the condition under which executions reach it.

Where paths meet, a register of different values becomes an unknown, which the condition of the block ties to the value of each path.
A loop runs in its k-th iteration, for any k. A register that each iteration raises by the same step is ``start + k * step``.
What else holds in each iteration is guessed from the loop's comparisons, and kept if it holds at the start and if an iteration
that begins with it ends with it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .flow import Flow
from .instructions import Instructions
from .operands import Registers
from .ptx import Instruction, Program, width_of
from .solver import NotJudged, Solver
from .terms import (
    FALSE,
    Condition,
    Poly,
    Space,
    all_of,
    any_of,
    at_most,
    constant,
    either,
    equal,
    negated,
    symmetric,
)
from .words import Words

__all__ = ["Paths"]

_MOST_ROUNDS = 12
_MOST_CALLS = 8  # deep


class Edge(NamedTuple):
    """A way out of a block: the next block, the condition, and the registers."""

    to: int
    path: Condition
    registers: Registers


class Guess(NamedTuple):
    """That ``sign * number <= bound`` for the number of a register at a loop's head."""

    name: str
    sign: int
    bound: Poly

    def says(self, number: Poly) -> Condition:
        return at_most(number * self.sign, self.bound)


class Paths:
    """Runs functions of a program.

    Attributes:
        quiet: above 0 while a loop is explored, whose accesses are not final.
    """

    def __init__(self, program: Program, instructions: Instructions, words: Words) -> None:
        self.program, self.instructions, self.words = program, instructions, words
        self.space: Space = words.space
        self.solver: Solver = words.solver
        self.quiet = 0
        self._flows: dict[str, Flow] = {}
        self._calls: list[str] = []
        self._of_loops: set[int] = set()  # iterations, and what registers have in them
        self._launch = len(self.space.names)  # the unknowns below are of the launch
        self._callers: frozenset[int] = frozenset()  # unknowns of the registers of the functions that call this one
        self._roots_of: dict[frozenset[int], frozenset[int]] = {}

    def run(self, name: str, path: Condition, registers: Registers) -> list[tuple[Condition, Registers]]:
        """Runs a function, and returns the paths on which it returns."""
        flow = self._flows.get(name) or self._flows.setdefault(name, Flow(self.program.functions[name]))
        if name in self._calls or len(self._calls) >= _MOST_CALLS:
            raise NotJudged(f"a function that calls itself: {name}")
        self._calls.append(name)
        types, self.instructions.types = self.instructions.types, flow.function.types
        returned: list[tuple[Condition, Registers]] = []
        try:
            left = self._region(flow, frozenset(flow.order), flow.order[0], path, registers, returned, whole=True)
            assert not left
        finally:
            self._calls.pop()
            self.instructions.types = types
        return returned

    def _region(
        self,
        flow: Flow,
        body: frozenset[int],
        head: int,
        path: Condition,
        registers: Registers,
        returned: list[tuple[Condition, Registers]],
        *,
        whole: bool = False,
    ) -> list[Edge]:
        """Runs the blocks of a whole function or of a loop's iteration, and returns the edges out of it and back to its head."""
        arriving: dict[int, list[Edge]] = {head: [Edge(head, path, registers)]}
        leaving: list[Edge] = []
        inner: set[int] = set()
        for block in flow.order:
            if block not in body or block in inner or block not in arriving:
                continue
            reached, own = self._joined(arriving.pop(block), flow.live[block])
            if reached is FALSE:
                continue
            reached = self._relevant(reached, [own[n] for n in own if "+" in n or n in flow.live[block]])
            if block in flow.loops and (whole or block != head):
                inner |= flow.loops[block]
                edges = self._loop(flow, block, reached, own, returned)
            else:
                edges = self._block(flow, block, reached, own, returned)
            for edge in edges:
                if edge.path is FALSE:
                    continue
                if edge.to in body and edge.to != head:
                    arriving.setdefault(edge.to, []).append(edge)
                else:
                    leaving.append(edge)
        return leaving

    def _relevant(self, path: Condition, values: Iterable[Any]) -> Condition:
        """Returns a condition without what it says of loops that have ended, if no value is of these loops."""
        parts = path.parts if path.kind == "and" else (path,)
        if not any(self._roots(c.unknowns) & self._of_loops for c in parts):
            return path
        used = self._callers.union(*(self._roots(frozenset(v.unknowns)) for v in values))
        # A branch is taken by a condition that several paths decide: how they do stays.
        used |= {a for c in parts if c.poly is not None for a in c.unknowns & self.words.decisions}

        def ended(c: Condition) -> bool:
            roots = self._roots(c.unknowns)
            return bool(roots & self._of_loops) and not roots & used

        return all_of(*(c for c in parts if not ended(c)))

    def _roots(self, unknowns: frozenset[int]) -> frozenset[int]:
        """Returns the unknowns of which some unknowns are made, without those of the launch."""
        found = self._roots_of.get(unknowns)
        if found is None:
            todo, seen, roots = set(unknowns), set(), set()
            while todo:
                atom = todo.pop()
                if atom in seen or atom < self._launch:
                    continue
                seen.add(atom)
                facts = self.space.facts[atom]
                todo.update(*(f.unknowns for f in facts))
                if not facts:
                    roots.add(atom)
            found = self._roots_of[unknowns] = frozenset(roots)
        return found

    def _joined(self, edges: Sequence[Edge], live: Iterable[str]) -> tuple[Condition, Registers]:
        """Returns the condition of a block and its registers, of those of the edges to it."""
        if len(edges) == 1:
            return edges[0].path, dict(edges[0].registers)
        ties: list[list[Condition]] = [[] for _ in edges]
        found: Registers = {}
        known: dict[tuple[Poly, ...], Poly] = {}  # registers of the same values have one unknown
        # Values of calls have a "+" in their names, and live as long as the registers.
        names = {n for e in edges for n in e.registers if "+" in n or n in live}
        for name in sorted(names):
            values: list[Any] = [e.registers.get(name) for e in edges]
            if any(v is None for v in values):
                continue  # on some path the register is not set, so no right program reads it
            if all(v == values[0] for v in values[1:]):
                found[name] = values[0]
            elif isinstance(values[0], Condition):
                decided = found[name] = self.words.any_condition()
                for tie, value in zip(ties, values, strict=True):
                    tie.append(any_of(all_of(decided, value), all_of(negated(decided), negated(value))))
            else:
                if all(v.unknowns for v in values) and self.space.is_opaque(*values):
                    found[name] = self.words.unknown(64)  # nothing is known of it on any path
                    continue
                if tuple(values) not in known:
                    one, own, known[tuple(values)] = self.words.joined(values)
                    for tie, value in zip(ties, own, strict=True):
                        tie.append(equal(one, value))
                found[name] = known[tuple(values)]
        return either(*(all_of(e.path, *tie) for e, tie in zip(edges, ties, strict=True))), found

    def _block(
        self, flow: Flow, block: int, path: Condition, registers: Registers, returned: list[tuple[Condition, Registers]]
    ) -> list[Edge]:
        function = flow.function
        for ins in function.blocks[block]:
            family = ins.opcode[0]
            if family in ("ret", "exit", "trap", "bra"):
                guard = self.instructions.guard(ins, registers)
                if family == "bra":
                    target = function.labels[ins.operands[0]]
                    edges = [Edge(target, all_of(path, guard), registers)]
                    if ins.guard:
                        edges.append(Edge(block + 1, all_of(path, negated(guard)), dict(registers)))
                    return edges
                if family == "ret":
                    returned.append((all_of(path, guard), dict(registers)))
                if not ins.guard:
                    return []
                path = all_of(path, negated(guard))
            elif family == "call":
                path, registers = self._call(ins, path, registers)
            else:
                try:
                    self.instructions.run(ins, registers, path)
                except NotJudged as why:
                    why.line = why.line or ins.line
                    raise
                except (KeyError, ValueError, IndexError, AssertionError) as error:
                    words = f"{'.'.join(ins.opcode)} {', '.join(ins.operands)}"
                    raise NotJudged(f"the instruction {words}: {error!r}", ins.line) from error
        if block + 1 < len(function.blocks):
            return [Edge(block + 1, path, registers)]
        returned.append((path, registers))
        return []

    def _call(self, ins: Instruction, path: Condition, registers: Registers) -> tuple[Condition, Registers]:
        operands = [o for o in ins.operands if o]
        results = operands.pop(0)[1:-1].split(",") if operands[0].startswith("(") else []
        name, given = operands[0], operands[1][1:-1].split(",") if len(operands) > 1 else []
        if ins.guard or name not in self.program.functions:
            raise NotJudged(f"a call of {name}", ins.line)
        called = self.program.functions[name]
        own: Registers = {}
        for formal, actual in zip(called.parameters, filter(None, given), strict=True):
            own |= {f"{formal}{n[len(actual) :]}": v for n, v in registers.items() if n.startswith(f"{actual}+")}
        callers = self._callers
        self._callers = callers.union(*(self._roots(frozenset(v.unknowns)) for v in registers.values()))
        returned = self.run(name, path, own)
        self._callers = callers
        outer = {n: v for n, v in registers.items() if not any(n.startswith(f"{r}+") for r in results)}
        edges = []
        for reached, values in returned:
            new = {
                f"{actual}{n[len(formal) :]}": v
                for formal, actual in zip(called.results, results, strict=True)
                for n, v in values.items()
                if n.startswith(f"{formal}+")
            }
            edges.append(Edge(0, reached, {**outer, **new}))
        if not edges:
            return FALSE, registers
        return self._joined(edges, {*outer})

    # Loops

    def _loop(
        self, flow: Flow, head: int, path: Condition, start: Registers, returned: list[tuple[Condition, Registers]]
    ) -> list[Edge]:
        """Runs a loop, and returns the edges out of it."""
        body = flow.loops[head]
        types = flow.function.types
        changed = sorted(
            {n for b in body for ins in flow.function.blocks[b] for n in self.instructions.written(ins)}
            & flow.live[head]
        )
        marked = len(self.space.names)
        first: Registers = {**start}
        for name in changed:
            kind = types[name]
            first[name] = (
                self.words.any_condition() if kind == "pred" else self.words.unknown(width_of(kind), f"in{name}")
            )
        # Which registers an iteration raises by a step, and what the loop compares.
        with_questions, self.words.asks = self.words.asks, False
        compared, self.instructions.compared = self.instructions.compared, []
        self.quiet += 1
        try:
            back = [e for e in self._region(flow, body, head, path, dict(first), []) if e.to == head]
            pairs = self.instructions.compared
        finally:
            self.words.asks, self.instructions.compared = with_questions, compared
            self.quiet -= 1
        if compared is not None:
            compared += pairs
        steps: dict[str, Poly] = {}
        for name in changed:
            if types[name] == "pred" or not isinstance(start.get(name), Poly):
                continue
            found = {
                symmetric(e.registers[name] - first[name], width_of(types[name])) for e in back if name in e.registers
            }
            if len(found) == 1 and all(a < marked for a in next(iter(found)).unknowns):
                steps[name] = found.pop()
        follows = self._follows(changed, types, first, steps, back, start, marked)
        again = self.space.fresh("iteration", 0)
        at_head: Registers = dict(start)
        self._of_loops |= again.unknowns
        begins: dict[str, Poly] = {}
        for name in changed:
            kind = types[name]
            if kind == "pred":
                at_head[name] = self.words.any_condition()
                continue
            if name in start:
                begins[name] = (
                    start[name]  # of an address, that it does not wrap around is not asked
                    if name in steps and start[name].unknowns & self.space.bases
                    else self.words.number(start[name], width_of(kind), name in steps, path)
                )
            if name in steps:
                at_head[name] = begins[name] + again * steps[name]
            elif name not in follows:
                at_head[name] = self.words.unknown(width_of(kind), f"in{name}")
                self._of_loops |= at_head[name].unknowns
        for name, (other, distance) in follows.items():
            self._of_loops |= again.unknowns
            later = at_head[other] + distance
            before = symmetric(begins[name] - begins[other] - distance, width_of(types[name]))
            if before.number == 0 or (self.words.asks and self.solver.implies(path, equal(before, 0))):
                at_head[name] = later
            else:
                at_head[name] = self.words.choice(equal(again, 0), begins[name], later)
        guesses = self._guesses(types, begins, first, steps, pairs, marked) if self.words.asks else {}
        wrong = {*self.solver.refuted(path, {g: g.says(begins[g.name]) for g in guesses})}
        guesses = {g: None for g in guesses if g not in wrong}
        kept = self._kept(flow, head, path, at_head, steps, guesses)
        edges = self._region(flow, body, head, all_of(path, *kept), dict(at_head), returned)
        return [e for e in edges if e.to != head]

    def _follows(
        self,
        changed: Sequence[str],
        types: dict[str, str],
        first: Registers,
        steps: dict[str, Poly],
        back: Sequence[Edge],
        start: Registers,
        marked: int,
    ) -> dict[str, tuple[str, Poly]]:
        """Returns the registers that each iteration sets to another register, which advances by a step, plus a constant distance.
        Compilers keep several pointers in this way."""
        found: dict[str, tuple[str, Poly]] = {}
        for name in changed:
            if name in steps or types[name] == "pred" or not isinstance(start.get(name), Poly):
                continue
            ends = {e.registers.get(name) for e in back}
            if len(ends) != 1 or not isinstance(end := ends.pop(), Poly):
                continue
            for other in steps:
                if types[other] == types[name] and first[other].unknowns <= end.unknowns:
                    distance = symmetric(end - first[other] - steps[other], width_of(types[name]))
                    if all(a < marked for a in distance.unknowns):
                        found[name] = other, distance
                        break
        return found

    def _guesses(
        self,
        types: dict[str, str],
        begins: dict[str, Poly],
        first: Registers,
        steps: dict[str, Poly],
        pairs: Sequence[tuple[Poly, Poly]],
        marked: int,
    ) -> dict[Guess, None]:
        """Returns what may hold in each iteration: bounds by the values before the loop, and by what the loop compares with."""
        found: dict[Guess, None] = {}
        for name, begin in begins.items():
            if types[name].startswith("f"):
                continue
            bits = width_of(types[name])
            bounds = (
                [(0, 1 << bits), (-(1 << (bits - 1)), 1 << (bits - 1))] if name in steps else [(0, 1 << (bits - 1))]
            )
            compared = any(first[name].unknowns & p.unknowns for two in pairs for p in two)
            if name in steps and not compared and len(begin.unknowns & self.space.bases):
                continue  # a pointer beside a counter
            for low, high in bounds:
                found[Guess(name, 1, constant(high - 1))] = None
                found[Guess(name, -1, constant(-low))] = None
            found[Guess(name, 1, begin)] = found[Guess(name, -1, -begin)] = None
            (own,) = first[name].unknowns
            for mine, other in (two for a, b in pairs for two in ((a, b), (b, a))):
                shift = mine - first[name]
                if own in mine.unknowns and all(a < marked for a in shift.unknowns | other.unknowns):
                    for offset in dict.fromkeys((shift, shift - steps.get(name, constant(0)))):
                        for beyond in (0, -1):
                            found[Guess(name, 1, other - offset + beyond)] = None
                            found[Guess(name, -1, offset - other + beyond)] = None
        return found

    def _kept(
        self,
        flow: Flow,
        head: int,
        path: Condition,
        at_head: Registers,
        steps: dict[str, Poly],
        guesses: dict[Guess, None],
    ) -> list[Condition]:
        """Returns those of the guesses that each iteration keeps."""
        self.quiet += 1
        compared, self.instructions.compared = self.instructions.compared, None
        try:
            for _ in range(_MOST_ROUNDS):
                kept = [g.says(at_head[g.name]) for g in guesses]
                if not guesses:
                    return []
                edges = self._region(flow, flow.loops[head], head, all_of(path, *kept), dict(at_head), [])
                failed = {g for e in edges if e.to == head for g in self._failed(guesses, e, at_head, steps)}
                if not failed:
                    return kept
                guesses = {g: None for g in guesses if g not in failed}
            return []
        finally:
            self.quiet -= 1
            self.instructions.compared = compared

    def _failed(self, guesses: Iterable[Guess], edge: Edge, at_head: Registers, steps: dict[str, Poly]) -> list[Guess]:
        """Returns the guesses that may not hold after an iteration in which all of them hold."""
        left: dict[Guess, Condition] = {}
        failed: list[Guess] = []
        types = self.instructions.types
        for guess in guesses:
            name = guess.name
            if name in steps:
                left[guess] = guess.says(at_head[name] + steps[name])
            elif name in edge.registers:
                left[guess] = guess.says(
                    self.words.number(edge.registers[name], width_of(types[name]), False, edge.path)
                )
            else:
                failed.append(guess)
        return failed + self.solver.refuted(edge.path, left)
