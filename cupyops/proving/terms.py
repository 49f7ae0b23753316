"""Integer polynomials over named unknowns, and conditions on them.

A register of w bits is a polynomial that equals the register modulo 2^w, so that additions and products never overflow.
:mod:`.words` asks for the number itself where an instruction depends on it.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

__all__ = [
    *("FALSE", "TRUE", "Condition", "Poly", "Space", "all_of", "any_of", "at_most", "constant", "either", "equal"),
    *("negated", "remainders", "symmetric"),
]

Monomial = tuple[int, ...]
Bounds = tuple[int | None, int | None]


class Poly:
    """A polynomial with integer coefficients: ``terms`` maps each product of unknowns, sorted, to its coefficient."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._hash = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        self._hash = self._hash or hash(frozenset(self.terms.items()))
        return self._hash

    def __add__(self, other: "Poly | int") -> "Poly":
        found = dict(self.terms)
        for m, c in (other.terms if isinstance(other, Poly) else {(): other}).items():
            found[m] = found.get(m, 0) + c
        return Poly(found)

    def __neg__(self) -> "Poly":
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: "Poly | int") -> "Poly":
        return self + -other

    def __mul__(self, other: "Poly | int") -> "Poly":
        if isinstance(other, int):
            return Poly({m: c * other for m, c in self.terms.items()})
        found: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                both = tuple(sorted(m + n))
                found[both] = found.get(both, 0) + c * d
        return Poly(found)

    @property
    def unknowns(self) -> set[int]:
        return {a for m in self.terms for a in m}

    @property
    def number(self) -> int | None:
        """The number that the polynomial is, or None."""
        return self.terms.get((), 0) if all(m == () for m in self.terms) else None


def constant(value: int) -> Poly:
    return Poly({(): value})


def symmetric(poly: Poly, bits: int) -> Poly:
    """Returns an equal polynomial modulo 2^bits whose coefficients are small."""
    half = 1 << (bits - 1)
    return Poly({m: ((c + half) % (2 * half)) - half for m, c in poly.terms.items()})


def remainders(poly: Poly, divisor: int) -> tuple[Poly, Poly]:
    """Returns polynomials q and r with ``poly == divisor * q + r``, where the coefficients of r are in [0, divisor)."""
    return (
        Poly({m: c // divisor for m, c in poly.terms.items()}),
        Poly({m: c % divisor for m, c in poly.terms.items()}),
    )


class Condition:
    """A condition: ``"le"`` and ``"eq"`` and ``"ne"`` compare a polynomial with 0; ``"and"`` and ``"or"`` have parts.

    Conditions share parts, so they are compared by identity.
    """

    __slots__ = ("_negated", "_unknowns", "kind", "parts", "poly")

    def __init__(
        self, kind: Literal["le", "eq", "ne", "and", "or"], poly: Poly | None, parts: "tuple[Condition, ...]" = ()
    ) -> None:
        self.kind, self.poly, self.parts = kind, poly, parts
        self._unknowns: frozenset[int] | None = None
        self._negated: Condition | None = None

    @property
    def unknowns(self) -> frozenset[int]:
        if self._unknowns is None:
            own = self.poly.unknowns if self.poly is not None else set()
            self._unknowns = frozenset(own).union(*(p.unknowns for p in self.parts))
        return self._unknowns


TRUE = Condition("and", None)
FALSE = Condition("or", None)


def at_most(poly: Poly, other: Poly | int = 0) -> Condition:
    """Returns the condition ``poly <= other``."""
    difference = poly - other
    if (value := difference.number) is not None:
        return TRUE if value <= 0 else FALSE
    return Condition("le", difference)


def equal(poly: Poly, other: Poly | int = 0) -> Condition:
    difference = poly - other
    if (value := difference.number) is not None:
        return TRUE if value == 0 else FALSE
    return Condition("eq", difference)


def all_of(*conditions: Condition) -> Condition:
    parts: dict[Condition, None] = {}
    for c in conditions:
        if c is FALSE:
            return FALSE
        parts.update(dict.fromkeys(c.parts if c.kind == "and" else (c,)))
    return next(iter(parts)) if len(parts) == 1 else Condition("and", None, tuple(parts)) if parts else TRUE


def any_of(*conditions: Condition) -> Condition:
    parts: dict[Condition, None] = {}
    for c in conditions:
        if c is TRUE:
            return TRUE
        parts.update(dict.fromkeys(c.parts if c.kind == "or" else (c,)))
    return next(iter(parts)) if len(parts) == 1 else Condition("or", None, tuple(parts)) if parts else FALSE


def either(*conditions: Condition) -> Condition:
    """Returns that one of some conditions holds, with the parts that all of them have outside."""
    parts = [dict.fromkeys(c.parts if c.kind == "and" else (c,)) for c in conditions if c is not FALSE]
    if len(parts) < 2:
        return any_of(*conditions)
    common = [c for c in parts[0] if all(c in p for p in parts[1:])]
    rest = [all_of(*(c for c in p if c not in common)) for p in parts]
    return all_of(*common) if any(negated(rest[0]) is r for r in rest[1:]) else all_of(*common, any_of(*rest))


def negated(c: Condition) -> Condition:
    if c._negated is None:
        if c.poly is None:
            found = (any_of if c.kind == "and" else all_of)(*map(negated, c.parts))
        elif c.kind == "le":
            found = Condition("le", constant(1) - c.poly)
        else:
            found = Condition("ne" if c.kind == "eq" else "eq", c.poly)
        c._negated = found
        if found is not TRUE and found is not FALSE:
            found._negated = c
    return c._negated


class Space:
    """The unknowns of a proof. An unknown is an integer with bounds, and with facts that define it.

    The facts of an unknown hold for some value of it, whatever the values of the unknowns before it: they exclude no
    execution.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bounds: list[Bounds] = []
        self.facts: list[list[Condition]] = []
        self.made: dict[object, Poly] = {}
        # Values of floating-point arithmetic and of memory, and what follows from them alone; and where arrays begin.
        self.opaque: set[int] = set()
        self.bases: set[int] = set()

    def fresh(self, name: str, low: int | None = None, high: int | None = None) -> Poly:
        """Returns a new unknown with ``low <= unknown <= high``."""
        self.names.append(name)
        self.bounds.append((low, high))
        self.facts.append([])
        return Poly({(len(self.names) - 1,): 1})

    def is_opaque(self, *polys: Poly) -> bool:
        """Returns whether polynomials have unknowns, all of which are opaque."""
        unknowns = set().union(*(p.unknowns for p in polys))
        return bool(unknowns) and unknowns <= self.opaque

    def hide(self, unknown: Poly, *of: Poly) -> Poly:
        """Marks an unknown as opaque if the polynomials that define it are."""
        if not of or self.is_opaque(*of):
            self.opaque |= unknown.unknowns
        return unknown

    def define(self, unknown: Poly, *facts: Condition) -> Poly:
        (atom,) = unknown.unknowns
        self.facts[atom] += [f for f in facts if f is not TRUE]
        return unknown

    def range_of_product(self, monomial: Monomial) -> Bounds:
        low: int | None = 1
        high: int | None = 1
        for atom in monomial:
            a, b = self.bounds[atom]
            if low is not None and low >= 0 and a is not None and a >= 0:
                low = low * a
                high = None if high is None or b is None else high * b
            elif None in (low, high, a, b):
                return None, None
            else:
                corners = [x * y for x in (low, high) for y in (a, b)]  # type: ignore[operator]
                low, high = min(corners), max(corners)
        return low, high

    def range_of(self, poly: Poly) -> Bounds:
        """Returns bounds of a polynomial that follow from the bounds of its unknowns."""
        low: int | None = 0
        high: int | None = 0
        for m, c in poly.terms.items():
            a, b = self.range_of_product(m)
            if c < 0:
                a, b = b, a
            low = None if low is None or a is None else low + c * a
            high = None if high is None or b is None else high + c * b
        return low, high

    def within(self, poly: Poly, low: int, high: int) -> bool:
        a, b = self.range_of(poly)
        return a is not None and b is not None and low <= a and b <= high

    def closure(self, conditions: Iterable[Condition]) -> tuple[list[Condition], set[int]]:
        """Returns the conditions, the facts known about their unknowns, and the facts about the unknowns of those facts, and so on."""
        found = list(conditions)
        seen: set[int] = set()
        todo = set().union(*(c.unknowns for c in found)) if found else set()
        while todo:
            atom = todo.pop()
            if atom not in seen:
                seen.add(atom)
                for fact in self.facts[atom]:
                    found.append(fact)
                    todo |= fact.unknowns - seen
        return found, seen
