"""Arithmetic of machine words: what bits mean as numbers, floors, choices and comparisons."""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from math import gcd
from operator import and_

from .solver import Solver
from .terms import (
    FALSE,
    TRUE,
    Condition,
    Poly,
    Space,
    all_of,
    any_of,
    at_most,
    constant,
    equal,
    negated,
    remainders,
    symmetric,
)

__all__ = ["Words"]


def _without(monomial: tuple[int, ...], factor: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted((Counter(monomial) - Counter(factor)).elements()))


class Words:
    """Attributes:
    asks: whether the solver is asked if a word is the number that it is modulo 2^bits. Without questions, each word that
        may wrap around has an unknown for how often it does.
    """

    def __init__(self, space: Space, solver: Solver) -> None:
        self.space, self.solver = space, solver
        self.asks = True
        self.parts: dict[Poly, tuple[Poly, Poly]] = {}  # of a bitwise or
        self.decisions: set[int] = set()  # unknowns of conditions
        self.wrapped: dict[int, tuple[Poly, int]] = {}  # the words that unknowns are, modulo 2^bits

    def unknown(self, bits: int, name: str = "any") -> Poly:
        """Returns a word of which nothing is known."""
        found = self.space.fresh(name, 0, (1 << bits) - 1)
        return self.space.hide(found) if name == "any" else found

    def number(self, word: Poly, bits: int, signed: bool, path: Condition) -> Poly:
        """Returns the number that a word of bits is, signed or unsigned, for executions on a path."""
        low = -(1 << (bits - 1)) if signed else 0
        high = low + (1 << bits) - 1
        small = symmetric(word, bits)
        for one in (small, word):
            if self.space.within(one, low, high):
                return one
        if self.asks and not self.space.is_opaque(small):
            for one in dict.fromkeys((small, word)):
                if self.solver.implies(path, all_of(at_most(constant(low), one), at_most(one, high))):
                    return one
        key = ("number", small, bits, signed)
        if key not in self.space.made:
            wraps = self.space.hide(self.space.fresh("wraps"), small)
            value = self.space.hide(self.space.fresh("word", low, high), small)
            self.space.define(value, equal(value, small - wraps * (1 << bits)))
            self.space.made[key] = value
            self.wrapped[next(iter(value.unknowns))] = small, bits
        return self.space.made[key]

    def narrowed(self, number: Poly, bits: int) -> Poly:
        """Returns the word that the low bits of a number are. That of a widened word is the word itself."""
        while found := [
            a for a in number.unknowns if self.wrapped.get(a, (number, 0))[1] >= bits and (a,) in number.terms
        ]:
            for atom in found:
                number += (self.wrapped[atom][0] - Poly({(atom,): 1})) * number.terms[(atom,)]
        return symmetric(number, bits)

    def floor(self, number: Poly, divisor: int) -> Poly:
        """Returns ⌊number / divisor⌋."""
        whole, rest = remainders(number, divisor)
        if self.space.within(rest, 0, divisor - 1):
            return whole
        key = ("floor", rest, divisor)
        if key not in self.space.made:
            low, high = self.space.range_of(rest)
            quotient = self.space.fresh(
                "quotient",
                None if low is None else low // divisor,
                None if high is None else high // divisor,
            )
            left = rest - self.space.hide(quotient, rest) * divisor
            self.space.define(quotient, at_most(-left), at_most(left, divisor - 1))
            self.space.made[key] = quotient
        return whole + self.space.made[key]

    def low_bits(self, word: Poly, bits: int) -> Poly:
        """Returns the low bits of a word as a number. They do not depend on how often the word wraps around."""
        if parts := self.parts.get(word):
            return self.combined("or", self.low_bits(parts[0], bits), self.low_bits(parts[1], bits), bits)
        _, rest = remainders(word, 1 << bits)
        left = rest - self.floor(rest, 1 << bits) * (1 << bits)
        if left.number is not None or self.space.within(left, 0, (1 << bits) - 1):
            return left
        key = ("low", left, bits)
        if key not in self.space.made:
            value = self.space.hide(self.space.fresh("low", 0, (1 << bits) - 1), left)
            self.space.made[key] = self.space.define(value, equal(value, left))
        return self.space.made[key]

    def divided(self, a: Poly, b: Poly, path: Condition, signed: bool) -> tuple[Poly, Poly] | None:
        """Returns quotient and remainder as C has them, or None if they are not expressed. A division by 0 gives any number."""
        divisor = b.number
        if signed and not (
            self.solver.implies(path, at_most(-a)) if self.asks else (self.space.range_of(a)[0] or -1) >= 0
        ):
            return None
        if divisor is not None and divisor > 0:
            quotient = self.floor(a, divisor)
            return quotient, a - quotient * divisor
        if divisor is not None or (
            signed
            and not (self.solver.implies(path, at_most(-b)) if self.asks else (self.space.range_of(b)[0] or -1) >= 0)
        ):
            return None
        key = ("divided", a, b)
        if key not in self.space.made:
            highs = [None if h is None else max(h, 0) for h in (self.space.range_of(p)[1] for p in (a, b))]
            quotient, rest = self.space.fresh("quotient", 0, highs[0]), self.space.fresh("rest", 0, highs[1])
            whole = all_of(equal(a, quotient * b + rest), at_most(rest, b - 1), at_most(quotient, a))
            # Where a or b is below 0, which the path excludes, and for b = 0, the facts say nothing.
            self.space.define(quotient, any_of(at_most(b), at_most(a, -1), whole))
            self.space.define(rest, any_of(at_most(b), at_most(a, -1), whole))
            self.space.made[key], self.space.made[(*key, "rest")] = quotient, rest
        return self.space.made[key], self.space.made[(*key, "rest")]

    def choice(self, condition: Condition, a: Poly, b: Poly) -> Poly:
        """Returns a where the condition holds, else b."""
        if a == b or condition is TRUE:
            return a
        if condition is FALSE:
            return b
        value, (one, other), whole = self.joined([a, b])
        self.space.define(
            value, any_of(all_of(condition, equal(value, one)), all_of(negated(condition), equal(value, other)))
        )
        # That a minimum is at most both numbers bounds its products, too.
        if condition.kind == "le" and condition.poly in (a - b, a - b + 1):
            self.space.define(value, at_most(whole, a), at_most(whole, b))
        if condition.kind == "le" and condition.poly in (b - a, b - a + 1):
            self.space.define(value, at_most(a, whole), at_most(b, whole))
        return whole

    def joined(self, values: Sequence[Poly]) -> tuple[Poly, list[Poly], Poly]:
        """Returns an unknown that is one of some values, the values of the unknown, and the whole value.

        What the values have in common, as a sum and as a factor, is in the whole value and not in the unknown.
        """
        first = values[0]
        common = Poly({m: c for m, c in first.terms.items() if all(v.terms.get(m) == c for v in values)})
        # A pointer or null is the pointer and an offset, which is the pointer's negative for null.
        begins = {(m, c) for v in values for m, c in v.terms.items() if len(m) == 1 and m[0] in self.space.bases}
        if len(begins) == 1:
            common += Poly({m: c for m, c in begins if m not in common.terms})
        values = [v - common for v in values]
        terms = [(m, c) for v in values for m, c in v.terms.items()]
        number = gcd(*(c for _, c in terms)) or 1
        factor = tuple(sorted(reduce(and_, (Counter(m) for m, _ in terms)).elements())) if terms else ()
        if factor and self.space.range_of_product(factor)[0] is None:
            factor = ()
        own = [Poly({_without(m, factor): c // number for m, c in v.terms.items()}) for v in values]
        ranges = [self.space.range_of(v) for v in own]
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
        value = self.space.fresh(
            "choice",
            None if None in lows else min(lows),  # type: ignore[type-var]
            None if None in highs else max(highs),  # type: ignore[type-var]
        )
        if (unknowns := [v for v in own if v.unknowns]) and self.space.is_opaque(*unknowns):
            self.space.hide(value)
        return value, own, common + value * Poly({factor: number})

    def compared(self, how: str, a: Poly, b: Poly) -> Condition:
        match how:
            case "eq":
                return equal(a, b)
            case "ne":
                return negated(equal(a, b))
            case "lt" | "lo":
                return at_most(a + 1, b)
            case "le" | "ls":
                return at_most(a, b)
            case "gt" | "hi":
                return at_most(b + 1, a)
            case "ge" | "hs":
                return at_most(b, a)
        raise KeyError(how)

    def any_condition(self) -> Condition:
        """Returns a condition of which nothing is known."""
        decision = self.space.fresh("decision", 0, 1)
        self.decisions |= decision.unknowns
        return equal(decision, 1)

    def combined(self, how: str, a: Poly, b: Poly, bits: int) -> Poly:
        """Returns the bits of a and b that and, or, xor give, for numbers from 0 on."""
        for one, other in ((a, b), (b, a)):
            mask = one.number
            if mask is None:
                continue
            mask %= 1 << bits
            if how == "and":
                # A block of ones: the bits from `first` on, below `last`.
                first = (mask & -mask).bit_length() - 1 if mask else 0
                last = mask.bit_length()
                if mask == (1 << last) - (1 << first):
                    upper = self.low_bits(other, last) if last < bits else other
                    return upper - self.low_bits(other, first) if first else upper
            if how == "xor" and mask == (1 << bits) - 1:
                return -other - 1
            if mask == 0 and how in ("or", "xor"):
                return other
        for one, other in ((a, b), (b, a)):
            high = self.space.range_of(other)[1]
            if how in ("or", "xor") and high is not None and self.space.within(other, 0, high):
                unit = 1 << high.bit_length()
                if all(c % unit == 0 for c in one.terms.values()):
                    return one + other
        key = (how, *sorted((a, b), key=hash), bits)
        if key not in self.space.made:
            highs = [h for h in (self.space.range_of(p)[1] for p in (a, b)) if h is not None]
            most = (
                (1 << max(h.bit_length() for h in highs)) - 1
                if len(highs) == 2 and min(highs) >= 0
                else (1 << bits) - 1
            )
            value = self.space.hide(self.space.fresh(how, 0, min(most, (1 << bits) - 1)), a, b)
            if how == "and":
                facts = [at_most(value, a), at_most(value, b)]
            elif how == "or":
                facts = [at_most(a, value), at_most(b, value), at_most(value, a + b)]
                self.parts[value] = (a, b)
            else:
                facts = [at_most(value, a + b)]
            # On other paths a and b may be no numbers of these bits, and the facts must exclude nothing there.
            outside = [c for p in (a, b) for c in (at_most(p, -1), at_most(constant(1 << bits), p))]
            self.space.made[key] = self.space.define(value, any_of(*outside, all_of(*facts)))
        return self.space.made[key]
