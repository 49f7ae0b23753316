"""Generates readable CUDA sources from row programs."""

import itertools
from collections.abc import Collection, Mapping, Sequence

from cupyops.compile.compiler import FEWER_BLOCKS

from .expressions import ROUNDED, arithmetic, kernel_name
from .names import in_source
from .rows import EXPS, RowProgram, Step, reach
from .samples import by_samples

__all__ = ["text_of"]

# The kind of each reduction in row_passes.cuh.
FOLDS = {"sum": "Sum", "max": "Max", "min": "Min", EXPS: "Exps"}

# The guard of groups of threads beyond the last row. They would read the last row, which an overwriting kernel writes. Where
# the program reduces, they have to, for the barriers; nothing is made of what they read.
_GROUPS_BEYOND = {
    False: (
        "        // Groups beyond the last row take part in the barriers with a row that they do not write.",
        "        const long long row__ = ::row_of_group(first__, M__);",
        "        const bool mine__ = ROW_EACH || first__ + group_of_block() < M__;",
    ),
    True: (
        "        // Groups beyond the last row end. No barrier of the block follows, and a group of a cluster has a row.",
        "        const long long row__ = first__ + group_of_block();",
        "        const bool mine__ = ROW_EACH || row__ < M__;",
        "        if (!mine__) break;",
    ),
}


def text_of(program: RowProgram, tiles: bool = False) -> str:
    """Returns the CUDA source of the kernel.

    The program's names are used as they are in the loop over the elements of an access, as :func:`in_source` writes them. All
    names of the source around them contain two underscores, which no name of a program does.

    Args:
        program: the program.
        tiles: the kernel has tiles of rows in shared memory, by ``row_tiles.cuh``.

    Raises:
        ValueError: as :meth:`RowProgram.kinds`.
    """
    steps = program.steps
    kinds = program.kinds()
    of_inputs = {**dict.fromkeys(program.elements, "(M__, N)"), **dict.fromkeys(program.columns, "(N)")}
    of_inputs = {x: of_inputs.get(x, "(M__)") for x in program.inputs}
    of_results = {
        y: {"element": "(M__, N)", "row": "(M__)", "column": "(parts__, N)"}[kinds[y]] for y in program.results
    }
    null = " or null" if len(program.results) > 1 else ""
    arrays = [
        f"    const {program.type_of(x)}* {_alone(program, x)}{in_source(x)}, // {s}" for x, s in of_inputs.items()
    ]
    arrays += [
        f"    {program.type_of(y)}* {_alone(program, y)}{in_source(y)}, // {s}{null}" for y, s in of_results.items()
    ]
    summed = [y for y in program.results if kinds[y] == "column"]
    sizes = [*(f"acc_t {in_source(s)}" for s in program.scalars), "long long M__", "long long N", "long long blocks__"]
    sizes += ["long long parts__"] if summed else []
    names = [*map(in_source, (*program.inputs, *program.results)), *(s.rpartition(" ")[2] for s in sizes)]
    vectors = [*program.elements, *program.columns, *(y for y in program.results if kinds[y] == "element")]
    told = [f"{x}: {program.type_of(x)} {shape}" for x, shape in {**of_inputs, **of_results}.items()]
    most = max([1, *(len(_reduced(group)) for group in program.groups())])
    exchange = f"PartsExchange<{most}>& exchange__" + (", TileArrivals& arrivals__" if tiles else "")
    passed = "exchange__, arrivals__" if tiles else "exchange__"
    only = "VECTOR_WIDTH == 1 || " if tiles else ""  # an access to one element is aligned
    lines = [
        *(f"// {s}" for s in program.statements),
        "//",
        "//   row by row, arithmetic in acc_t; " + ", ".join(told).replace("__", ""),
        f'#include "row_{"tiles" if tiles else "passes"}.cuh"',
        "",
        "template <typename Vectors> __device__ __forceinline__ void rows__(",
        f"    Vectors vectors__, {exchange},",
        *(line[: line.index(" //")] for line in arrays),
        f"    {', '.join(sizes).replace('long long N,', 'long long N__,')}) {{",
        "    const long long N = ::length_of_row(N__);",
        *(_tiled_rows if tiles else _rows)(program, steps, summed, most),
        "}",
        "",
        "template <typename... Arguments>",
        f"__device__ __noinline__ void unaligned_rows__({exchange}, Arguments... arguments) {{",
        f"    rows__(false, {passed}, arguments...);",
        "}",
        "",
        f"#ifndef {FEWER_BLOCKS}",
        f"#define {FEWER_BLOCKS} 0",
        "#endif",
        f'static_assert({FEWER_BLOCKS} < MIN_BLOCKS, "a block is resident");',
        "",
        f'extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS - {FEWER_BLOCKS}) '
        f"{kernel_name(program.name)}(",
        *_aligned(_stacked(program, arrays)),
        f"    {', '.join(sizes)}) {{",
        *_parts(program, kinds),
        f"    __shared__ PartsExchange<{most}> exchange__;",
        *(["    __shared__ TileArrivals arrivals__;"] if tiles else []),
        f"    if ({only}{' && '.join(f'::whole_accesses({in_source(x)})' for x in vectors)})",
        f"        rows__(Always(), {passed}, {', '.join(names)});",
        f"    else unaligned_rows__({passed}, {', '.join(names)});",
        "}",
    ]
    text = "\n".join(lines) + "\n"
    return by_samples(text, program) if program.samples else text


def _stacked(program: RowProgram, arrays: Sequence[str]) -> list[str]:
    """Returns the parameters of the kernel: one for all parts of an array, at the place of the first part."""
    lines: list[str] = []
    for name, line in zip((*program.inputs, *program.results), arrays, strict=True):
        stack = program.stack_of(name)
        if stack is None:
            lines.append(line)
        elif stack[1] == 0:
            of, count = stack[0], len(dict(program.stacks)[stack[0]])
            lines.append(
                line.replace(f"{in_source(name)},", f"{in_source(of)},")
                .replace("// (", f"// ({count}, ")
                .replace(" or null", "")
            )
    return lines


def _parts(program: RowProgram, kinds: Mapping[str, str]) -> list[str]:
    """Returns the CUDA code that gives each part of an array a pointer of its own."""
    found = []
    for stack, parts in program.stacks:
        of_row = "parts__ * N" if kinds.get(parts[0]) == "column" else "M__"
        const = "const " if parts[0] in program.inputs else ""
        found += [
            f"    {const}acc_t* const {in_source(x)} = {in_source(stack)} + {i} * {of_row};"
            for i, x in enumerate(parts)
        ]
    return found


def _alone(program: RowProgram, name: str) -> str:
    """Returns the qualifier of an array that shares its memory with no other array."""
    return "" if name in program.over else "__restrict__ "


def _rows(program: RowProgram, steps: Sequence[Step], summed: Sequence[str], most: int) -> list[str]:
    """Returns the CUDA code for all rows of a group: it loads a row, computes it, and goes on to the next."""
    reduces = any(s.over in FOLDS for s in steps)
    types = {x: program.type_of(x) for x in program.elements}
    places = itertools.accumulate((f" + sizeof({kind})" for kind in types.values()), initial="0")
    load = [
        f"::load_slice({x}__row, {in_source(x)} + row__ * N, ROW_SHARED * ({place}), at__, vectors__);"
        for x, place in zip(types, places, strict=False)
    ]
    rows = ", ".join(f"{in_source(x)} + row__ * N" for x in types)
    ahead = [f"{x}__next.load({in_source(x)} + next__ * N, columns__, vectors__);" for x in types]
    of_rows = (*program.rows, *program.indices)
    ahead += [f"{x}__ahead = {in_source(x)}[next__];" for x in of_rows]
    group = "blockIdx.x / CLUSTER * static_cast<long long>(GROUPS)"
    lines = [
        "    const Columns columns__ = columns_of_block(N);",
        *([f"    Team<{most}> team__(exchange__);"] if reduces else []),
        *(
            f"    ColumnValues<{program.type_of(x)}> {x}__columns({in_source(x)}, N, vectors__);"
            for x in program.columns
        ),
        *(f"    ColumnSums {y}__sums({in_source(y)}, N, {i});" for i, y in enumerate(summed)),
        *(f"    Held<{kind}> {x}__row, {x}__next;" for x, kind in types.items()),
        *(f"    {program.type_of(x)} {x}__ahead = {{}};" for x in of_rows),
        "    RowCopies copies__;",
    ]
    lines += [
        "    const auto load_next__ = [&](long long next__) {",
        *(f"        {line}" for line in ahead),
        "    };",
        f"    if (PREFETCH) load_next__(::row_of_group({group}, M__));",
        "    exchange__.init();",
        "    cluster_arrive();",
        "    bool others_began__ = false;",
        f"    for (long long first__ = {group}; ROW_EACH || first__ < M__; first__ += blocks__ * GROUPS) {{",
        *_GROUPS_BEYOND[bool(program.over) and not reduces],
        "        const auto load__ = [&](const Columns& at__) {",
        *(f"            {line}" for line in load),
        "        };",
        # The load of an index is the first of a chain of two. Whatever waits for it follows the loads of the row.
        *(f"        const auto {x}__loaded = PREFETCH ? {x}__ahead : {in_source(x)}[row__];" for x in of_rows),
        "        if (PREFETCH) {",
        *(f"            {x}__row = {x}__next;" for x in types),
        "            const long long next__ = first__ + blocks__ * GROUPS + group_of_block();",
        "            if (next__ < M__) load_next__(next__);",
        "        } else if (!STREAM) load__(columns__);",
        f"        copies__.copy(N, vectors__, {rows});",
    ]
    gathered = [s for s in steps if s.over == "at"]
    first = next(program.groups())
    before = _read_by_reductions(program, first)
    at = {
        x: f"{in_source(x)} + row__ * N" if x in program.elements else in_source(x)
        for x in (*program.elements, *program.columns)
    }
    return [
        *lines,
        *(f"        const acc_t {x}__row = ::convert<acc_t>({x}__loaded);" for x in program.rows),
        *(f"        int {x}__row = 0;" for x in program.indices),
        *(f"        acc_t {s.name}__row = 0;" for s in (*gathered, *before)),
        "        // The row's loads do not wait for these.",
        "        const auto gather__ = [&] {",
        *(f"            {x}__row = ::whole_number({x}__loaded);" for x in program.indices),
        *(f"            {s.name}__row = ::element_at({at[s.expression]}, {s.of}__row, N);" for s in gathered),
        *(f"            {s.name}__row = {_in_row(program, s.expression, steps)};" for s in before),
        "        };",
        *([] if _reduced(first) else ["        gather__();"]),
        "        if (!others_began__) cluster_wait();",
        "        others_began__ = true;",
        *_row(program, steps),
        "        if (FEW) break;",
        "    }",
        *(f"    {y}__sums.store(N);" for y in summed),
    ]


def _tiled_rows(program: RowProgram, steps: Sequence[Step], summed: Sequence[str], most: int) -> list[str]:
    """Returns the CUDA code for all tiles of a team: it waits for a tile, computes its rows, and stores it."""
    slots = program.slots
    loaded, own = program.elements, [y for y, slot in slots.items() if slot >= len(program.elements)]
    in_slots = [*((x, program.type_of(x)) for x in loaded), *((y, program.type_of(y)) for y in own)]
    gathered = [s for s in steps if s.over == "at"]
    first = next(program.groups())
    before = _read_by_reductions(program, first)
    at = {x: f"::in_tile<{program.type_of(x)}>({x}__at)" for x in loaded} | {x: in_source(x) for x in program.columns}
    stores = "true" if slots else "false"
    return [
        "    const Columns columns__ = columns_of_block(N);",
        *([f"    Team<{most}> team__(exchange__);"] if any(s.over in FOLDS for s in steps) else []),
        *(
            f"    ColumnValues<{program.type_of(x)}> {x}__columns({in_source(x)}, N, vectors__);"
            for x in program.columns
        ),
        *(f"    ColumnSums {y}__sums({in_source(y)}, N, {i});" for i, y in enumerate(summed)),
        f"    RowTiles<{len(loaded)}, {stores}, {', '.join(kind for _, kind in in_slots)}> tiles__(",
        f"        arrivals__, M__, N, {', '.join(in_source(x) for x, _ in in_slots)});",
        *(
            f"    {program.type_of(x)} {x}__next = {in_source(x)}[tiles__.row_ahead(-AT_ONCE_ROWS)];"
            for x in program.rows
        ),
        "    for (; tiles__.more(); tiles__.next()) {",
        "        tiles__.wait();",
        *(f"        const int {x}__tile = tiles__.place({i});" for i, (x, _) in enumerate(in_slots)),
        "        for (int r__ = 0; r__ < tiles__.count(); r__ += AT_ONCE_ROWS) {",
        "        // Threads without a row repeat the last row of the tile, since all threads must reach the barriers. They store nothing.",
        "        const bool mine__ = tiles__.has(r__);",
        "        const long long row__ = tiles__.row(r__);",
        *(f"        const auto {x}__loaded = {x}__next;" for x in program.rows),
        *(f"        {x}__next = {in_source(x)}[tiles__.row_ahead(r__)];" for x in program.rows),
        # What an index selects is read after the pass over the row.
        *(f"        const auto {x}__loaded = {in_source(x)}[row__];" for x in program.indices),
        *(f"        const int {x}__at = tiles__.template row_at<{kind}>({x}__tile, r__);" for x, kind in in_slots),
        *(f"        const int {y}__at = {loaded[slot]}__at;" for y, slot in slots.items() if slot < len(loaded)),
        *(f"        Held<{program.type_of(x)}> {x}__row;" for x in loaded),
        "        const auto load__ = [&](const auto& at__) {",
        *(f"            {x}__row.load({at[x]}, at__, vectors__);" for x in loaded),
        "        };",
        "        if (!STREAM) load__(columns__);",
        *(f"        const acc_t {x}__row = ::convert<acc_t>({x}__loaded);" for x in program.rows),
        *(f"        const int {x}__row = ::whole_number({x}__loaded);" for x in program.indices),
        *(f"        acc_t {s.name}__row = 0;" for s in (*gathered, *before)),
        "        const auto gather__ = [&] {",
        *(f"            {s.name}__row = ::element_at({at[s.expression]}, {s.of}__row, N);" for s in gathered),
        *(f"            {s.name}__row = {_in_row(program, s.expression, steps)};" for s in before),
        "        };",
        *([] if _reduced(first) else ["        gather__();"]),
        *_row(program, steps, "::in_tile<{type}>({name}__at)"),
        "        }",
        "        tiles__.computed();",
        *(f"        tiles__.store({slot}, {in_source(y)});" for y, slot in slots.items()),
        "    }",
        "    tiles__.end();",
        *(f"    {y}__sums.store(N);" for y in summed),
    ]


def _aligned(lines: Sequence[str]) -> list[str]:
    """Returns the lines with their comments aligned."""
    width = max(line.index("//") for line in lines)
    return [line[: line.index("//")].ljust(width + 1) + line[line.index("//") :] for line in lines]


def _reduced(group: Sequence[Step]) -> list[Step]:
    """Returns the reductions of a pass. The sum of exponentials follows its maximum."""
    return [s for s in group if s.over in FOLDS]


def _read_by_reductions(program: RowProgram, group: Sequence[Step]) -> list[Step]:
    """Returns the row values of a pass that its own reductions read: they are computed before the pass."""
    elements = program.element_steps
    read = set[str]().union(*(reach(s.expression, elements) for s in _reduced(group)))
    found: list[Step] = []
    for s in reversed(group):
        if not s.over and s.name in read:
            found.insert(0, s)
            read |= reach(s.expression, elements)
    return found


def _row(program: RowProgram, steps: Sequence[Step], to: str = "{result} + row__ * N") -> list[str]:
    """Returns the CUDA code for one row: the passes that reduce, and the last pass, which stores the results (M, N).

    Args:
        program: the program.
        steps: the program's steps.
        to: the address of a result's row, by the ``name`` and the ``type`` of the result, and its name in the source.
    """
    lines: list[str] = []
    made: set[str] = set()  # the kept values that an earlier pass has computed
    for group in program.groups():
        before = _read_by_reductions(program, group)
        if reduced := _reduced(group):
            first = not lines
            lines.extend(_begin_pass(program, lines))
            if not first:
                lines += [
                    f"        const acc_t {s.name}__row = {_in_row(program, s.expression, steps)};" for s in before
                ]
            lines.extend(_reducing_pass(program, reduced, steps, made, first))
        for s in group:
            if not s.over and s not in before:
                lines.append(f"        const acc_t {s.name}__row = {_in_row(program, s.expression, steps)};")
            if s.name in program.results:
                given = f" && {in_source(s.name)}" if len(program.results) > 1 else ""
                value = f"::convert<{program.type_of(s.name)}>({s.name}__row)"
                lines.append(f"        if (mine__{given} && ::first_of_row()) {in_source(s.name)}[row__] = {value};")
    last = _last_pass(program, steps, made, to)
    return [*lines, *(_begin_pass(program, lines) if last else []), *last]


def _begin_pass(program: RowProgram, before: Sequence[str]) -> list[str]:
    """Returns the CUDA code at the beginning of a pass that is not the first."""
    return [f"        if (!STREAM) {x}__row.begin_pass();" for x in program.elements] if before else []


def _values(
    program: RowProgram,
    expressions: Sequence[str],
    steps: Sequence[Step],
    keep: Collection[str] = (),
    made: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Returns the loads of an access, and the declarations of all names that expressions of one element read: inputs,
    then computed names in order.

    Args:
        program: the program.
        expressions: the expressions.
        steps: the program's steps.
        keep: names whose values are kept for later passes.
        made: names whose values an earlier pass has kept.
    """
    elements = program.element_steps
    needed = set().union(*(reach(e, elements) for e in expressions))
    rows = [*program.rows, *(s.name for s in steps if s.kind == "row")]
    columns = [x for x in program.columns if x in needed]
    lines = [
        *(f"const acc_t {in_source(x)} = {x}__row;" for x in rows if x in needed),
        *(f"const int {in_source(x)} = {x}__row;" for x in program.indices if x in needed),
        *(["const int j = column__ + k__;"] if "j" in needed else []),
        *(f"const acc_t {in_source(x)} = {x}__row.of[v__][k__];" for x in program.elements if x in needed),
        *(f"const acc_t {in_source(x)} = {x}__access[k__];" for x in columns),
    ]
    for s in elements.values():
        if s.name in needed:
            written = _written(program, s.expression)
            again = f"STREAM ? {written} : {s.name}__kept[v__][k__]"
            lines.append(f"const acc_t {in_source(s.name)} = {again if s.name in made else written};")
            if s.name in keep and s.name not in made:
                lines.append(f"if (!STREAM) {s.name}__kept[v__][k__] = {in_source(s.name)};")
    return [f"const auto {x}__access = {x}__columns.take(v__, column__, vectors__);" for x in columns], lines


def _written(program: RowProgram, expression: str, rows: Collection[str] = ()) -> str:
    """Returns the CUDA code of an expression.

    Args:
        program: the program.
        expression: the expression.
        rows: names that have one value for each row, where the code is not in the loop over the elements.
    """

    def named(name: str) -> str:
        if name == "N" or name == "j":
            return name
        return f"{name}__row" if name in rows else in_source(name)

    functions = {ROUNDED: "::rounded_to_scalar", "exp": "::exponential"}
    return arithmetic(expression, program.whole, named, functions)


def _in_row(program: RowProgram, expression: str, steps: Sequence[Step]) -> str:
    """Returns the CUDA code of an expression of row values, with the names of row values in the kernel."""
    rows = {s.name for s in steps if s.kind == "row"} | {*program.rows, *program.indices}
    return _written(program, expression, rows)


def _reducing_pass(
    program: RowProgram, reduced: Sequence[Step], steps: Sequence[Step], made: set[str], first: bool
) -> list[str]:
    """Returns the CUDA code of one reducing pass, and adds the names that the pass keeps to ``made``."""
    expressions = [s.expression for s in reduced]
    loads, body = _values(program, expressions, steps, program.kept, made)
    elements = program.element_steps
    keeps = [s for s in program.kept if s not in made and any(s in reach(e, elements) for e in expressions)]
    made.update(keeps)
    with_exps = {s.of: s for s in reduced if s.over == EXPS}
    table, access = f"{reduced[0].name}__folded", f"{reduced[0].name}__access"
    places = {s.name: f"[{i}]" for i, s in enumerate(reduced)}
    before, behind = [*loads, f"auto& {access} = {table}.begin_access(v__);"], []
    for s in reduced:
        own, value = access + places[s.name], _written(program, s.expression)
        if s.name in with_exps:
            before.append(f"acc_t {s.name}__values[VECTOR_WIDTH];")
            body.append(f"{s.name}__values[k__] = {value};")
            place = places[with_exps[s.name].name].strip("[]")
            behind.append(f"{table}.add_exps<{place}>(v__, {s.name}__values, {access});")
        elif s.over != EXPS:
            joined = {"sum": f"+= {value}", "max": f"= ::larger({own}, acc_t({value}))"}
            joined["min"] = f"= ::smaller({own}, acc_t({value}))"
            body.append(f"{own} {joined[s.over]};")
    behind.append(f"{table}.end_access(v__);")
    kinds = ", ".join(f"Fold::{FOLDS[s.over]}" for s in reduced)
    totals = {name: f"{table}.total[0]{place}" for name, place in places.items()}
    return [
        *(f"        acc_t {name}__kept[VECTORS][VECTOR_WIDTH];" for name in sorted(keeps)),
        f"        Folded<{kinds}> {table};",
        *_each(body, before, behind, f", [&] {{ {table}.end_turn(); }}, {'gather__' if first else '[] {}'}"),
        f"        team__.reduce({table});",
        *(
            f"        const acc_t {s.name}__row = "
            + (f"::exps_of_row({totals[s.of]}, {totals[s.name]});" if s.over == EXPS else f"{totals[s.name]};")
            for s in reduced
        ),
    ]


def _each(body: Sequence[str], before: Sequence[str] = (), behind: Sequence[str] = (), others: str = "") -> list[str]:
    return [
        "        ::pass(N, load__, [&](int v__, int column__) {",
        *(f"            {line}" for line in before),
        "#pragma unroll",
        "            for (int k__ = 0; k__ < VECTOR_WIDTH; ++k__) {",
        *(f"                {line}" for line in body),
        "            }",
        *(f"            {line}" for line in behind),
        f"        }}{others});",
    ]


def _last_pass(program: RowProgram, steps: Sequence[Step], made: Collection[str], to: str) -> list[str]:
    """Returns the CUDA code of the last pass, which stores the results (M, N) and adds to the sums over rows."""
    results = [s for s in steps if s.name in program.results and s.kind in ("element", "column")]
    if not results:
        return []
    stored = [s for s in results if s.kind == "element"]
    summed = [s for s in results if s.kind == "column"]
    loads, body = _values(program, [*(s.expression for s in summed), *(s.name for s in stored)], steps, made=made)
    body += [f"{s.name}__values[k__] = {in_source(s.name)};" for s in stored]
    body += [f"if (mine__) {s.name}__sums.add(v__, k__, column__, {_written(program, s.expression)});" for s in summed]
    before = [*loads, *(f"acc_t {s.name}__values[VECTOR_WIDTH];" for s in stored)]
    behind = []
    for s in stored:
        given = " && ".join(
            [*(["mine__"] if summed else []), *([in_source(s.name)] if len(program.results) > 1 else [])]
        )
        at = to.format(name=s.name, type=program.type_of(s.name), result=in_source(s.name))
        store = f"::store_vector({at} + column__, {s.name}__values, vectors__);"
        behind.append(f"if ({given}) {store}" if given else store)
    # One branch around the whole pass: with a branch in each access, the compiler could not move the loads of arrays
    # (N) of the next accesses before the branch. With sums over the rows these arrays are in registers, and one branch
    # around the pass would take more registers.
    return [*([] if summed else ["        if (mine__)"]), *_each(body, before, behind)]
