"""Questions to z3 about conditions on polynomials.

Products of unknowns are unknowns of their own to z3, so that each question is one of linear integer arithmetic. What the
product of two conditions says of them is added as lemmas, which always hold: a proof stays a proof. A model may be wrong
about products; the simulator decides about it.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import gcd
from typing import Any, TypeVar

from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install

from .terms import FALSE, Bounds, Condition, Monomial, Poly, Space, all_of, negated

__all__ = ["Model", "NotJudged", "Solver"]


class NotJudged(Exception):
    """The kernel does something that is not judged; the message says what, and `line` where."""

    def __init__(self, why: str, line: str = "") -> None:
        super().__init__(why)
        self.line = line


_STEPS = 3_000_000  # of z3 for a question: a limit that is the same on every machine
_LEMMAS = 600
Key = TypeVar("Key")


def z3() -> Any:
    try:
        import z3 as found
    except ImportError:
        raise MissingDependencyError(f"prove_bounds needs z3: {pip_install('prove')}") from None
    return found


class Solver:
    """Asks whether conditions imply others.

    Attributes:
        space: the unknowns.
        always: conditions that hold for every execution: the rule of the launch and the user's assumptions.
    """

    def __init__(self, space: Space, seconds: float = 60) -> None:
        self.z3 = z3()
        self.space = space
        self._seconds, self._ends = seconds, time.process_time() + seconds
        self.always: list[Condition] = []
        self._enough: dict[Condition, list[frozenset[Condition]]] = {}  # conditions that imply a goal
        self._open: dict[tuple[frozenset[Condition], Condition], Model | None] = {}  # of what is not proved
        # What questions have in common is written for z3 once: z3 decides most of them faster than Python writes them.
        self._z3: dict[Condition, Any] = {}
        self._compared: dict[tuple[str, Poly], Any] = {}
        self._names: dict[Monomial, Any] = {}
        self._bounds: dict[tuple[Monomial, Bounds], list[Any]] = {}
        self._of_product: dict[tuple[str, Poly, Monomial], tuple[Condition, ...]] = {}
        self._of_part: dict[tuple[Monomial, Monomial], tuple[Condition, ...]] = {}
        self._of_step: dict[tuple[Poly, int], tuple[Condition, ...]] = {}

    def implies(self, given: Condition, goal: Condition) -> bool:
        """Returns whether z3 proves that a condition implies another."""
        return self._decided(given, goal)[0]

    def refuted(self, given: Condition, goals: Mapping[Key, Condition]) -> list[Key]:
        """Returns the keys of those goals that z3 does not prove from a condition. Each model refutes all goals that it does not meet."""
        proved, model = self._decided(given, all_of(*goals.values()))
        if proved:
            return []
        failed = [k for k, c in goals.items() if model is not None and not model.meets(c)]
        left = {k: c for k, c in goals.items() if k not in failed}
        if left and model is not None:
            failed += self._refuted(given, left)
        elif left:
            failed += [k for k, c in left.items() if not self.implies(given, c)]
        return failed

    def _refuted(self, given: Condition, left: dict[Key, Condition]) -> list[Key]:
        """Returns the goals that are not proved, by one z3 solver that keeps what it learns."""
        failed: list[Key] = []
        solver = self._solver(self.z3.SimpleSolver(), self._asked([given, *self.always], [*left.values()]))
        while left:
            self._in_time()
            solver.push()
            solver.add(self.z3.Not(self.z3.And([self._translated(c) for c in left.values()])))
            found = solver.check()
            if found == self.z3.unsat:
                break
            model = Model(self, solver.model()) if found == self.z3.sat else None
            wrong = [k for k, c in left.items() if model is not None and not model.meets(c)]
            wrong = wrong or [k for k, c in left.items() if not self.implies(given, c)]
            if not wrong:  # each goal is proved alone
                break
            failed += wrong
            left = {k: c for k, c in left.items() if k not in wrong}
            solver.pop()
        return failed

    def _decided(self, given: Condition, goal: Condition) -> tuple[bool, "Model | None"]:
        """Returns whether z3 proves that a condition implies another, and a model of the opposite if z3 finds one."""
        opposite = negated(goal)
        if opposite is FALSE or given is FALSE:
            return True, None
        parts = frozenset(given.parts if given.kind == "and" else (given,))
        key = (parts, goal)
        if key in self._open:
            return False, self._open[key]
        enough = self._enough.setdefault(goal, [])
        if any(e <= parts for e in enough):
            return True, None
        # Most proofs need only what is known of the goal's own unknowns.
        _, atoms = self.space.closure([opposite])
        near = [c for c in parts if c.unknowns <= atoms]
        always = [c for c in self.always if c.unknowns <= atoms]
        found, solver = self._checked([*near, opposite], always)
        if found != self.z3.unsat and len(near) + len(always) < len(parts) + len(self.always):
            near = list(parts)
            found, solver = self._checked([*near, opposite], self.always)
        if found == self.z3.unsat:
            enough.append(frozenset(near))
            return True, None
        self._open[key] = Model(self, solver.model()) if found == self.z3.sat else None
        return False, self._open[key]

    def model(self, conditions: Iterable[Condition], *, exact: bool = False) -> "Model | None":
        """Returns values that meet the conditions, or None if z3 finds none.

        Args:
            exact: products have the values of their factors, which z3 does not always find in time.
        """
        found, solver = self._checked(list(conditions), self.always, exact=exact)
        return Model(self, solver.model()) if found == self.z3.sat else None

    def _checked(self, conditions: list[Condition], always: list[Condition], *, exact: bool = False) -> tuple[Any, Any]:
        """Asks z3, and returns the answer with the solver. If one of z3's tactics gives no answer, the next one is tried."""
        asked = self._asked([*conditions, *always], exact=exact)
        ways = (
            [lambda: self.z3.SolverFor("QF_NIA")]
            if exact
            else [self.z3.SimpleSolver, lambda: self.z3.SolverFor("QF_LIA")]
        )
        for way in ways:
            self._in_time()
            solver = self._solver(way(), asked)
            if (found := solver.check()) != self.z3.unknown:
                break
        return found, solver

    def _in_time(self) -> None:
        if time.process_time() > self._ends:
            raise NotJudged(f"it takes more than seconds={self._seconds:g}")

    def _solver(self, solver: Any, asked: list[Any]) -> Any:
        solver.set("rlimit", _STEPS)
        solver.set("timeout", 20_000)
        for one in asked:  # Solver.add would ask for the sort of each
            self.z3.Z3_solver_assert(solver.ctx.ref(), solver.solver, one.as_ast())
        return solver

    def _asked(self, conditions: list[Condition], goals: Sequence[Condition] = (), *, exact: bool = False) -> list[Any]:
        """Returns what z3 is asked: conditions with the facts of their unknowns, bounds and lemmas, also of the goals' unknowns."""
        found, atoms = self.space.closure([*conditions, *goals])
        products = {m for c in found for m in _monomials(c)}
        lemmas = list(self._lemmas(found, products)) if products else []
        asked = [self._translated(c) for c in (*conditions, *found[len(conditions) + len(goals) :], *lemmas)]
        for atom in atoms:
            asked += self._bounded((atom,), self.space.bounds[atom])
        for m in {*products, *(m for lemma in lemmas for m in _monomials(lemma))}:
            asked += self._bounded(m, self.space.range_of_product(m))
            if exact:
                asked.append(self._name(m) == self.z3.Product([self._name((a,)) for a in m]))
        return asked

    def _bounded(self, monomial: Monomial, bounds: Bounds) -> list[Any]:
        found = self._bounds.get((monomial, bounds))
        if found is None:
            (low, high), name = bounds, self._name(monomial)
            found = [*([name >= low] if low is not None else []), *([name <= high] if high is not None else [])]
            self._bounds[monomial, bounds] = found
        return found

    def _lemmas(self, conditions: Iterable[Condition], products: set[Monomial]) -> Iterator[Condition]:
        """Yields p <= 0 and rest >= 0 imply p * rest <= 0, for the p and the rests that may matter."""
        seen: set[tuple[str, Poly, Monomial]] = set()
        polys = dict.fromkeys((kind, p) for c in conditions for kind, p in _comparisons(c))
        yield from self._steps((p for _, p in polys), products)
        new: dict[Monomial, None] = {}  # products that lemmas have, of which only the bounds matter
        for m in sorted(products, key=len):
            for part, rest in _splits(m):
                yield from self._part(part, rest)
                for kind, p in polys:
                    if part not in p.terms or (kind, p, rest) in seen or len(seen) > _LEMMAS:
                        continue
                    seen.add((kind, p, rest))
                    for lemma in self._product(kind, p, rest):
                        new.update(dict.fromkeys(_monomials(lemma)))
                        yield lemma
        for m in new.keys() - products:
            for part, rest in _splits(m):
                yield from self._part(part, rest)

    def _part(self, part: Monomial, rest: Monomial) -> tuple[Condition, ...]:
        """Returns what the bounds of an unknown say of its product with others that are not below 0."""
        found = self._of_part.get((part, rest))
        if found is None:
            low, high = self.space.range_of_product(part)
            rest_low, _ = self.space.range_of_product(rest)
            times, whole = Poly({rest: 1}), Poly({tuple(sorted(part + rest)): 1})
            known = len(part) == 1 and rest_low is not None and rest_low >= 0
            found = self._of_part[part, rest] = (
                *([Condition("le", times * low - whole)] if known and low is not None else []),
                *([Condition("le", whole - times * high)] if known and high is not None else []),
            )
        return found

    def _product(self, kind: str, p: Poly, rest: Monomial) -> tuple[Condition, ...]:
        found = self._of_product.get((kind, p, rest))
        if found is None:
            low, _ = self.space.range_of_product(rest)
            one, times = Poly({(): 1}), Poly({rest: 1})
            free = [] if low is not None and low >= 0 else [Condition("le", times + 1)]
            if kind == "le":
                found = (
                    Condition("or", None, (Condition("le", one - p), *free, Condition("le", p * times))),
                    Condition("or", None, (Condition("le", p), *free, Condition("le", (one - p) * times))),
                )
            else:
                found = (Condition("or", None, (Condition("ne", p), Condition("eq", p * times))),)
            self._of_product[kind, p, rest] = found
        return found

    def _steps(self, polys: Iterable[Poly], products: set[Monomial]) -> Iterator[Condition]:
        """Yields that S * q >= 0 for q >= 0, and S * q <= -S for q < 0, for the differences q of what S multiplies.

        Of a loop with the step S, such a q compares two numbers of iterations.
        """
        polys = list(polys)
        for atom in sorted({a for m in products for a in m}):
            low = self.space.bounds[atom][0]
            if low is None or low < 0:
                continue
            times: dict[Poly, None] = {}
            for p in polys:
                own = {_without(m, atom): c for m, c in p.terms.items() if atom in m}
                unit = gcd(*own.values())
                first = next((c for m, c in sorted(own.items()) if m), 0)
                if first:
                    unit = unit if first > 0 else -unit
                    times[Poly({m: c // unit for m, c in own.items()})] = None
            for a, b in islice(combinations(times, 2), _LEMMAS // 2):
                for q in (a - b, a - b + 1, a - b - 1):
                    yield from self._step(q, atom)

    def _step(self, q: Poly, atom: int) -> tuple[Condition, ...]:
        found = self._of_step.get((q, atom))
        if found is None:
            one = Poly({(atom,): 1})
            found = self._of_step[q, atom] = (
                ()
                if q.number is not None
                else (
                    Condition("or", None, (Condition("le", q + 1), Condition("le", -(q * one)))),
                    Condition("or", None, (Condition("le", -q), Condition("le", q * one + one))),
                )
            )
        return found

    def _name(self, monomial: Monomial) -> Any:
        if monomial not in self._names:
            words = "*".join(f"{self.space.names[a]}.{a}" for a in monomial)
            self._names[monomial] = self.z3.Int(words)
        return self._names[monomial]

    def _comparison(self, kind: str, poly: Poly) -> Any:
        found = self._compared.get((kind, poly))
        if found is None:
            terms = [self._name(m) * c if m else self.z3.IntVal(c) for m, c in poly.terms.items()]
            total = self.z3.Sum(terms)
            found = total <= 0 if kind == "le" else total == 0 if kind == "eq" else total != 0
            self._compared[kind, poly] = found
        return found

    def _translated(self, c: Condition) -> Any:
        found = self._z3.get(c)
        if found is None:
            if c.poly is None:
                parts = [self._translated(p) for p in c.parts]
                found = self.z3.And(parts) if c.kind == "and" else self.z3.Or(parts)
            else:
                found = self._comparison(c.kind, c.poly)
            self._z3[c] = found
        return found


class Model:
    """Values of unknowns. An unknown that the question does not have is at its bound next to 0."""

    def __init__(self, solver: Solver, model: Any) -> None:
        self._solver, self._model = solver, model

    def of(self, poly: Poly) -> int:
        """Returns the value of a polynomial; a product is that of its factors."""
        total = 0
        for m, c in poly.terms.items():
            for atom in m:
                c *= self.unknown(atom)
            total += c
        return total

    def unknown(self, atom: int) -> int:
        value = self._model.eval(self._solver._name((atom,)))
        if self._solver.z3.is_int_value(value):
            return int(value.as_long())
        low, high = self._solver.space.bounds[atom]
        return max(0, low or 0) if high is None or high >= 0 else high

    def meets(self, c: Condition) -> bool:
        """Returns whether the model meets a condition, with the model's own values of products."""
        found = self._model.eval(self._solver._translated(c), model_completion=True)
        return bool(self._solver.z3.is_true(found))


def _without(monomial: Monomial, atom: int) -> Monomial:
    at = monomial.index(atom)
    return monomial[:at] + monomial[at + 1 :]


def _monomials(c: Condition) -> Iterator[Monomial]:
    for _, p in _comparisons(c):
        yield from (m for m in p.terms if len(m) > 1)


def _comparisons(c: Condition) -> Iterator[tuple[str, Poly]]:
    todo, seen = [c], {c}
    while todo:
        one = todo.pop()
        if one.poly is not None:
            yield "le" if one.kind == "le" else "eq", one.poly
        for part in one.parts:
            if part not in seen:
                seen.add(part)
                todo.append(part)


def _splits(monomial: Monomial) -> Iterator[tuple[Monomial, Monomial]]:
    """Yields the ways to write a product as one of two products."""
    seen = set()
    for chosen in range(1, (1 << len(monomial)) - 1):
        part = tuple(a for i, a in enumerate(monomial) if chosen >> i & 1)
        if part not in seen:
            seen.add(part)
            yield part, tuple(a for i, a in enumerate(monomial) if not chosen >> i & 1)
