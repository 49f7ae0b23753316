"""Proves that a kernel accesses its arrays and its shared memory within their bounds, for all sizes.

NVRTC compiles the kernel to PTX. The PTX is run for all executions at once (:mod:`.paths`), and each access becomes a question: is
there a launch, a block and a thread that reaches it with an address outside the array? z3 answers (:mod:`.solver`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from cupyops.compile.compiler import binary_for
from cupyops.errors import expected
from cupyops.launch.geometry import Geometry, policy
from cupyops.launch.kernel import Kernel

from .faults import Fault, fault_of
from .instructions import Instructions
from .launches import Array, Launches
from .memory import CLUSTER_BLOCKS
from .operands import Access
from .paths import Paths
from .ptx import Program, parse
from .solver import NotJudged, Solver
from .terms import TRUE, Condition, Poly, Space, all_of, at_most, constant, equal, negated
from .words import Words

__all__ = ["Bounds", "Proof", "prove_bounds"]

_CAPABILITY = 90  # the architecture whose code is read, unless the kernel needs another
_SHARED_WINDOW = 1 << 20


@dataclass(frozen=True)
class Proof:
    """The answer for a kernel and a choice of dtypes.

    Attributes:
        kernel: the kernel's name, with dtypes and constants.
        answer: ``"inside"``, ``"broken"`` or ``"not judged"``.
        accesses: how many instructions access an array or shared memory.
        why: what is broken, or why the kernel is not judged.
        line: where, ``scale.cu:7``.
        fault: the launch that the simulator has found broken, of a broken kernel.
    """

    kernel: str
    answer: Literal["inside", "broken", "not judged"]
    accesses: int = 0
    why: str = ""
    line: str = ""
    fault: Fault | None = None

    def __str__(self) -> str:
        if self.answer == "inside":
            return f"{self.kernel}: inside for all sizes ({self.accesses} accesses)"
        where = f" at {self.line}" if self.line else ""
        return f"{self.kernel}: {self.answer}{where}: {self.why}"


@dataclass(frozen=True)
class Bounds:
    """The answers of :func:`prove_bounds`."""

    proofs: tuple[Proof, ...] = field(default=())

    @property
    def inside(self) -> bool:
        """Whether every kernel stays inside for all sizes."""
        return bool(self.proofs) and all(p.answer == "inside" for p in self.proofs)

    @property
    def broken(self) -> tuple[Proof, ...]:
        return tuple(p for p in self.proofs if p.answer == "broken")

    def __iter__(self) -> Iterator[Proof]:
        return iter(self.proofs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.proofs))


def prove_bounds(
    kernel: Kernel,
    *,
    types: Mapping[str, str] | None = None,
    assume: Sequence[str] | str = (),
    geometry: Geometry | None = None,
    seconds: float = 60,
) -> Bounds:
    """Proves that a kernel accesses its arrays and its shared memory within their bounds and aligned, for all sizes.

    The answer for each choice of dtypes is

    - *inside*: no launch that the checks of a call accept has an access out of bounds, whatever the sizes and the values in the arrays;
    - *broken*: a launch has such an access. The simulator has run the launch, and shows the fault;
    - *not judged*: neither, with the reason and the line.

    The bounds of an array are those of its shape comment. An array begins at any multiple of its elements' size and has at most
    2^47 bytes. The code is that which the installed NVRTC makes for sm_90, or for the architecture that the kernel needs: an access
    that NVRTC leaves out, since its result is not used, is not there.

    Args:
        kernel: a kernel.
        types: the dtypes of the types that the arrays decide, ``{"scalar_t": "float32"}``; by default each choice that
            :func:`cupyops.warmup` compiles.
        assume: what callers guarantee, as comparisons of size expressions: ``"N % 4 == 0"``, ``"1 <= K <= 1024"``. The kernel of a
            row program has the conditions that its launches meet.
        geometry: the policy of the launches, for a kernel without one. By default, the proof holds for every grid and every block.
        seconds: the processor's time for each choice of dtypes. A kernel that takes longer is not judged.

    Raises:
        MissingDependencyError: z3 is not installed; or no C++ compiler is, and a kernel seems to be broken.
        CompileError: NVRTC rejects the text.
        TypeError, ValueError: `kernel` is no kernel, or `assume` or `geometry` do not fit it.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(expected("prove_bounds", "kernel", "be a Kernel", type(kernel).__name__))
    if geometry is not None:
        if not kernel.geometry.per_call:
            raise ValueError(f"prove_bounds: {kernel.name} has a policy, {kernel.geometry}; leave out `geometry`")
        unknown = [size for size in geometry.sizes if size not in kernel.signature.names]
        if unknown:
            raise ValueError(expected("prove_bounds", "geometry", f"have sizes of {kernel.name}", f"`{unknown[0]}`"))
    rule = kernel.geometry if geometry is None else policy(kernel.name, geometry)
    assumed = (*kernel.assumed, *((assume,) if isinstance(assume, str) else assume))
    choices = [dict(types)] if types is not None else list(kernel.type_choices())
    return Bounds(tuple(_proof(kernel, choice, rule, assumed, seconds) for choice in choices))


def _proof(
    kernel: Kernel, types: Mapping[str, str], geometry: Geometry, assume: Sequence[str], seconds: float
) -> Proof:
    answer = partial(Proof, kernel.describe(types).removesuffix("<>"))
    accesses = 0
    try:
        run = _Run(kernel, types, geometry, assume, seconds)
        run.follow()
        accesses = len(run.accesses)
        doubts = list(run.doubts())
        for access, condition, _ in doubts:
            if (fault := fault_of(run.launches, run.solver, all_of(access.path, condition))) is not None:
                return answer("broken", accesses, fault.words, access.line, fault)
    except NotJudged as why:
        return answer("not judged", accesses, str(why), why.line)
    if not doubts:
        return answer("inside", accesses)
    access, _, why_not = doubts[0]
    return answer("not judged", accesses, why_not, access.line)


class _Run:
    """A kernel's executions and the questions about them."""

    def __init__(
        self, kernel: Kernel, types: Mapping[str, str], geometry: Geometry, assume: Sequence[str], seconds: float
    ) -> None:
        self.kernel = kernel
        self.space = Space()
        self.solver = Solver(self.space, seconds)
        self.words = Words(self.space, self.solver)
        self.launches = Launches(kernel, types, self.words, geometry, assume)
        self.accesses: list[Access] = []
        needs = kernel.hardware
        target = f"compute_{max(needs.since, _CAPABILITY)}"
        options = tuple(o for o in kernel.options if not o.startswith("-arch="))
        text = kernel.final_text(types)
        binary = binary_for(text, kernel.describe(types), target + "a" * needs.exactly, (*options, "-lineinfo"))
        self.entry = kernel.source.named(binary)
        try:
            self.program: Program = parse(binary.code.decode())
        except ValueError as error:
            raise NotJudged(str(error)) from error
        self.arrays = {next(iter(a.base.unknowns)): a for a in (*self.launches.arrays.values(), *self._variables())}
        self.space.bases |= self.arrays.keys()
        self.solver.always += self.launches.facts

    def _variables(self) -> Iterator[Array]:
        self.symbols: dict[str, Poly] = {}
        # All dynamic arrays of shared memory begin at one address, which is aligned as the most aligned of them.
        dynamic = [unit for size, space, unit in self.program.variables.values() if space == "shared" and size is None]
        base_of_dynamic = self.space.fresh("shared", 0, _SHARED_WINDOW)
        for name, (size, space, unit) in self.program.variables.items():
            if space == "shared" and size is None:
                array = Array(name, max(dynamic), base_of_dynamic, self.launches.shared_bytes(), parameter=False)
            else:
                base = self.space.fresh(
                    name, 0 if space == "shared" else 1, _SHARED_WINDOW if space == "shared" else 1 << 48
                )
                array = Array(name, unit, base, None if size is None else constant(size), parameter=False)
            self.symbols[name] = array.address
            yield array
        blocks = Array(
            CLUSTER_BLOCKS, 1, self.space.fresh("cluster"), constant(self.launches.geometry.cluster), parameter=False
        )
        self.symbols[CLUSTER_BLOCKS] = blocks.address
        yield blocks

    def follow(self) -> None:
        """Runs the kernel."""
        function = self.program.functions.get(self.entry)
        if function is None:
            raise NotJudged(f"the PTX has no kernel {self.entry}")
        if function.cluster != (self.launches.geometry.cluster, 1, 1):
            raise NotJudged(f"clusters of {function.cluster} blocks, unlike those of {self.launches.geometry}")
        if self.solver.model(self.solver.always) is None:
            raise NotJudged("no launch meets what is assumed, or z3 finds none")
        instructions = Instructions(
            self.words,
            self.launches.special,
            self.symbols,
            partial(self.launches.parameter, self.entry),
            lambda access: self.accesses.append(access) if not paths.quiet else None,
        )
        paths = Paths(self.program, instructions, self.words)
        paths.run(self.entry, TRUE, {})

    def doubts(self) -> Iterator[tuple[Access, Condition, str]]:
        """Yields the accesses that may be out of bounds or not aligned, under which conditions, and why they are not judged."""
        by_path: dict[Condition, list[tuple[Access, Condition, str]]] = {}
        for access in self.accesses:
            by_path.setdefault(access.path, []).extend((access, *need) for need in self._needs(access))
        for path, needs in by_path.items():
            wrong = self.solver.refuted(path, {i: needed for i, (_, needed, _) in enumerate(needs)})
            for i in sorted(wrong):
                access, needed, why = needs[i]
                yield access, negated(needed), f"{why}, and no proof is found"

    def _needs(self, access: Access) -> Iterator[tuple[Condition, str]]:
        """Yields what an access needs, and the words for it."""
        array = self._array(access)
        offset = access.address - array.address
        if array.size is None:
            raise NotJudged(f"the size of `{array.name}` is not declared", access.line)
        inside = [at_most(-offset), at_most(offset + access.size, array.size)]
        if array.parameter:
            inside.append(at_most(constant(1), array.base))
        what = "the bytes of a copy" if access.size.number is None else f"{access.size.number} bytes"
        yield (
            all_of(*inside),
            f"{'writes' if access.write else 'reads'} {what} of `{array.name}`, which must be inside",
        )
        for number, words in ((access.address, "an address that is"), (access.size, "a size that is")):
            rest = self.words.low_bits(number, access.unit.bit_length() - 1) if access.unit > 1 else constant(0)
            if rest.number != 0:
                yield equal(rest, 0), f"{access.opcode} of `{array.name}` needs {words} a multiple of {access.unit}"

    def _array(self, access: Access) -> Array:
        found = [
            a
            for atom, a in self.arrays.items()
            if access.address.terms.get((atom,)) == a.unit and access.address.unknowns & {atom}
        ]
        if len(found) != 1 or sum(found[0].base.unknowns <= set(m) for m in access.address.terms) != 1:
            raise NotJudged(
                "an address that is not that of an array plus an offset: it may be read from memory", access.line
            )
        return found[0]
