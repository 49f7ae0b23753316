"""Row programs such as ``"m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s"``: their names, steps and passes.

Each name has one value for each element, for each row or for each column. ``sum``, ``max`` and ``min`` of one argument
reduce a row. ``column_sum`` sums over all rows. ``x[t]`` is the element of x in the column t. ``j`` is the index of the
column, and ``N`` is the length of a row. :mod:`cupyops.programs.row_source` generates the kernel, and
:mod:`cupyops.programs.row_config` chooses how rows are distributed among threads.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .expressions import ROUNDED, Statement, calls, names_in, with_names
from .names import type_in_source
from .tree import Node, bare, parsed, same, walk

__all__ = ["EXPS", "REDUCED", "REDUCTIONS", "RowProgram", "Step", "check_row_names", "reach"]

REDUCTIONS = ("sum", "max", "min")
EXPS = "exps"  # the reduction Σ exp(a - m) in one pass with m = max a
REDUCED = (*REDUCTIONS, EXPS)


@dataclass(frozen=True)
class RowProgram:
    """A row program and the roles of its names.

    Attributes:
        name: the name of the kernel.
        statements: the assignments, in order.
        elements: names of the arrays (M, N) that are read.
        rows: names of the arrays (M) that are read.
        indices: names of the arrays (M) of whole numbers that are read.
        columns: names of the arrays (N) that are read.
        scalars: names of the parameters that are numbers.
        results: assigned names that are written to arrays. If there are several results, a call may omit some of them.
        wide: results in the dtype of the arithmetic. The other results (M, N) and (M) have the dtype of ``lead``.
        like: pairs of a result and an input. The result has the input's dtype, if the program reads the input. Else a
            result (M) or (N) has the dtype of the arithmetic.
        leads: the input or result (M, N) whose dtype is ``scalar_t``; by default the first of ``elements``.
        over: a pair of a result (M, N) and an array of ``elements`` with the same memory and dtype, or nothing. The thread
            that writes an element is the only one that reads it, except ``x[t]``, which is read before the reductions.
        samples: inputs of the forward that have a row (N) for each sample; those that are read are in ``columns``.
        typed: results (M, N) of a dtype that the call chooses.
        stacks: pairs of an array and its parts: values of rows that are read, results (M), or sums over the rows. They lie in the
            array one after the other, in the dtype of the arithmetic, and a kernel has one parameter for them.
    """

    name: str
    statements: tuple[Statement, ...]
    elements: tuple[str, ...]
    rows: tuple[str, ...]
    indices: tuple[str, ...]
    columns: tuple[str, ...]
    scalars: tuple[str, ...]
    results: tuple[str, ...]
    wide: tuple[str, ...] = ()
    like: tuple[tuple[str, str], ...] = ()
    leads: str = ""
    over: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()
    stacks: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def of_samples(self, result: str) -> bool:
        """Returns whether a sum over rows is one for each sample."""
        return dict(self.like).get(result) in self.samples

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that are read, in the order of the kernel's parameters."""
        return (*self.elements, *self.rows, *self.indices, *self.columns)

    @property
    def whole(self) -> frozenset[str]:
        """The names that are whole numbers."""
        return frozenset(("j", "N", *self.indices))

    @property
    def lead(self) -> str:
        """The array (M, N) whose dtype is ``scalar_t``, an input or a result."""
        return self.leads or self.elements[0]

    def stack_of(self, name: str) -> tuple[str, int] | None:
        """Returns the array that a name is a part of, and the number of the part; None for other names."""
        return next(((stack, parts.index(name)) for stack, parts in self.stacks if name in parts), None)

    def type_of(self, name: str) -> str:
        """Returns the type in the CUDA source of an array's elements."""
        if name in self.inputs:
            if name in self.indices:
                return "long long"
            if self.stack_of(name):
                return "acc_t"
            return "scalar_t" if name == self.lead else type_in_source(name)
        if name in self.typed:
            return type_in_source(name)
        if name in self.wide or self.kinds()[name] == "column":
            return "acc_t"
        like = dict(self.like).get(name)
        if like in self.inputs:
            return self.type_of(like)
        return "acc_t" if like is not None and self.kinds()[name] == "row" else "scalar_t"

    @property
    def slots(self) -> dict[str, int]:
        """The place of each result (M, N) in a tile of rows: the number of the array of ``elements`` over which it is
        written, or of a place of its own after them. An array that is read at an index keeps its elements."""
        kinds, gathered = self.kinds(), {s.expression for s in self.steps if s.over == "at"}
        free = [i for i, x in enumerate(self.elements) if x not in gathered]
        found: dict[str, int] = {}
        for y in self.results:
            if kinds[y] == "element":
                same = [i for i in free if self.type_of(self.elements[i]) == self.type_of(y)]
                found[y] = (
                    same[0] if same else len(self.elements) + sum(i >= len(self.elements) for i in found.values())
                )
                free = [i for i in free if i != found[y]]
        return found

    def kinds(self) -> dict[str, str]:
        """Returns the kind of each assigned name: ``"element"``, ``"row"`` or ``"column"``.

        Raises:
            ValueError: ``column_sum`` is not the whole right-hand side, a later statement reads a sum over rows, or
                ``x[t]`` has another x than an array (M, N) or (N), or another t than an index.
        """
        found = {s.name: s.kind for s in self.steps}
        return {s.name: found[s.name] for s in self.statements}

    @cached_property
    def steps(self) -> tuple["Step", ...]:
        """The operations of the program, in order. Raises ``ValueError`` as :meth:`kinds`."""
        return tuple(_with_exps(_steps(self)))

    def groups(self) -> Iterator[list["Step"]]:
        """Yields, for each pass over a row, the reductions of the pass and the row values that are computed before or after it.

        A new pass begins at a reduction that reads what a reduction of the current pass decides.
        """
        elements = self.element_steps
        group: list[Step] = []
        decided: set[str] = set()
        for step in self.steps:
            later = bool(decided & reach(step.expression, elements))
            if later and step.over in REDUCTIONS:
                yield group
                group, decided = [], set()
            if step.kind == "row":
                group.append(step)
                if later or step.over in REDUCED:
                    decided.add(step.name)
        yield group

    @property
    def passes(self) -> int:
        """The number of passes over a row."""
        last = any(s.kind != "row" and s.name in self.results for s in self.steps)
        return last + sum(any(s.over in REDUCED for s in group) for group in self.groups())

    def _of_passes(self) -> list[list[str]]:
        """Returns what each pass reduces, and what the last one writes or sums over the rows: expressions, or names of elements."""
        last = [s for s in self.steps if s.name in self.results and s.kind in ("element", "column")]
        passes = [[s.expression for s in group if s.over in REDUCED] for group in self.groups()]
        return [*passes, [s.expression if s.kind == "column" else s.name for s in last]]

    @cached_property
    def operations(self) -> int:
        """The operations on an element, in all passes: ``DIVISION`` for a division, ``CALL`` for a function of CUDA. An
        expression of values of the row alone, in parentheses, is computed once."""
        elements, found, known = self.element_steps, 0, set[str]()
        by_element = {*self.elements, *self.columns, *elements, "j"}
        for expressions in self._of_passes():
            names = set[str]().union(*(reach(e, elements) for e in expressions)) & elements.keys() - known
            texts = [*(elements[x].expression for x in sorted(names)), *(e for e in expressions if e not in elements)]
            found += len(expressions) + sum(_operations(text, by_element) for text in texts)
            known |= names & self.kept
        return found + sum(CALL for s in self.steps if s.over == EXPS)

    @property
    def counted(self) -> bool:
        """Whether the program reads ``j``, the index of the column."""
        return any("j" in names_in(s.expression) for s in self.steps)

    @property
    def element_steps(self) -> dict[str, "Step"]:
        """The steps that compute a value for each element, by name."""
        return {s.name: s for s in self.steps if s.kind == "element"}

    @cached_property
    def kept(self) -> frozenset[str]:
        """The element values that are kept in registers: those that call a function and that several passes read.

        A kept value takes a register. Computing the value again takes many instructions. Rounding a value takes few
        instructions.
        """
        elements = self.element_steps
        reached = [set().union(*(reach(e, elements) for e in expressions)) for expressions in self._of_passes()]
        called = {s.name for s in elements.values() if any(map(_calls, walk(parsed(s.expression))))}
        return frozenset(name for name in called if sum(name in names for names in reached) > 1)


@dataclass(frozen=True)
class Step:
    """One operation of a program: an expression without reductions, or one reduction.

    Attributes:
        name: the assigned name.
        kind: ``"element"``, ``"row"`` or ``"column"``.
        expression: the expression, or the argument of the reduction.
        over: the name of the reduction; ``"exps"`` for the sum of :data:`EXPS`; ``"at"`` for ``x[t]``; or "".
        of: for ``"exps"`` the name of the maximum; for ``"at"`` the name of the index.
    """

    name: str
    kind: str
    expression: str
    over: str = ""
    of: str = ""


DIVISION, CALL = 8, 8  # A division and a function of CUDA take about as long as so many operations.
_OPERATORS = ("+", "-", "*", "?", "<", ">", "<=", ">=", "==", "!=")


def _operations(expression: str, by_element: set[str]) -> int:
    """Returns the operations of an expression on each element.

    Args:
        by_element: the names that have one value for each element.
    """

    def of(node: Node) -> int:
        of_row = not by_element & {part.word for part in walk(node) if part.kind == "name"}
        if of_row and node.kind in ("parentheses", "call", "cast"):
            return 0
        own = CALL if _calls(node) else DIVISION if node.word == "/" else 0
        own += node.kind in ("unary", "binary", "conditional") and node.word in _OPERATORS
        return own + sum(map(of, node.parts))

    return of(parsed(expression))


def _calls(node: Node) -> bool:
    """Returns whether a part calls a function. Rounding takes few instructions."""
    return (node.kind == "call" and node.word != ROUNDED) or node.kind == "cast"


def _steps(program: RowProgram) -> list[Step]:
    by_element = {*program.elements, *program.columns, "j"}
    steps: list[Step] = []
    for written in program.statements:
        statement = Statement(written.name, _with_gathered(program, written, steps))
        tree = bare(parsed(statement.expression))
        if whole := list(calls(statement.expression, ("column_sum",))):
            argument = whole[0][3]
            if tree.word != "column_sum" or len(whole) > 1:
                raise ValueError(f"{program.name}: in `{written}`, column_sum must be the whole right-hand side")
            if statement.name not in program.results:
                raise ValueError(f"{program.name}: `{written}` is a sum over all rows, which no statement can read")
            steps.append(Step(statement.name, "column", argument, "column_sum"))
            continue
        places: dict[tuple[int, int], str] = {}
        for start, end, over, argument in calls(statement.expression, REDUCTIONS):
            inner = [over for *_, over, _ in calls(argument, REDUCTIONS)]
            if inner:
                raise ValueError(
                    f"{program.name}: in `{written}`, {inner[0]} is inside {over}; assign {inner[0]} to a name first"
                )
            name = statement.name if (start, end) == (tree.start, tree.end) else f"{statement.name}__{over}{len(steps)}"
            steps.append(Step(name, "row", argument, over))
            places[start, end] = name
        expression = with_names(statement.expression, places)
        if bare(parsed(expression)).word != statement.name:
            kind = "element" if by_element & set(names_in(expression)) else "row"
            steps.append(Step(statement.name, kind, expression))
            if kind == "element":
                by_element.add(statement.name)
    return steps


def _with_gathered(program: RowProgram, statement: Statement, steps: list[Step]) -> str:
    """Returns the expression of a statement with a name for each ``x[t]``, and adds their steps."""
    places: dict[tuple[int, int], str] = {}
    for node in walk(parsed(statement.expression)):
        if node.kind == "index":
            array, index = node.word, node.parts[1].word
            if array not in (*program.elements, *program.columns) or index not in program.indices:
                where = f"{program.name}: in `{statement}`"
                raise ValueError(f"{where}, {array}[{index}] must be an input (M, N) or (N) at an input of `indices`")
            name = places[node.start, node.end] = f"{array}__at_{index}"
            if all(s.name != name for s in steps):
                steps.append(Step(name, "row", array, "at", index))
    return with_names(statement.expression, places)


def _with_exps(steps: Sequence[Step]) -> list[Step]:
    """Returns the steps with each sum of exp(a - m), where m is max(a), as a reduction in the pass of m.

    The sum is placed after m, and ``over`` is :data:`EXPS`. ``expression`` is a. A sum is found if its argument is
    ``exp(a - m)`` or a name that is assigned this expression.
    """
    elements = {s.name: s for s in steps if s.kind == "element"}
    found: dict[str, Step] = {}
    for step in steps:
        if step.over == "max":
            sums = [s for s in steps if s.over == "sum" and _is_exponential_of(s, step, elements)]
            if sums:
                found[sums[0].name] = Step(sums[0].name, "row", step.expression, EXPS, step.name)
    moved: list[Step] = []
    for step in steps:
        if step.name not in found:
            moved.append(step)
        moved += [s for s in found.values() if s.of == step.name]
    return moved


def _is_exponential_of(step: Step, most: Step, elements: Mapping[str, Step]) -> bool:
    """Returns whether a sum is of exp(a - m), where m is the maximum of a."""
    summed = bare(parsed(step.expression))
    if summed.kind == "name" and summed.word in elements:
        summed = bare(parsed(elements[summed.word].expression))
    if summed.kind != "call" or summed.word != "exp" or len(summed.parts) != 1:
        return False
    exponent = bare(summed.parts[0])
    if exponent.kind != "binary" or exponent.word != "-":
        return False
    a, m = exponent.parts
    return bare(m).kind == "name" and bare(m).word == most.name and same(a, parsed(most.expression))


def reach(expression: str, elements: Mapping[str, Step]) -> set[str]:
    """Returns the names on which an expression depends, directly or through names of elements."""
    found: set[str] = set()
    left = names_in(expression)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += names_in(elements[name].expression) if name in elements else []
    return found


def check_row_names(where: str, names: Collection[str]) -> None:
    """Raises if a name of a program is one that row programs have, or has two underscores, as the names of the generated
    source have.

    Raises:
        ValueError: one of ``names`` is taken.
    """
    for name in names:
        if name in ("j", "N"):
            raise ValueError(f"{where}: `{name}` is a name that the kernel's own text uses; call it `{name}_`")
        if "__" in name:
            raise ValueError(f"{where}: `{name}` has two underscores, as the names of the kernel's own text have")
