"""The mutants of layer normalisation's forward: by kernel, the tests held against it and its faults (``mutants.py``).

Shared headers' faults are dealt out among the kernels that include them, to those that would show them first.
"""

REGISTERS, WIDE, STREAMING = "layer_norm_forward.cu", "layer_norm_forward_wide.cu", "layer_norm_forward_streaming.cu"
FORWARD, BOTH = "layer_norm_forward.cuh", "layer_norm.cuh"
ROWS, EXCHANGE, MOMENTS, STAGES = "rows.cuh", "exchange.cuh", "moments.cuh", "stages.cuh"
PACKED, VECTOR = "packed.cuh", "vector.cuh"

_EACH = "#pragma unroll\n        for (int v = 0; v < VECTORS; ++v)\n"
_SLICES = "for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n;"

Fault = tuple[str, str, str, str]  # what, file, old, new

LAYER_NORM: dict[str, tuple[str, list[Fault]]] = {
    "layer_norm_forward": (
        "forward and registers",
        [
            (
                "rows beyond the last",
                REGISTERS,
                "of.M - first < ROWS_EACH ? static_cast<int>(of.M - first)",
                "false ? 0",
            ),
            (
                "off by one in the number of rows",
                REGISTERS,
                "static_cast<int>(of.M - first) :",
                "static_cast<int>(of.M - first) - 1 :",
            ),
            ("off by one in a row's bound", ROWS, "FULL || of(v) < n", "FULL || of(v) <= n"),
            ("a row counted as full too early", ROWS, "FULL || of(v) < n", "FULL || of(v) < n + VECTOR_WIDTH"),
            ("dropped barrier", EXCHANGE, "wait(unsigned) const { __syncthreads(); }", "wait(unsigned) const {}"),
            ("cluster's barrier not waited for", REGISTERS, "        cluster_wait();\n", ""),
            (
                "other rows taken for aligned",
                REGISTERS,
                "else if (vectors) forward_rows",
                "else if (true) forward_rows",
            ),
            ("wrong stride between rows", FORWARD, "y + r * N + columns.of(v)", "y + r * SLICE + columns.of(v)"),
            (
                "result by way of the dtype of the rows",
                FORWARD,
                "            packed.set(out);\n            store_packed(y + r",
                "            Packed<scalar_t> first;\n            first.set(out);\n"
                "            for (int k = 0; k < VECTOR_WIDTH; ++k) out[k] = first[k];\n"
                "            packed.set(out);\n            store_packed(y + r",
            ),
            ("weight and bias swapped", FORWARD, ", weight[k], bias[k]);", ", bias[k], weight[k]);"),
            ("deviation for its inverse", FORWARD, "rstd = rsqrt(", "rstd = sqrt("),
            ("the mean's rest left out", FORWARD, "shift = -row.rest * rstd;", "shift = 0;"),
            ("the mean's rest of the wrong sign", FORWARD, "shift = -row.rest", "shift = row.rest"),
            (
                "address cut to 32 bits",
                REGISTERS,
                "(first + r) * of.N + columns.of(v)",
                "int((first + r) * of.N) + columns.of(v)",
            ),
            ("address of y cut to 32 bits", REGISTERS, "of.y + first * of.N", "of.y + int(first * of.N)"),
            ("statistics interleaved", FORWARD, "stats[M + row] = rstd;", "stats[2 * row + 1] = rstd;"),
            ("absent statistics written", REGISTERS, "if (of.stats && r < rows && columns", "if (r < rows && columns"),
            ("stored mean without its rest", FORWARD, "= moments.mean + moments.rest;", "= moments.mean;"),
            ("one table for all groups", EXCHANGE, "[group_of_block()][threadIdx", "[0][threadIdx"),
            ("absent weights are 0", BOTH, "Packed<weight_t>::of(absent)", "Packed<weight_t>::of(acc_t(0))"),
            (
                "one aligned array is enough",
                BOTH,
                "(aligned<VECTOR_WIDTH>(p) && ...)",
                "(aligned<VECTOR_WIDTH>(p) || ...)",
            ),
            ("alignment not asked for", VECTOR, "% (N * sizeof(T));", "% sizeof(T);"),
            ("a word twice", PACKED, "packed.word[i + 2] = four.z,", "packed.word[i + 2] = four.y,"),
            ("upper half shifted too little", PACKED, "(k % 2 * 16)", "(k % 2 * 8)"),
            ("odd elements the same as even ones", PACKED, "halves[(2 * i + 1) % VECTOR_WIDTH]", "halves[2 * i]"),
            ("lower half taken for both", PACKED, "widen(word[k / 2], k % 2)", "widen(word[k / 2], 0)"),
            ("sum over the neighbours' rows", ROWS, "(ROW_THREADS < 32 ? ROW_THREADS : 32) / 2;", "16;"),
            ("elements counted by accesses", MOMENTS, "mine += VECTOR_WIDTH;", "mine += 1;"),
            ("sums that overflow", MOMENTS, "SCALE = acc_t(1) / acc_t(4096)", "SCALE = acc_t(1)"),
            ("mean not corrected", MOMENTS, "warp.rest = sum[1] * one_by_count;", "warp.rest = 0;"),
            (
                "deviations of the mean not taken off the squares",
                MOMENTS,
                "sum[1] - spare : sum[1]) + (mean",
                "sum[1] : sum[1]) + (mean",
            ),
            ("mean without the element it is reckoned from", MOMENTS, "warp.mean = pivot + mean;", "warp.mean = mean;"),
            ("each lane's own first element", MOMENTS, "pivot = __shfl_sync(0xffffffffu, pivot, 0, LANES_OF_ROW);", ""),
            ("infinite elements taken for infinite squares", MOMENTS, " + (mean - mean);", ";"),
            ("one pass for a result of more bits", MOMENTS, " && sizeof(Result) == 2;", ";"),
            ("never a second pass", MOMENTS, "again = spare > acc_t(8) * warp.squares;", "again = false;"),
            (
                "a neighbour's second pass taken for one's own",
                MOMENTS,
                "    if (!again) return warp;",
                "",
            ),
            (
                "warps without weight",
                MOMENTS,
                "fma(mine[i].count * d, d, mine[i].squares)",
                "fma(d, d, mine[i].squares)",
            ),
            ("deviation of the first warp's mean", MOMENTS, "d = mine[i].mean - row.rest;", "d = mine[i].mean;"),
            ("parts read beyond the last", MOMENTS, "if (part_read(i) < PARTS)", "if (part_read(i) <= PARTS)"),
            ("parts left out", ROWS, "(PARTS + READERS - 1) / READERS", "PARTS / READERS"),
        ],
    ),
    "layer_norm_forward_wide": (
        "forward and wide",
        [
            (
                "absent statistics written",
                WIDE,
                "if (stats && columns.of(0) == 0) of.store_stats(row,",
                "if (columns.of(0) == 0) of.store_stats(row,",
            ),
            ("wrong phase of a stage", STAGES, "turn / STAGES % 2", "turn % 2"),
            ("inverted phase of a stage", STAGES, "turn / STAGES % 2", "(turn / STAGES + 1) % 2"),
            ("stage not waited for", WIDE, "        if (vectors) stages.wait(turn);\n", ""),
            ("wrong phase of an exchange", EXCHANGE, "turn / 4 % 2", "turn / 2 % 2"),
            ("inverted phase of an exchange", EXCHANGE, "turn / 4 % 2", "(turn / 4 + 1) % 2"),
            ("another turn's table", EXCHANGE, "return table[turn % 4];", "return table[turn % 2];"),
            ("too few tables", EXCHANGE, "Known table[4][PARTS]", "Known table[2][PARTS]"),
            (
                "a counter not opened",
                EXCHANGE,
                "i < 4; ++i) arrival_init(arrivals",
                "i < 3; ++i) arrival_init(arrivals",
            ),
            ("blocks publish in one place", EXCHANGE, "[block_of_cluster() * ROW_WARPS +", "[0 * ROW_WARPS +"),
            ("own block's sums are enough", EXCHANGE, "PARTS * sizeof(Known)", "ROW_WARPS * sizeof(Known)"),
            ("published to one block less", EXCHANGE, "if (lane < CLUSTER) send", "if (lane < CLUSTER - 1) send"),
            (
                "blocks do not wait for each other's counters",
                WIDE,
                "    sync_cluster();\n",
                "",
            ),
            (
                "each block the first slice",
                WIDE,
                "row * N + columns.start);",
                "row * N);",
            ),
            (
                "address cut to 32 bits",
                WIDE,
                "row * N + columns.start);",
                "int(row * N) + columns.start);",
            ),
            (
                "stage asked for again too early",
                WIDE,
                "        if (vectors) stages.wait(turn);\n",
                "        if (vectors) stages.wait(turn);\n        request(turn + STAGES);\n",
            ),
            (
                "wrong stride over the rows",
                WIDE,
                "row < M; row += groups, ++turn",
                "row < M; row += groups + 1, ++turn",
            ),
            ("last row left out", WIDE, "row < M; row += groups, ++turn", "row < M - 1; row += groups, ++turn"),
            ("the next row's moments for this row's", WIDE, "begin(turn + 1, next);", "begin(turn, next);"),
            ("this row lost to the next", WIDE, "held[0][v] = next[0][v];", "held[0][v] = next[0][0];"),
            ("bias kept in weight's place", WIDE, "(WEIGHT_HELD ? 0 : SLICE)", "0"),
            ("one access's bias for all", WIDE, "bias[BIAS_HELD ? v : 0] = b;", "bias[0] = b;"),
            (
                "pieces of weights in each other's place",
                "layer_norm.cuh",
                "(i * ELEMENTS + place_of(v)) / PIECES",
                "(i * (SLICE - 32) + place_of(v)) / PIECES",
            ),
            ("another access's weight", WIDE, "weight[WEIGHT_HELD ? v : 0] = w;", "weight[0] = w;"),
            ("moments of the row ahead", WIDE, "exchange.collect(turn)", "exchange.collect(turn + SUM_AHEAD)"),
            ("sums of all rows in one place", WIDE, "of.sum + at, true);", "of.sum + at % of.N, true);"),
            ("x taken for the residual", WIDE, "take<residual_t, sizeof(x_t)>", "take<residual_t, 0>"),
            ("copies beyond the row", STAGES, "left < PIECE ? left : PIECE", "PIECE"),
            ("warps beyond the row copy, too", STAGES, "left < 0 ? 0 : left < PIECE", "left < PIECE"),
            (
                "second array where the first ends",
                STAGES,
                "arrivals + stage),\n               to += SLICE * sizeof(In)",
                "arrivals + stage),\n               to += elements * sizeof(In)",
            ),
            (
                "each warp the first one's piece",
                STAGES,
                "(threadIdx.x) / 32 * 32) * VECTOR_WIDTH",
                "(0)) * VECTOR_WIDTH",
            ),
            ("a piece left out", STAGES, "if (v >= VECTORS ||", "if (v >= VECTORS - 1 ||"),
            ("too few bytes announced", STAGES, "elements * ELEMENT_BYTES", "elements * sizeof(float)"),
            ("copies of any address", STAGES, "| N * sizeof(In)) % 16 == 0", "| N * sizeof(In)) % 4 == 0"),
            (
                "copies of any length",
                STAGES,
                "(reinterpret_cast<unsigned long long>(rows) | N * sizeof(In))",
                "reinterpret_cast<unsigned long long>(rows)",
            ),
        ],
    ),
    "layer_norm_forward_streaming": (
        "forward and streaming",
        [
            ("off by one in the bound", ROWS, "FULL || of(v) < n", "FULL || of(v) <= n"),
            ("dropped barrier", STREAMING, "\n    __syncthreads();\n", "\n"),
            (
                "first pass without its tail",
                STREAMING,
                f"    {_SLICES} columns.start += SLICE) {{\n{_EACH}            if (columns.has(v)) held",
                f"    {_SLICES[:-1]} - SLICE; columns.start += SLICE) {{\n{_EACH}            if (columns.has(v)) held",
            ),
            (
                "second pass without its tail",
                STREAMING,
                f"affine(of, vectors);\n    {_SLICES}",
                f"affine(of, vectors);\n    {_SLICES[:-1]} - SLICE;",
            ),
            (
                "wrong stride between slices",
                STREAMING,
                f"affine(of, vectors);\n    {_SLICES} columns.start += SLICE",
                f"affine(of, vectors);\n    {_SLICES} columns.start += SLICE + VECTOR_WIDTH",
            ),
            ("x for the sum", STREAMING, "load_packed(sum + at, vectors);", "load_packed(x + at, vectors);"),
            (
                "only one warp's moments",
                STREAMING,
                "if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32]",
                "if (threadIdx.x == 0) parts[threadIdx.x / 32]",
            ),
            (
                "address cut to 32 bits",
                STREAMING,
                "of.load(row * N + columns.of(v), vectors)",
                "of.load(int(row * N) + columns.of(v), vectors)",
            ),
            ("absent statistics written", STREAMING, "if (stats && threadIdx.x == 0)", "if (threadIdx.x == 0)"),
            (
                "statistics of the next row",
                STREAMING,
                "threadIdx.x == 0) of.store_stats(row,",
                "threadIdx.x == 0) of.store_stats(row + 1,",
            ),
            (
                "no elements divided by",
                MOMENTS,
                "warp.count > 0 ? acc_t(1) / warp.count : acc_t(0)",
                "acc_t(1) / warp.count",
            ),
            ("share of the wrong part", MOMENTS, "share = b.count / count", "share = a.count / count"),
            (
                "square of the distance without weight",
                MOMENTS,
                "fma(d * share * a.count, d, b.squares)",
                "fma(d * share, d, b.squares)",
            ),
            ("earlier squares left out", MOMENTS, "a.squares + fma(d * share", "fma(d * share"),
            ("rest of the wrong sign", MOMENTS, "- a.rest) + b.rest", "- a.rest) - b.rest"),
            ("nothing so far taken for something", MOMENTS, "    if (!(a.count > 0)) return b;\n", ""),
            (
                "words of a double swapped",
                PACKED,
                "packed.word[0] = two.x, packed.word[1] = two.y;",
                "packed.word[0] = two.y, packed.word[1] = two.x;",
            ),
        ],
    ),
}
