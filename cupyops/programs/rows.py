"""Generates readable CUDA sources from row programs such as ``"m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s"``.

Each name has one value for each element, for each row or for each column. ``sum``, ``max`` and ``min`` of one argument
reduce a row. ``column_sum`` sums over all rows. ``j`` is the index of the column, and ``N`` is the length of a row.
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
        wide: results of the row that are written in the accumulation dtype. All other results have the dtype of x.
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

    def kinds(self) -> dict[str, str]:
        """Returns the kind of each assigned name: ``"element"``, ``"row"`` or ``"column"``.

        Raises:
            ValueError: ``column_sum`` is not the whole right-hand side, or a later statement reads a sum over rows.
        """
        found = {s.name: s.kind for s in _steps(self)}
        return {s.name: found[s.name] for s in self.statements}

    @property
    def held(self) -> "Holding":
        """The values that a thread keeps in registers for each access to a row."""
        steps = _steps(self)
        kinds = list(self.kinds().values())
        return Holding(
            packed=len(self.elements) + len(self.columns),
            wide=kinds.count("column") + len(_kept(self, steps)),
            stores=any(s.kind == "element" and s.name in self.results for s in steps),
        )


class Holding(NamedTuple):
    """The values that a thread keeps in registers for each access to a row.

    Attributes:
        packed: the number of arrays whose elements are kept in their own dtype.
        wide: the number of values in ``acc_t``: sums over rows, and values that several passes read.
        stores: the program has a result (M, N).
    """

    packed: int
    wide: int
    stores: bool


@dataclass(frozen=True)
class Step:
    """One operation of a program: an expression without reductions, or one reduction.

    Attributes:
        name: the assigned name.
        kind: ``"element"``, ``"row"`` or ``"column"``.
        expression: the expression, or the argument of the reduction.
        over: the name of the reduction, or "".
    """

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
                raise ValueError(f"{program.name}: `{statement}` is a sum over all rows, which no statement can read")
            steps.append(Step(statement.name, "column", argument, "column_sum"))
            continue
        expression, shift = statement.expression, 0
        for start, end, over, argument in calls(statement.expression, REDUCTIONS):
            inner = [over for *_, over, _ in calls(argument, REDUCTIONS)]
            if inner:
                raise ValueError(
                    f"{program.name}: in `{statement}`, {inner[0]} stands within {over}; assign {inner[0]} to a name first"
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
    """Returns the CUDA source of the kernel.

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
    types = {y: "acc_t" if y in program.wide else shapes[kinds[y]][0] for y in program.results}
    outputs = [f"    {types[y]}* __restrict__ {y}, // {shapes[kinds[y]][1]}{null}" for y in program.results]
    summed = [y for y in program.results if kinds[y] == "column"]
    sizes = [*(f"acc_t {s}" for s in program.scalars), "long long M", "long long N", "long long blocks"]
    sizes += ["long long parts"] if summed else []
    held = {x: arrays[x][0] for x in (*program.elements, *program.columns)}
    places = {x: f"{x} + row * N" if x in program.elements else x for x in held}
    vectors = [*held, *(y for y in program.results if kinds[y] == "element")]
    told = [f"{x}: {kind} {shape}" for x, (kind, shape) in arrays.items()]
    told += [f"{y}: {types[y]} {shapes[kinds[y]][1]}" for y in program.results]
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
    """Returns the lines with their comments aligned."""
    width = max(line.index("//") for line in lines)
    return [line[: line.index("//")].ljust(width + 1) + line[line.index("//") :] for line in lines]


def _groups(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yields, for each pass over a row, the reductions of the pass and the row values that depend on them.

    A new pass begins at a reduction that reads a value of the current pass.
    """
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
    """Returns the CUDA code for one row: the passes that reduce, and the last pass, which stores the results (M, N)."""
    lines: list[str] = []
    kept = _kept(program, steps)
    made: set[str] = set()  # the kept values that an earlier pass has computed
    for group in _groups(steps):
        reduced = [s for s in group if s.over]
        if reduced:
            lines.extend(_reducing_pass(program, reduced, steps, kept, made))
        for s in group:
            if not s.over:
                lines.append(f"        const acc_t {s.name}_of_row = {_in_row(program, s.expression, steps)};")
            if s.name in program.results:
                given = f" && {s.name}" if len(program.results) > 1 else ""
                kind = "acc_t" if s.name in program.wide else "scalar_t"
                lines.append(
                    f"        if (mine{given} && first_of_row()) {s.name}[row] = convert<{kind}>({s.name}_of_row);"
                )
    return lines + _last_pass(program, steps, made)


def _passes(program: RowProgram, steps: Sequence[Step]) -> list[list[str]]:
    """Returns the expressions of elements that each pass computes."""
    last = [s for s in steps if s.name in program.results and s.kind in ("element", "column")]
    of_last = [s.expression if s.kind == "column" else s.name for s in last]
    return [*([s.expression for s in group if s.over] for group in _groups(steps)), of_last]


def _kept(program: RowProgram, steps: Sequence[Step]) -> frozenset[str]:
    """Returns the element values that are kept in registers: those that call a function and that several passes read.

    A kept value takes a register. Computing the value again takes many instructions.
    """
    elements = {s.name: s for s in steps if s.kind == "element"}
    reached = [set().union(*(_reach(e, elements) for e in expressions)) for expressions in _passes(program, steps)]
    called = {s.name for s in elements.values() if re.search(r"[A-Za-z_]\w*\s*\(", s.expression)}
    return frozenset(name for name in called if sum(name in names for names in reached) > 1)


def _reach(expression: str, elements: Mapping[str, Step]) -> set[str]:
    """Returns the names on which an expression depends, directly or through names of elements."""
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
    """Returns the declarations of all names that expressions of one element read: inputs, then computed names in order.

    Args:
        program: the program.
        expressions: the expressions.
        steps: the program's steps.
        keep: names whose values are kept for later passes.
        made: names whose values an earlier pass has kept.
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
    """Returns the CUDA code of an expression."""
    return re.sub(r"(?<![\w.])exp(?=\s*\()", "exponential", arithmetic(expression))


def _in_row(program: RowProgram, expression: str, steps: Sequence[Step]) -> str:
    """Returns the CUDA code of an expression of row values, with the names of row values in the kernel."""
    rows = {s.name for s in steps if s.kind == "row"} | {*program.rows, *program.indices}
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: f"{m[0]}_of_row" if m[0] in rows else m[0], _written(expression))


def _reducing_pass(
    program: RowProgram, reduced: Sequence[Step], steps: Sequence[Step], kept: Collection[str], made: set[str]
) -> list[str]:
    """Returns the CUDA code of one reducing pass, and adds the names that the pass keeps to ``made``."""
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
    """Returns the CUDA code of the last pass, which stores the results (M, N) and adds to the sums over rows."""
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
    # Within the pass, a result's name is the element's value. The array has another name.
    arrays = [f"        scalar_t* const {s.name}_rows = {s.name};" for s in stored]
    return arrays + _each(body, before, behind)


@dataclass(frozen=True)
class ProgramConfig(RowsConfig):
    """The config of a row program's kernel.

    Attributes:
        stream: a row does not fit registers, so each pass reads the row from memory.
    """

    # Without defaults, so that each compilation defines the three macros.
    min_blocks: int = field(kw_only=True)
    full: bool = field(kw_only=True)
    stream: bool = field(kw_only=True)


@cache
def config_of(n: int, dtype: str, held: Holding) -> ProgramConfig:
    """Returns the config for rows of n elements.

    A thread makes two accesses to a row if the row then has up to 512 threads, else four. A program that stores
    no element has four accesses a thread for short rows, too, since the reductions among threads dominate its time. The
    more registers an access takes, the fewer threads are resident on a multiprocessor, and the fewer bytes are in
    flight.

    The table holds percentages of a copy's bandwidth on an H200, for 65536 rows of 4096 elements in bfloat16, by the
    accesses of a thread and the resident threads of a multiprocessor. For float32, the numbers of threads are the
    largest that compile without register spills.

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
    """Returns the kernel of a config for rows of ``dtype``."""
    choice = dict.fromkeys(("scalar_t", *(f"{x}_t" for x in (*program.rows, *program.columns))), dtype)
    return config.kernel(text, kernel_name(program.name), choice, geometry=config.persistent("blocks"), dtypes=FLOATS)
