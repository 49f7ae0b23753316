"""The mutants of generated row programs: of the header that all of them include, and of the loop generated around it.

A row program has no text in ``kernels_cu``. The tests of its strategies, each with a config of its own, are in
``tests/programs/test_program_kernels.py`` and ``test_program_few_rows.py``. Those of rows in shared memory are in
``tests/programs/test_shared_row_kernels.py``, and those of tiles in ``tests/programs/test_tiled_row_kernels.py``.
"""

ROWS, COPIES, SOURCE = "row_passes.cuh", "row_copies.cuh", "cupyops/programs/row_source.py"
FOLDS, CUT, TILES = "folds.cuh", "rows.cuh", "row_tiles.cuh"

Fault = tuple[str, str, str, str]  # what, file, old, new

# Groups of faults, each with the tests of its strategies.
ROW_PROGRAMS: list[tuple[str, list[Fault]]] = [
    # Rows in registers, in every division among threads, blocks and clusters; the next row; sums over the rows.
    (
        "(sums_over_rows or another_order) and not cpu-40000",
        [
            ("groups beyond the last row read beyond it", ROWS, ": rows - 1;", ": first + group_of_block();"),
            ("rows of a warp reduced together", ROWS, "(OWNERS < 32 ? OWNERS : 32)", "(32)"),
            (
                "the last row added once more to the sums over rows",
                SOURCE,
                '"if (mine__) {s.name}__sums.add(v__, k__, column__, {_written(program, s.expression)});"',
                '"{s.name}__sums.add(v__, k__, column__, {_written(program, s.expression)});"',
            ),
            ("warps of a block exchange nothing", ROWS, "if constexpr (PARTS > 1) {", "if constexpr (CLUSTER > 1) {"),
            (
                "blocks of a cluster exchange nothing",
                ROWS,
                "if constexpr (PARTS > 1) {",
                "if constexpr (PARTS > 1 && CLUSTER == 1) {",
            ),
            ("one table for all reductions", ROWS, "all_gather(known, turn++)", "all_gather(known, turn)"),
            ("a part sent before the other block began", SOURCE, '"        if (!others_began__) cluster_wait();",', ""),
            ("arrivals not initialised", SOURCE, '"    exchange__.init();",', ""),
            ("access beyond the row", ROWS, "if (columns.has(v)) f(v, columns.of(v));", "f(v, columns.of(v));"),
            (
                "next row loaded beyond the last one",
                SOURCE,
                '"            if (next__ < M__) load_next__(next__);"',
                '"            load_next__(next__);"',
            ),
            (
                "next row of the next block",
                SOURCE,
                '"            const long long next__ = first__ + blocks__ * GROUPS + group_of_block();"',
                '"            const long long next__ = first__ + GROUPS + group_of_block();"',
            ),
            ("columns of the first access for all", ROWS, "return held[COLUMNS_HELD ? v : 0];", "return held[0];"),
            (
                "columns of the first block for all",
                ROWS,
                "load_packed(columns + at.of(v), vectors);",
                "load_packed(columns + place_of(v), vectors);",
            ),
            ("sums of all accesses in one", ROWS, "held[STREAM ? 0 : v][k] += value", "held[0][k] += value"),
            ("first group alone stored", ROWS, "if (group == GROUPS - 1 && part", "if (group == 0 && part"),
            ("groups summed without a barrier", ROWS, "if (GROUPS > 1) __syncthreads();", ""),
            (
                "groups summed backwards",
                ROWS,
                "if (group_of_block() == group)",
                "if (group_of_block() == GROUPS - 1 - group)",
            ),
            ("a sum begins with what is there", ROWS, "own += group ? sum : acc_t(0);", "own += sum;"),
            ("a column beyond the row stored", ROWS, "&& part && at.has(v)) part", "&& part) part"),
            ("sums of another cluster", ROWS, "partial + blockIdx.x / CLUSTER * n", "partial + blockIdx.x * n"),
            ("sums of all blocks in one row", ROWS, "partial + blockIdx.x / CLUSTER * n", "partial"),
        ],
    ),
    # Rows that are read in every pass, and their sums in shared and in global memory.
    (
        "at_every_cut and (33000-89 or 190000)",
        [
            ("slices too close", ROWS, "; at.start += CLUSTER * SLICE) {\n if", "; at.start += SLICE) {\n if"),
            ("last slice left out", ROWS, "if (STREAM && at.start >=", "if (STREAM && at.start + SLICE >="),
            (
                "a streamed row loaded once",
                ROWS,
                "if (STREAM) load(columns);",
                "if (STREAM && columns.start < SLICE) load(columns);",
            ),
            (
                "columns of the first slice for all",
                ROWS,
                "load_packed(columns + column, vectors);",
                "load_packed(columns + column % (CLUSTER * SLICE), vectors);",
            ),
            ("sums share memory", ROWS, "+ index * SUMS_SHARED + threadIdx.x", "+ threadIdx.x"),
            ("shared sums not zeroed", ROWS, "shared[i * ROW_THREADS] = 0;", ";"),
            ("shared sums of all slices in one", ROWS, "(column / (CLUSTER * SLICE) * VECTORS + v)", "(v)"),
            (
                "last slice of shared sums not stored",
                ROWS,
                "SUMS_SHARED && part)\n            for (Columns at = columns_of_block(n); at.start < at.n;",
                "SUMS_SHARED && part)\n            for (Columns at = columns_of_block(n); at.start + CLUSTER * SLICE < at.n;",
            ),
            ("last row for all in global memory", ROWS, "part[column + k] += value;", "part[column + k] = value;"),
        ],
    ),
    # Reductions among lanes, warps and blocks.
    (
        "forgets_a_part",
        [
            ("first row of a block alone stored", ROWS, "threadIdx.x % ROW_THREADS == 0 &&", "threadIdx.x == 0 &&"),
            (
                "values of rows stored by the other blocks of a cluster",
                ROWS,
                "block_of_cluster() == 0;",
                "block_of_cluster() != 0;",
            ),
            ("parts beyond those of a warp left out", ROWS, "int p = 1; p < EACH_READS; ++p", "int p = 1; p < 1; ++p"),
            ("parts of a thread for those of the row", ROWS, "fold_lanes<READERS, FOLDS...>(v);", ""),
            ("a part left out", ROWS, "part_read(p) < PARTS ?", "part_read(p) < PARTS - 1 ?"),
            ("one value for all of a part", ROWS, "parts[part_read(p)].of[i]", "parts[part_read(p)].of[0]"),
            ("minimum for maximum among lanes", FOLDS, "larger(v[i], __shfl", "smaller(v[i], __shfl"),
            ("maximum for minimum among lanes", FOLDS, "smaller(v[i], __shfl", "larger(v[i], __shfl"),
            ("maximum for minimum among parts", ROWS, "smaller(v[i], read[p][i])", "larger(v[i], read[p][i])"),
            ("maximum of parts not taken", ROWS, "v[i] = larger(v[i], read[p][i])", "v[i] = read[p][i]"),
            ("sum of parts not taken", ROWS, "v[i] += read[p][i];", "v[i] = read[p][i];"),
            ("exponentials not summed over lanes", FOLDS, "== Fold::Sum || folds[i] == Fold::Exps)", "== Fold::Sum)"),
            (
                "exponentials of lanes not rescaled",
                FOLDS,
                "v[i] = fma(v[i], exponential(own[i - 1] - origin_of(v[i - 1])), acc_t(0));",
                ";",
            ),
            (
                "exponentials of lanes rescaled by another value",
                FOLDS,
                "fma(v[i], exponential(own[i - 1]",
                "fma(v[i], exponential(own[0]",
            ),
            (
                "exponentials of parts not rescaled",
                ROWS,
                "read[p][i] * exponential(read[p][i - 1] - origin_of(v[i - 1]));",
                "read[p][i];",
            ),
            (
                "exponentials of parts rescaled by another value",
                ROWS,
                "exponential(read[p][i - 1] -",
                "exponential(read[p][0] -",
            ),
            ("exponentials of a streamed row not rescaled", FOLDS, "exps * exponential(most - origin);", "exps;"),
            ("exponentials of the accesses before not rescaled", FOLDS, "fma(v[i], scale, next[i])", "v[i] + next[i]"),
            ("exponentials of an access not rescaled", FOLDS, "fma(next[i], scale, v[i]);", "v[i] + next[i];"),
            ("exponentials of an access left out", FOLDS, "fma(next[i], scale, v[i]);", "v[i];"),
            (
                "the part with the greater maximum rescaled",
                FOLDS,
                "own[i - 1] < next[i - 1];",
                "own[i - 1] > next[i - 1];",
            ),
            ("sum of an access left out", FOLDS, "v[i] += next[i];", ";"),
            ("maximum of an access left out", FOLDS, "v[i] = larger(v[i], next[i]);", ";"),
            ("minimum of an access left out", FOLDS, "v[i] = smaller(v[i], next[i]);", ";"),
            ("greatest of an access for that of the row", FOLDS, "first ? a[0] : larger(most, a[0]);", "a[0];"),
            ("an infinite maximum gives a number", FOLDS, "return exps + (most - most);", "return exps;"),
            ("a maximum begins with 0", FOLDS, "FOLD == Fold::Max ? acc_t(-INFINITY)", "FOLD == Fold::Max ? acc_t(0)"),
            ("a minimum begins with 0", FOLDS, "FOLD == Fold::Min ? acc_t(INFINITY)", "FOLD == Fold::Min ? acc_t(0)"),
            (
                "short exponential for float32",
                FOLDS,
                "sizeof(scalar_t) == 2) return fast",
                "sizeof(scalar_t) <= 4) return fast",
            ),
        ],
    ),
    # Few rows: several threads in place of one.
    (
        "few_rows_over_more_threads and (1024 or 4096)",
        [
            (
                "accesses of neighbours joined",
                ROWS,
                "read[v][i] = of[i][v][owner];",
                "read[v][i] = of[i][v][owner / 2 * 2];",
            ),
            ("the first access for all", ROWS, "read[v][i] = of[i][v][owner];", "read[v][i] = of[i][0][owner];"),
            (
                "accesses joined without a barrier",
                ROWS,
                "folded.total[v][i];\n __syncthreads();",
                "folded.total[v][i];",
            ),
            ("one table for all spread reductions", ROWS, "units[spread_turn++ % 2]", "units[0]"),
            ("the last access left out", ROWS, "v < UNITS; ++v) join", "v < UNITS - 1; ++v) join"),
        ],
    ),
    # Few rows: a thread's turns at once, and the results of warps joined in each thread.
    (
        "turns_at_once or (few_rows_over_more_threads and 4096)",
        [
            ("origin of nothing is -inf", FOLDS, "return most == acc_t(-INFINITY) ? acc_t(0) : most;", "return most;"),
            (
                "accesses of a thread side by side",
                ROWS,
                "of[i][v * SPREAD + part][owner]",
                "of[i][part * OWN + v][owner]",
            ),
            ("every few row taken to fill its accesses", ROWS, "FEW && FULL && !STREAM ?", "FEW && !STREAM ?"),
            ("a unit for each access", FOLDS, "UNITS_APART && v % EACH_UNIT == 0);", "UNITS_APART);"),
            ("turns without an end", ROWS, "        ended();\n", ""),
            (
                "the units before left out",
                FOLDS,
                "if (SPREAD == 1 && begun) join<FOLDS...>(total[0], values);",
                "if (false) ;",
            ),
            ("a turn begins with the values of the one before", FOLDS, "if (STREAM) begin_turn();", ""),
            ("exponents of the turn before beyond the row", FOLDS, "if (UNIT_AT_ONCE && !FULL)", "if (false)"),
            (
                "the maximum of a unit is that of its first access",
                FOLDS,
                "v < EACH_UNIT; ++v)\n#pragma unroll\n for (int k = v == 0;",
                "v < 1; ++v)\n#pragma unroll\n for (int k = v == 0;",
            ),
            (
                "exponentials of a unit's first access alone",
                FOLDS,
                "exps += exponential(exponents[i][(first + v) % AT_ONCE][k] - origin);",
                "exps += v ? acc_t(0) : exponential(exponents[i][(first + v) % AT_ONCE][k] - origin);",
            ),
            (
                "units of a thread side by side",
                CUT,
                "(v / EACH_UNIT * SPREAD + thread / OWNERS)",
                "(thread / OWNERS * (VECTORS / EACH_UNIT) + v / EACH_UNIT)",
            ),
            ("one unit for all of a thread", CUT, "(v / EACH_UNIT * SPREAD + thread / OWNERS)", "(thread / OWNERS)"),
            ("accesses of a unit on one another", CUT, "+ v % EACH_UNIT) * OWNERS", ") * OWNERS"),
            (
                "exponentials of warps not rescaled",
                FOLDS,
                "read[p][i] = fma(read[p][i], exponential(read[p][i - 1] - origin_of(v[i - 1])), acc_t(0));",
                ";",
            ),
            (
                "half of the warps left out",
                FOLDS,
                "int step = READERS / 2; step > 0; step /= 2)\n#pragma unroll\n for (int p",
                "int step = READERS / 4; step > 0; step /= 2)\n#pragma unroll\n for (int p",
            ),
            ("maximum of warps not taken", FOLDS, "larger(tree[p], tree[p + step])", "tree[p]"),
            ("minimum of warps not taken", FOLDS, "smaller(tree[p], tree[p + step])", "tree[p]"),
            (
                "warps beyond the row's read",
                ROWS,
                "parts[p < PARTS ? p : 0].of[i] : none[i]",
                "parts[0].of[i] : none[i]",
            ),
        ],
    ),
    # Elements at an index, and rows at any address.
    (
        "at_an_index or an_index_beyond or bits_of_a_row",
        [
            ("an element read before its time", ROWS, "if (first) loaded();\n first = false;", ""),
            (
                "an element behind the row",
                ROWS,
                "(column) < static_cast<unsigned>(n)",
                "(column) <= static_cast<unsigned>(n)",
            ),
            (
                "an element before the row",
                ROWS,
                "static_cast<unsigned>(column) < static_cast<unsigned>(n)",
                "column < n",
            ),
            ("an index cut to 32 bits", ROWS, "-2147483647 : 2147483647;", "-2147483647 : low;"),
            ("a negative index cut to 32 bits", ROWS, "i < 0 ? -2147483647 :", "i < 0 ? low :"),
            ("alignment not asked for", ROWS, "% BYTES == 0;", "% sizeof(T) == 0;"),
        ],
    ),
]

# Rows in shared memory.
SHARED_ROWS: list[Fault] = [
    ("slices of a cluster read at the row's columns", ROWS, "at.start / (CLUSTER * SLICE) * SLICE;", "at.start;"),
    ("the first slice read for all", ROWS, "slices + at.start / (CLUSTER * SLICE) * SLICE;", "slices;"),
    ("slices copied to one place", COPIES, "at.start += CLUSTER * SLICE, to += SLICE)", "at.start += CLUSTER * SLICE)"),
    ("the last slice copied whole", COPIES, "at.n - at.start < SLICE ? at.n - at.start : SLICE", "SLICE"),
    ("arrays copied to one place", COPIES, "to += ROW_SHARED * sizeof(In)", "to += 0"),
    (
        "the second array read from the first",
        SOURCE,
        'f"::load_slice({x}__row, {in_source(x)} + row__ * N, ROW_SHARED * ({place}), at__, vectors__);"',
        'f"::load_slice({x}__row, {in_source(x)} + row__ * N, 0, at__, vectors__);"',
    ),
    ("a barrier for each row", COPIES, "if (turn == 0) arrival_init(&arrival, 1);", "arrival_init(&arrival, 1);"),
    ("the second row waits for the first one's phase", COPIES, "turn++ % 2);", "0 * turn++);"),
    ("the next row copied over the row that is read", COPIES, "if (turn > 0) {", "if (turn > 9) {"),
    ("every slice copied from the beginning of the row", COPIES, "bulk_load(to, row + at.start,", "bulk_load(to, row,"),
]

# Tiles of rows.
TILED_ROWS: list[Fault] = [
    (
        "a tile loaded from its first whole piece on",
        TILES,
        "of == 0 ? up(all.begin) : down(all.begin)",
        "up(all.begin)",
    ),
    (
        "a tile loaded up to its last whole piece",
        TILES,
        "of == tiles - 1 ? down(all.end) : up(all.end)",
        "down(all.end)",
    ),
    ("bytes behind the array loaded", TILES, "of == tiles - 1 ? down(all.end) : up(all.end)", "up(all.end)"),
    ("bytes before the array loaded", TILES, "of == 0 ? up(all.begin) : down(all.begin)", "down(all.begin)"),
    ("the ends of the array left out", TILES, "if (tile > 0 && tile < tiles - 1) return;", "return;"),
    (
        "a result stored over the rows beside it",
        TILES,
        "{up(all.begin), down(all.end)};",
        "{down(all.begin), up(all.end)};",
    ),
    ("ends of the stored range left out", TILES, "if (whole.end < all.end) copy(whole.end, all.end - whole.end);", ""),
    (
        "whole pieces stored at another offset",
        TILES,
        "((shared_address(at) ^ reinterpret_cast<unsigned long long>(to)) & 15) != 0 || whole",
        "whole",
    ),
    ("the last tile has all rows", TILES, "return of < tiles - 1 ? ROWS_EACH : last;", "return ROWS_EACH;"),
    ("rows behind the tile computed", TILES, "AT_ONCE_ROWS == 1 || r + row_of_team() < count()", "true"),
    ("results not shown to the copies", TILES, "show_to_copies();\n sync();", "sync();"),
    ("stored before the others have written", TILES, "show_to_copies();\n sync();", "show_to_copies();"),
    ("a stage loaded before its stores have read it", TILES, "stores_have_read<LATER>();", ""),
    ("a stage loaded while others store its ends", TILES, "if (STORES && !LATER) computed();", ""),
    ("stores never committed", TILES, "stores_commit();", ""),
    ("nobody waits for the last stores", TILES, "if (STORES && rank() == 0) stores_have_read<0>();", ""),
    ("the second tile of a stage not waited for", TILES, "turn / STAGES % 2);", "0);"),
    ("teams take each other's tiles", TILES, "gridDim.x) * TEAMS;", "gridDim.x);"),
    ("the value of the row before", TILES, "here ? row(r + AT_ONCE_ROWS) :", "here ? row(r) :"),
    ("a value behind the last row", TILES, "return of < end ? of : end - 1;", "return of;"),
    ("slots in one place", TILES, "at += (ROWS_EACH * n * size_of(s) + 30) / 16 * 16;", ""),
    ("accesses of a warp not checked", CUT, "v < INSIDE ||", "v <= INSIDE ||"),
    ("a maximum of one thread's units", ROWS, "larger(most[i], of[i][p][owner])", "larger(most[i], of[i][0][owner])"),
    ("the last access of all units left out", FOLDS, "v < VECTORS && v < (u + 1)", "v < VECTORS - 1 && v < (u + 1)"),
    ("units not added", FOLDS, "else all[i] += values[i];", ""),
]
