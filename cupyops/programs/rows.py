"""Kernels written from row programs, ``"m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s"``: their text, which is meant
to be read, and their geometry.

A value is of an element, of a row or of a column. ``sum``, ``max`` and ``min`` of one argument go over the row;
``column_sum`` goes over the rows. ``j`` is the column, ``N`` the length of a row.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch.kernel import Kernel
from cupyops.tiling.config import vector_width_for
from cupyops.tiling.rows import RowsConfig

from .expressions import Statement, arithmetic, calls, kernel_name, names_in

__all__ = ["ProgramConfig", "RowProgram", "config_of", "kernel_of", "text_of"]

REDUCTIONS = {"sum": "acc_t(0)", "max": "acc_t(-INFINITY)", "min": "acc_t(INFINITY)"}


@dataclass(frozen=True)
class RowProgram:
    """A row program and what its names are.

    Attributes:
        name: of the kernel.
        statements: in order.
        elements, rows, indices, columns: arrays that are read: (M, N), (M), whole numbers (M), (N).
        scalars: numbers.
        results: assigned names that are written; each may be left out of a call if there are several.
    """

    name: str
    statements: tuple[Statement, ...]
    elements: tuple[str, ...]
    rows: tuple[str, ...]
    indices: tuple[str, ...]
    columns: tuple[str, ...]
    scalars: tuple[str, ...]
    results: tuple[str, ...]

    def kinds(self) -> dict[str, str]:
        """Each assigned name: ``"element"``, ``"row"`` or ``"column"``.

        Raises:
            ValueError: a sum over rows within an expression, or one that is no result.
        """
        found = {s.name: s.kind for s in _steps(self)}
        return {s.name: found[s.name] for s in self.statements}

    @property
    def held(self) -> "Holding":
        """What a thread keeps of each access to a row."""
        steps = _steps(self)
        kinds = list(self.kinds().values())
        return Holding(
            packed=len(self.elements) + len(self.columns),
            wide=kinds.count("column") + len(_kept(self, steps)),
            stores=any(s.kind == "element" and s.name in self.results for s in steps),
        )


class Holding(NamedTuple):
    """What a thread keeps in registers of each access to a row.

    Attributes:
        packed: arrays that it has read.
        wide: values in the type of the arithmetic: sums over rows, and what several passes read.
        stores: results are of elements.
    """

    packed: int
    wide: int
    stores: bool


@dataclass(frozen=True)
class Step:
    """A statement, with reductions taken out of its expression; ``over`` is one's name, for those."""

    name: str
    kind: str
    expression: str
    over: str = ""


def _steps(program: RowProgram) -> list[Step]:
    by_element = {*program.elements, *program.columns, "j"}
    steps: list[Step] = []
    for statement in program.statements:
        whole = list(calls(statement.expression, ("column_sum",)))
        if whole:
            start, end, _, argument = whole[0]
            if statement.expression[:start].strip() or statement.expression[end:].strip() or len(whole) > 1:
                raise ValueError(f"{program.name}: in `{statement}`, column_sum must be the whole right-hand side")
            if statement.name not in program.results:
                raise ValueError(
                    f"{program.name}: `{statement}` is complete when all rows are, so no statement can read it"
                )
            steps.append(Step(statement.name, "column", argument, "column_sum"))
            continue
        expression, shift = statement.expression, 0
        for start, end, over, argument in calls(statement.expression, REDUCTIONS):
            inner = [over for *_, over, _ in calls(argument, REDUCTIONS)]
            if inner:
                raise ValueError(
                    f"{program.name}: in `{statement}`, {inner[0]} stands within {over}; give it a name before"
                )
            alone = not statement.expression[:start].strip() and not statement.expression[end:].strip()
            name = statement.name if alone else f"{statement.name}_{over}{len(steps)}"
            steps.append(Step(name, "row", argument, over))
            expression = expression[: start + shift] + name + expression[end + shift :]
            shift += len(name) - (end - start)
        if expression != statement.name:
            kind = "element" if by_element & set(names_in(expression)) else "row"
            steps.append(Step(statement.name, kind, expression))
            if kind == "element":
                by_element.add(statement.name)
    return steps


def text_of(program: RowProgram) -> str:
    """The kernel.

    Raises:
        ValueError: as :meth:`RowProgram.kinds`.
    """
    steps = _steps(program)
    kinds = {s.name: s.kind for s in steps}
    arrays = {
        **dict.fromkeys(program.elements, ("scalar_t", "(M, N)")),
        **{x: (f"{x}_t", "(M)") for x in program.rows},
        **dict.fromkeys(program.indices, ("long long", "(M)")),
        **{x: (f"{x}_t", "(N)") for x in program.columns},
    }
    shapes = {"element": ("scalar_t", "(M, N)"), "row": ("scalar_t", "(M)"), "column": ("acc_t", "(parts, N)")}
    null = " or null" if len(program.results) > 1 else ""
    inputs = [f"    const {kind}* __restrict__ {x}, // {shape}" for x, (kind, shape) in arrays.items()]
    outputs = [f"    {shapes[kinds[y]][0]}* __restrict__ {y}, // {shapes[kinds[y]][1]}{null}" for y in program.results]
    summed = [y for y in program.results if kinds[y] == "column"]
    sizes = [*(f"acc_t {s}" for s in program.scalars), "long long M", "long long N", "long long blocks"]
    sizes += ["long long parts"] if summed else []
    held = {x: arrays[x][0] for x in (*program.elements, *program.columns)}
    places = {x: f"{x} + row * N" if x in program.elements else x for x in held}
    vectors = [*held, *(y for y in program.results if kinds[y] == "element")]
    told = [f"{x}: {kind} {shape}" for x, (kind, shape) in arrays.items()]
    told += [f"{y}: {' '.join(shapes[kinds[y]])}" for y in program.results]
    lines = [
        *(f"// {s}" for s in program.statements),
        "//",
        "//   row by row, arithmetic in acc_t; " + ", ".join(told),
        '#include "row_passes.cuh"',
        "",
        f'extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) {kernel_name(program.name)}(',
        *_aligned([*inputs, *outputs]),
        f"    {', '.join(sizes)}) {{",
        "    const int n = static_cast<int>(N);",
        f"    const bool vectors = {' && '.join(f'aligned<VECTOR_WIDTH>({x})' for x in vectors)};",
        "    Group group;",
        *(f"    ColumnSums {y}_sums({y}, N);" for y in summed),
        "    for (long long first = blockIdx.x * static_cast<long long>(GROUPS); first < M; first += blocks * GROUPS) {",
        "        // Groups beyond the last row take part in the barriers with a row that they do not write.",
        "        const long long own = first + group_of_block(), row = own < M ? own : M - 1;",
        "        const bool mine = own < M;",
        *(f"        Held<{kind}> {x}_row;" for x, kind in held.items()),
        "        const auto load = [&](const Columns& at) {",
        *(f"            {x}_row.load({places[x]}, at, vectors);" for x in held),
        "        };",
        "        if (!STREAM) load(Columns{0, n});",
        *(f"        const acc_t {x}_of_row = convert<acc_t>({x}[row]);" for x in program.rows),
        *(f"        const int {x}_of_row = whole_number({x}[row]);" for x in program.indices),
        *_row(program, steps),
        "    }",
        *(f"    {y}_sums.store(n);" for y in summed),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _aligned(lines: Sequence[str]) -> list[str]:
    """Lines with their comments below one another."""
    width = max(line.index("//") for line in lines)
    return [line[: line.index("//")].ljust(width + 1) + line[line.index("//") :] for line in lines]


def _groups(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """What each pass over a row reduces, with the values of the row that follow from it: a new one begins where a reduction
    reads what the one before makes."""
    elements = {s.name: s for s in steps if s.kind == "element"}
    group: list[Step] = []
    for step in steps:
        if step.over in REDUCTIONS and {s.name for s in group} & _reach(step.expression, elements):
            yield group
            group = []
        if step.kind == "row":
            group.append(step)
    yield group


def _row(program: RowProgram, steps: Sequence[Step]) -> list[str]:
    """What is done with one row: passes for what is reduced, and one for what is made of its elements."""
    lines: list[str] = []
    kept = _kept(program, steps)
    made: set[str] = set()  # of those that are kept
    for group in _groups(steps):
        reduced = [s for s in group if s.over]
        if reduced:
            lines.extend(_reducing_pass(program, reduced, steps, kept, made))
        for s in group:
            if not s.over:
                lines.append(f"        const acc_t {s.name}_of_row = {_in_row(program, s.expression, steps)};")
            if s.name in program.results:
                given = f" && {s.name}" if len(program.results) > 1 else ""
                lines.append(
                    f"        if (mine{given} && first_of_row()) {s.name}[row] = convert<scalar_t>({s.name}_of_row);"
                )
    return lines + _last_pass(program, steps, made)


def _passes(program: RowProgram, steps: Sequence[Step]) -> list[list[str]]:
    """The expressions that each pass makes of elements."""
    last = [s for s in steps if s.name in program.results and s.kind in ("element", "column")]
    of_last = [s.expression if s.kind == "column" else s.name for s in last]
    return [*([s.expression for s in group if s.over] for group in _groups(steps)), of_last]


def _kept(program: RowProgram, steps: Sequence[Step]) -> frozenset[str]:
    """Values of elements that several passes read and that a function makes: to keep one takes a register, to make it again
    many instructions."""
    elements = {s.name: s for s in steps if s.kind == "element"}
    reached = [set().union(*(_reach(e, elements) for e in expressions)) for expressions in _passes(program, steps)]
    called = {s.name for s in elements.values() if re.search(r"[A-Za-z_]\w*\s*\(", s.expression)}
    return frozenset(name for name in called if sum(name in names for names in reached) > 1)


def _reach(expression: str, elements: Mapping[str, Step]) -> set[str]:
    """The names that an expression depends on, through those of elements."""
    found: set[str] = set()
    left = names_in(expression)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += names_in(elements[name].expression) if name in elements else []
    return found


def _values(
    program: RowProgram,
    expressions: Sequence[str],
    steps: Sequence[Step],
    keep: Collection[str] = (),
    made: Collection[str] = (),
) -> list[str]:
    """Declarations of what expressions of one element read: inputs from registers, then elements' names in order.

    Args:
        keep: names whose values later passes will read.
        made: those that an earlier pass has kept.
    """
    elements = {s.name: s for s in steps if s.kind == "element"}
    needed = set().union(*(_reach(e, elements) for e in expressions))
    rows = [*program.rows, *(s.name for s in steps if s.kind == "row")]
    lines = [
        *(f"const acc_t {x} = {x}_of_row;" for x in rows if x in needed),
        *(f"const int {x} = {x}_of_row;" for x in program.indices if x in needed),
        *(["const int j = column + k;"] if "j" in needed else []),
        *(f"const acc_t {x} = {x}_row.of[v][k];" for x in (*program.elements, *program.columns) if x in needed),
    ]
    for s in elements.values():
        if s.name in needed:
            again = f"STREAM ? {_written(s.expression)} : {s.name}_kept[v][k]"
            lines.append(f"const acc_t {s.name} = {again if s.name in made else _written(s.expression)};")
            if s.name in keep and s.name not in made:
                lines.append(f"if (!STREAM) {s.name}_kept[v][k] = {s.name};")
    return lines


def _written(expression: str) -> str:
    """The expression as the kernel has it."""
    return re.sub(r"(?<![\w.])exp(?=\s*\()", "exponential", arithmetic(expression))


def _in_row(program: RowProgram, expression: str, steps: Sequence[Step]) -> str:
    """An expression of a row's values, by their names in the kernel."""
    rows = {s.name for s in steps if s.kind == "row"} | {*program.rows, *program.indices}
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: f"{m[0]}_of_row" if m[0] in rows else m[0], _written(expression))


def _reducing_pass(
    program: RowProgram, reduced: Sequence[Step], steps: Sequence[Step], kept: Collection[str], made: set[str]
) -> list[str]:
    """One pass, and what the threads of the row make of it together; what it keeps is then among what is made."""
    expressions = [s.expression for s in reduced]
    body = _values(program, expressions, steps, kept, made)
    elements = {s.name: s for s in steps if s.kind == "element"}
    keeps = [s for s in kept if s not in made and any(s in _reach(e, elements) for e in expressions)]
    made.update(keeps)
    for s in reduced:
        own, value = f"{s.name}_of_row", _written(s.expression)
        joined = {"sum": f"+= {value}", "max": f"= larger({own}, {value})", "min": f"= smaller({own}, {value})"}
        body.append(f"{own} {joined[s.over]};")
    return [
        *(f"        acc_t {name}_kept[VECTORS][VECTOR_WIDTH];" for name in sorted(keeps)),
        *(f"        acc_t {s.name}_of_row = {REDUCTIONS[s.over]};" for s in reduced),
        *_each(body),
        *(f"        {s.name}_of_row = group.{s.over}({s.name}_of_row);" for s in reduced),
    ]


def _each(body: Sequence[str], before: Sequence[str] = (), behind: Sequence[str] = ()) -> list[str]:
    return [
        "        pass(n, load, [&](int v, int column) {",
        *(f"            {line}" for line in before),
        "#pragma unroll",
        "            for (int k = 0; k < VECTOR_WIDTH; ++k) {",
        *(f"                {line}" for line in body),
        "            }",
        *(f"            {line}" for line in behind),
        "        });",
    ]


def _last_pass(program: RowProgram, steps: Sequence[Step], made: Collection[str]) -> list[str]:
    """The results that are of elements, and the sums over rows."""
    results = [s for s in steps if s.name in program.results and s.kind in ("element", "column")]
    if not results:
        return []
    stored = [s for s in results if s.kind == "element"]
    summed = [s for s in results if s.kind == "column"]
    body = _values(program, [*(s.expression for s in summed), *(s.name for s in stored)], steps, made=made)
    body += [f"{s.name}_vector[k] = {s.name};" for s in stored]
    body += [f"if (mine) {s.name}_sums.add(v, k, column, {_written(s.expression)});" for s in summed]
    before = [f"acc_t {s.name}_vector[VECTOR_WIDTH];" for s in stored]
    behind = []
    for s in stored:
        given = f" && {s.name}_rows" if len(program.results) > 1 else ""
        behind.append(f"if (mine{given}) store_vector({s.name}_rows + row * N + column, {s.name}_vector, vectors);")
    # Within the pass a result's name is its value, so the array has another.
    arrays = [f"        scalar_t* const {s.name}_rows = {s.name};" for s in stored]
    return arrays + _each(body, before, behind)


@dataclass(frozen=True)
class ProgramConfig(RowsConfig):
    """How the rows of a program are cut.

    Attributes:
        stream: a row does not fit registers; each pass reads it again.
    """

    # Without defaults, so that each compilation says them.
    min_blocks: int = field(kw_only=True)
    full: bool = field(kw_only=True)
    stream: bool = field(kw_only=True)


@cache
def config_of(n: int, dtype: str, held: Holding) -> ProgramConfig:
    """The cut of rows of n elements.

    Two accesses a thread while that makes no more than 512 threads, four where a row is longer, or where it leaves nothing but
    values of the row: there the threads' talk is what takes time. The more registers an access takes, the fewer threads are
    to fit a multiprocessor, and the fewer bytes are on their way. Measured on an H200, 65536 rows of 4096 in bfloat16
    (of float32 only by what compiles without spills), as a share of a copy's bandwidth, by accesses and threads of a multiprocessor:

    ========================  =========  =======  =======  =======  =======
    program                   registers  2, 1024  2, 1536  4, 1024  4, 1536
    ========================  =========  =======  =======  =======  =======
    cross entropy             4          51.3     57.2     72.0     74.2
    RMSNorm                   8          92.4     97.9     96.4     71.4
    softmax                   12         79.6     95.9     88.5     47.3
    cross entropy, backward   12         77.6     90.1     84.7     38.3
    softmax, backward         16         100.9    93.6     77.2     33.0
    RMSNorm, backward         20         92.0     53.8     47.5     18.9
    ========================  =========  =======  =======  =======  =======
    """
    itemsize, acc = DTYPES[dtype].itemsize, DTYPES[DTYPES[dtype].acc].itemsize
    vector_width = vector_width_for(n, itemsize)
    registers = (held.packed * max(vector_width * itemsize, 4) + held.wide * vector_width * acc) // 4
    resident = 1536 if registers <= (12 if itemsize == 2 else 8) else 1024 if registers <= 20 else 640
    few = (4, 512, resident) if registers <= 4 and not held.stores else (2, 512, resident)
    for vectors, most, threads_at_once in (few, (4, 1024 if registers <= 12 else 512, 0)):
        config = ProgramConfig.of(n, vector_width, vectors, block=128, min_blocks=1, stream=False)
        if config.row_threads <= most:
            return replace(config, min_blocks=max(1, threads_at_once // config.block) if itemsize < 8 else 1)
    return ProgramConfig(512, 512, vector_width, 4, min_blocks=1, full=False, stream=True)


def kernel_of(program: RowProgram, text: str, config: ProgramConfig, dtype: str) -> Kernel:
    """The kernel for one cut of the rows, which is one for rows of this dtype."""
    choice = dict.fromkeys(("scalar_t", *(f"{x}_t" for x in (*program.rows, *program.columns))), dtype)
    return config.kernel(text, kernel_name(program.name), choice, geometry=config.persistent("blocks"), dtypes=FLOATS)
