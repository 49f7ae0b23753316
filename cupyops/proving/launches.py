"""What holds for every launch of a kernel: its parameters, its arrays, its grid."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupyops.dtypes import DTYPES, FLOATS
from cupyops.errors import expected
from cupyops.launch.geometry import MAX_BLOCK, MAX_BLOCK_Z, MAX_GRID_X, MAX_GRID_YZ, Geometry, Target
from cupyops.launch.kernel import Kernel
from cupyops.launch.size_expressions import size_expression

from .solver import NotJudged
from .terms import Condition, Poly, Space, all_of, any_of, at_most, constant, equal
from .words import Words

__all__ = ["Array", "Launches"]

MOST_BYTES = 1 << 47  # of an array: more than any GPU has
_MOST_MULTIPROCESSORS = 1024


@dataclass(frozen=True)
class Array:
    """The memory that an access may lie in.

    Attributes:
        name: the parameter, or the variable of the text.
        unit: the address is ``unit`` times the unknown `base`.
        base: the unknown; 0 for a null pointer.
        size: bytes, or None if they are not known.
        parameter: the array is a parameter of the kernel, which may be null.
    """

    name: str
    unit: int
    base: Poly
    size: Poly | None
    parameter: bool = True

    @property
    def address(self) -> Poly:
        return self.base * self.unit


@dataclass
class _Number:
    """What is assumed of a parameter alone: a multiple of `unit` from `low` to `high`, or equal to another parameter."""

    unit: int = 1
    low: int = -(1 << 64)
    high: int = 1 << 64
    other: str = ""


def _numbers(assume: Sequence[str]) -> dict[str, _Number]:
    """Returns what is assumed of each parameter alone.

    A proof then has bounds of an unknown, or one unknown, in the place of a condition.
    """
    found: dict[str, _Number] = {}

    def of(name: str) -> _Number:
        return found.setdefault(name, _Number())

    for text in assume:
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            continue  # Launches.condition names it
        match node:
            case ast.Compare(
                ast.BinOp(ast.Name(name), ast.Mod(), ast.Constant(int(unit))), [ast.Eq()], [ast.Constant(0)]
            ):
                of(name).unit = max(unit, 1)
            case ast.Compare(ast.Name(name), [ast.Eq()], [ast.Name(other)]):
                of(name).other = other
            case ast.Compare(ast.Name(name), [op], [ast.Constant(int(value))]):
                number = of(name)
                if isinstance(op, ast.Eq | ast.GtE):
                    number.low = max(number.low, value)
                if isinstance(op, ast.Eq | ast.LtE):
                    number.high = min(number.high, value)
    return found


class Launches:
    """The unknowns of a launch, and what is known of them.

    Attributes:
        numbers: the integer parameters, by name.
        arrays: by parameter.
        special: ``%tid.x`` and the like.
        facts: what holds for every launch.
    """

    def __init__(
        self, kernel: Kernel, types: Mapping[str, str], words: Words, geometry: Geometry, assume: Sequence[str] = ()
    ) -> None:
        self.kernel, self.types, self.words, self.geometry = kernel, types, words, geometry
        self.space: Space = words.space
        self.facts: list[Condition] = []
        self.numbers: dict[str, Poly] = {}
        self.arrays: dict[str, Array] = {}
        self.special: dict[str, Poly] = {}
        self.others: dict[tuple[int, int, int], Poly] = {}
        self.multiprocessors: Poly | None = None
        self._parameters(_numbers(assume))
        self._grid()
        self.facts += map(self.condition, assume)

    def expression(self, text: str) -> Poly:
        """Returns a size expression of integer parameters and constants."""
        return self._evaluated(ast.parse(text, mode="eval").body, {})

    def condition(self, text: str) -> Condition:
        """Returns a condition on sizes, as ``"N % 4 == 0"`` or ``"2 <= N <= 1024"``.

        Raises:
            ValueError: it is no comparison of size expressions.
        """
        wanted = "be comparisons of size expressions, such as 'N % 4 == 0'"
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise ValueError(expected("prove_bounds", "assume", wanted, repr(text))) from None
        if not isinstance(node, ast.Compare):
            raise ValueError(expected("prove_bounds", "assume", wanted, repr(text)))
        names = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
        values = [self._given("assume", ast.unparse(n)) for n in (node.left, *node.comparators)]
        found = []
        for a, b, op in zip(values, values[1:], node.ops, strict=False):
            if type(op) not in names:
                raise ValueError(expected("prove_bounds", "assume", wanted, repr(text)))
            found.append(self.words.compared(names[type(op)], a, b))
        return all_of(*found)

    def _given(self, argument: str, text: str) -> Poly:
        code, used = size_expression("prove_bounds", argument, text)
        known = {**self.numbers, **dict.fromkeys(self.kernel.constants)}
        for name in used:
            if name not in known:
                raise ValueError(
                    expected("prove_bounds", argument, f"have integer parameters of {self.kernel.name}", f"`{name}`")
                )
        return self.expression(code)

    def _evaluated(self, node: ast.expr, scope: Mapping[str, Poly]) -> Poly:
        match node:
            case ast.Constant(value=int() as value):
                return constant(value)
            case ast.Name(id=name):
                if name in scope:
                    return scope[name]
                if name in self.numbers:
                    return self.numbers[name]
                if name in self.kernel.constants:
                    return constant(self.kernel.constants[name])
            case ast.UnaryOp(ast.USub(), operand):
                return -self._evaluated(operand, scope)
            case ast.BinOp(left, op, right):
                a, b = self._evaluated(left, scope), self._evaluated(right, scope)
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.FloorDiv() | ast.Mod():
                        quotient = self._quotient(a, b)
                        return quotient if isinstance(op, ast.FloorDiv) else a - quotient * b
            case ast.Call(ast.Name(id="min" | "max" as how), args):
                found = self._evaluated(args[0], scope)
                for arg in args[1:]:
                    other = self._evaluated(arg, scope)
                    smaller = at_most(found, other)
                    found = self.words.choice(smaller, *((found, other) if how == "min" else (other, found)))
                return found
        raise NotJudged(f"the expression `{ast.unparse(node)}` of the launch")

    def _quotient(self, a: Poly, b: Poly) -> Poly:
        """Returns ⌊a / b⌋ of Python. A launch with b = 0 raises an error."""
        if b.number is not None:
            if b.number == 0:
                raise NotJudged("a division by 0 in the launch")
            return self.words.floor(a, b.number) if b.number > 0 else self.words.floor(-a, -b.number)
        key = ("quotient", a, b)
        if key not in self.space.made:
            self.space.made[key] = self.space.fresh("quotient")
            left = a - self.space.made[key] * b
            whole = all_of(at_most(-left), at_most(left, b - 1))
            self.facts.append(any_of(whole, all_of(at_most(b, -1), at_most(left), at_most(b + 1, left))))
        return self.space.made[key]

    def _parameters(self, assumed: Mapping[str, _Number]) -> None:
        counted = {t for p in self.kernel.signature.parameters for t in p.shape or ()} | set(self.geometry.sizes)
        for p in self.kernel.signature.parameters:
            if (
                p.pointer
                or p.length is not None
                or p.element is not None
                or p.map_of is not None
                or p.accessor is not None
            ):
                continue
            dtype = DTYPES[p.c_type(self.types)]
            if dtype.name in FLOATS:
                continue
            if dtype.name == "bool":
                low, high = 0, 1
            else:
                bits, signed = 8 * dtype.itemsize, dtype.name.startswith("i")
                low, high = -(1 << (bits - 1)) if signed else 0, (1 << (bits - signed)) - 1
            low = 0 if p.name in counted else low  # the launch raises for a size below 0
            known = assumed.get(p.name, _Number())
            low, high = -(-max(low, known.low) // known.unit), min(high, known.high) // known.unit
            # What is assumed is a fact, too, so that no form of the number admits a launch that does not meet it.
            if known.other in self.numbers:
                self.numbers[p.name] = self.numbers[known.other]
            elif low == high:
                self.numbers[p.name] = constant(low * known.unit)
            else:
                self.numbers[p.name] = self.space.fresh(p.name, low, max(low, high)) * known.unit
        for p in self.kernel.signature.parameters:
            if p.pointer:
                self._array(p)

    def _array(self, p: Any) -> None:
        dtype = DTYPES[p.c_type(self.types)]
        unit = p.element.alignment if p.element is not None else dtype.itemsize
        # Of PyTorch, CuPy and NumPy: an array begins at a multiple of its elements' size.
        base = self.space.fresh(f"&{p.name}", 0, (1 << 57) // unit)
        size: Poly | None = None
        if p.shape is not None and p.accessor is None and not p.untyped:
            size = constant(dtype.itemsize)
            for term in p.shape:
                size = size * self._evaluated(ast.parse(term, mode="eval").body, {})
            self.facts.append(at_most(size, MOST_BYTES))
            if not p.nullable:
                self.facts.append(any_of(at_most(size), at_most(constant(1), base)))
        self.arrays[p.name] = Array(p.name, unit, base, size)

    def _grid(self) -> None:
        geometry = self.geometry
        if geometry.per_call:
            threads = [
                self.space.fresh(f"blockDim.{axis}", 1, MAX_BLOCK_Z if axis == "z" else MAX_BLOCK) for axis in "xyz"
            ]
            self.facts.append(at_most(threads[0] * threads[1] * threads[2], MAX_BLOCK))
            blocks = [
                self.space.fresh(f"gridDim.{axis}", 1, MAX_GRID_X if axis == "x" else MAX_GRID_YZ) for axis in "xyz"
            ]
        else:
            threads = [constant(t) for t in geometry.threads]
            itemsize = max(
                (DTYPES[p.c_type(self.types)].itemsize for p in self.kernel.signature.parameters if p.pointer),
                default=4,
            )
            scope = {"unit": self._unit(itemsize)}
            counts = [self._evaluated(ast.parse(code, mode="eval").body, scope) for code in geometry.blocks]
            limits = (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ)
            blocks = [self._named(count, high) for count, high in zip(counts, limits, strict=True)]
        for axis, block, thread in zip("xyz", blocks, threads, strict=True):
            most, blocks_most = self.space.range_of(thread)[1], self.space.range_of(block)[1] or MAX_GRID_X
            self.special[f"%ntid.{axis}"], self.special[f"%nctaid.{axis}"] = thread, block
            for name, count, high in (
                (f"%tid.{axis}", thread, most),
                (f"%ctaid.{axis}", block, min(blocks_most, MAX_GRID_X)),
            ):
                index = self.space.fresh(name[1:], 0, (high or 1) - 1)
                if name == "%ctaid.x" and geometry.cluster > 1:
                    index = self._in_cluster(count, (high or 1) // geometry.cluster)
                elif count.number == 1:
                    index = constant(0)
                elif count.number is None:
                    self.facts.append(at_most(index + 1, count))
                self.special[name] = index

    def _in_cluster(self, count: Poly, most: int) -> Poly:
        """Returns the block's number of the cluster's and the block's in the cluster. A launch has whole clusters."""
        blocks = self.geometry.cluster
        number = self.space.fresh("clusterid.x", 0, max(most, 1) - 1)
        rank = self.space.fresh("cluster_ctarank", 0, blocks - 1)
        self.facts.append(at_most((number + 1) * blocks, count))
        self.special |= {"%clusterid.x": number, "%cluster_ctarank": rank, "%cluster_nctarank": constant(blocks)}
        return number * blocks + rank

    def _named(self, count: Poly, most: int) -> Poly:
        """Returns a number or one unknown for a number of blocks, which products with it have instead of a sum."""
        # No blocks are no launch.
        self.facts += [at_most(constant(1), count), at_most(count, most)]
        if count.number is not None or ([*count.terms.values()] == [1] and self.space.range_of(count)[0] in (0, 1)):
            return count
        found = self.space.fresh("gridDim", 1, min(most, self.space.range_of(count)[1] or most))
        self.facts.append(equal(found, count))
        return found

    def _unit(self, itemsize: int) -> Poly:
        """Returns the name ``unit`` of a policy, which may depend on the number of multiprocessors of the GPU."""
        first, second, last = (self.geometry.unit(Target(itemsize, m)) for m in (1, 2, _MOST_MULTIPROCESSORS))
        if first == second == last:
            return constant(first)
        if last - first != (second - first) * (_MOST_MULTIPROCESSORS - 1):
            raise NotJudged(f"the grid of {self.geometry}")
        self.multiprocessors = self.space.fresh("multiprocessors", 1, _MOST_MULTIPROCESSORS)
        return (self.multiprocessors - 1) * (second - first) + first

    def parameter(self, function: str, name: str, offset: int, bits: int) -> Poly | None:
        """Returns a word of a kernel's parameter, ``NAME_param_3``, or None for another name."""
        if not name.startswith(f"{function}_param_"):
            return None
        number = int(name.rpartition("_")[2])
        p = self.kernel.signature.parameters[number]
        if p.pointer and p.accessor is None and offset == 0 and bits == 64:
            return self.arrays[p.name].address
        if p.name in self.numbers and offset == 0:
            return self.numbers[p.name]
        key = (number, offset, bits)
        if key not in self.others:
            self.others[key] = self.space.fresh(p.name, 0, (1 << bits) - 1)
        return self.others[key]

    def shared_bytes(self) -> Poly | None:
        """Returns the bytes of dynamic shared memory, or None if a function in Python counts them."""
        given = self.kernel.shared_bytes
        if given is None:
            return constant(self.kernel.hardware.shared)
        if not isinstance(given.source, str):
            return None
        return self._given("shared", given.source)
