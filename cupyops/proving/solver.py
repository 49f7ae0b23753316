"""Questions to z3 about conditions on polynomials.

Products of unknowns are unknowns of their own to z3, so that each question is one of linear integer arithmetic. What the
product of two conditions says of them is added as lemmas, which always hold: a proof stays a proof. A model may be wrong
about products; the simulator decides about it.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import combinations, islice
from math import gcd
from typing import Any

from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install

from .terms import FALSE, Condition, Monomial, Poly, Space, negated

__all__ = ["Model", "NotJudged", "Solver"]


class NotJudged(Exception):
    """The kernel does something that is not judged; the message says what, and `line` where."""

    def __init__(self, why: str, line: str = "") -> None:
        super().__init__(why)
        self.line = line


_STEPS = 3_000_000  # of z3 for a question: a limit that is the same on every machine
_LEMMAS = 600


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
        self._seconds, self._ends = seconds, time.monotonic() + seconds
        self.always: list[Condition] = []
        self._known: dict[tuple[Condition, Condition], bool] = {}
        self._z3: dict[Condition, Any] = {}
        self._names: dict[Monomial, Any] = {}

    def implies(self, given: Condition, goal: Condition) -> bool:
        """Returns whether z3 proves that a condition implies another."""
        opposite = negated(goal)
        if opposite is FALSE or given is FALSE:
            return True
        key = (given, goal)
        if key not in self._known:
            self._known[key] = self._checked([given, opposite])[0] == self.z3.unsat
        return self._known[key]

    def model(self, conditions: Iterable[Condition], *, exact: bool = False) -> "Model | None":
        """Returns values that meet the conditions, or None if z3 finds none.

        Args:
            exact: products have the values of their factors, which z3 does not always find in time.
        """
        found, solver = self._checked(list(conditions), exact=exact)
        return Model(self, solver.model()) if found == self.z3.sat else None

    def _checked(self, conditions: list[Condition], *, exact: bool = False) -> tuple[Any, Any]:
        """Asks z3, and returns the answer with the solver. What one of z3's ways leaves open, another may decide."""
        if time.monotonic() > self._ends:
            raise NotJudged(f"it takes more than seconds={self._seconds:g}")
        asked = self._asked(conditions, exact=exact)
        ways = (
            [lambda: self.z3.SolverFor("QF_NIA")]
            if exact
            else [self.z3.SimpleSolver, lambda: self.z3.SolverFor("QF_LIA")]
        )
        for way in ways:
            solver = way()
            solver.set("rlimit", _STEPS)
            solver.set("timeout", 20_000)
            solver.add(asked)
            if (found := solver.check()) != self.z3.unknown:
                break
        return found, solver

    def _asked(self, conditions: list[Condition], *, exact: bool) -> list[Any]:
        """Returns what z3 is asked: conditions with the facts of their unknowns, bounds and lemmas."""
        found, atoms = self.space.closure([*conditions, *self.always])
        products = {m for c in found for m in _monomials(c)}
        lemmas = list(self._lemmas(found, products)) if products else []
        asked = [self._translated(c) for c in (*found, *lemmas)]
        for atom in atoms:
            asked += self._bounded((atom,), self.space.bounds[atom])
        for m in {*products, *(m for lemma in lemmas for m in _monomials(lemma))}:
            asked += self._bounded(m, self.space.range_of_product(m))
            if exact:
                asked.append(self._name(m) == self.z3.Product([self._name((a,)) for a in m]))
        return asked

    def _bounded(self, monomial: Monomial, bounds: tuple[int | None, int | None]) -> list[Any]:
        low, high = bounds
        name = self._name(monomial)
        return [*([name >= low] if low is not None else []), *([name <= high] if high is not None else [])]

    def _lemmas(self, conditions: Iterable[Condition], products: set[Monomial]) -> Iterator[Condition]:
        """Yields p <= 0 and rest >= 0 imply p * rest <= 0, for the p and the rests that may matter."""
        seen: set[tuple[Poly, Monomial]] = set()
        polys = dict.fromkeys((kind, p) for c in conditions for kind, p in _comparisons(c))
        yield from self._steps((p for _, p in polys), products)
        for m in sorted(products, key=len):
            for part, rest in _splits(m):
                low, high = self.space.range_of_product(part)
                rest_low, _ = self.space.range_of_product(rest)
                times = Poly({rest: 1})
                if len(part) == 1 and rest_low is not None and rest_low >= 0:
                    whole = Poly({m: 1})
                    if low is not None:
                        yield Condition("le", times * low - whole)
                    if high is not None:
                        yield Condition("le", whole - times * high)
                for kind, p in polys:
                    if part not in p.terms or (p, rest) in seen or len(seen) > _LEMMAS:
                        continue
                    seen.add((p, rest))
                    free = [] if rest_low is not None and rest_low >= 0 else [Condition("le", times + 1)]
                    one = Poly({(): 1})
                    if kind == "le":
                        yield Condition("or", None, (Condition("le", one - p), *free, Condition("le", p * times)))
                        yield Condition("or", None, (Condition("le", p), *free, Condition("le", (one - p) * times)))
                    else:
                        yield Condition("or", None, (Condition("ne", p), Condition("eq", p * times)))

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
            one = Poly({(atom,): 1})
            for a, b in islice(combinations(times, 2), _LEMMAS // 2):
                for q in (a - b, a - b + 1, a - b - 1):
                    if q.number is None:
                        yield Condition("or", None, (Condition("le", q + 1), Condition("le", -(q * one))))
                        yield Condition("or", None, (Condition("le", -q), Condition("le", q * one + one)))

    def _name(self, monomial: Monomial) -> Any:
        if monomial not in self._names:
            words = "*".join(f"{self.space.names[a]}.{a}" for a in monomial)
            self._names[monomial] = self.z3.Int(words)
        return self._names[monomial]

    def _sum(self, poly: Poly) -> Any:
        terms = [self._name(m) * c if m else self.z3.IntVal(c) for m, c in poly.terms.items()]
        return self.z3.Sum(terms)

    def _translated(self, c: Condition) -> Any:
        found = self._z3.get(c)
        if found is None:
            if c.poly is None:
                parts = [self._translated(p) for p in c.parts]
                found = self.z3.And(parts) if c.kind == "and" else self.z3.Or(parts)
            else:
                both = self._sum(c.poly)
                found = both <= 0 if c.kind == "le" else both == 0 if c.kind == "eq" else both != 0
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
