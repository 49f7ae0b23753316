"""The mutants of linear layers: by kernel, the tests held against it and its faults (``mutants.py``).

Each fault of ``columns.cuh`` is tried with one of the two kernels that include it.
"""

COLUMNS, LINEAR_TEXT, GELU_TEXT = "columns.cuh", "linear.cu", "linear_gelu.cu"

Fault = tuple[str, str, str, str]  # what, file, old, new

LINEAR: dict[str, tuple[str, list[Fault]]] = {
    "linear_bias_gradient": (
        "(sums_of_columns or alignment or leaves_alone)",
        [
            ("a turn too many", COLUMNS, "/ step + 1) / ROWS_EACH : 0", "/ step + ROWS_EACH) / ROWS_EACH : 0"),
            ("the last row left out", COLUMNS, "for (; row < M; row += step)", "for (; row < M - 1; row += step)"),
            (
                "blocks of a cluster take the same rows",
                COLUMNS,
                "step = groups * CLUSTER * HEIGHT",
                "step = groups * HEIGHT",
            ),
            (
                "rows dealt out by columns",
                COLUMNS,
                "block_of_cluster()) * HEIGHT + down",
                "block_of_cluster()) * HEIGHT + across",
            ),
            (
                "dropped barrier",
                COLUMNS,
                "    __syncthreads();\n    cluster",
                "    cluster",
            ),
            ("the last of a block's rows left out", COLUMNS, "i < LINES; ++i) {", "i < LINES - 1; ++i) {"),
            ("rows of a warp left out", COLUMNS, "int rows = 16; rows >= WIDTH", "int rows = 8; rows >= WIDTH"),
            ("the first column of a pair for both", COLUMNS, "[(2 * pair + 1) % STRIP]", "[2 * pair]"),
            ("what others send not waited for", COLUMNS, "arrival_wait(&arrivals, 0);", "__syncthreads();"),
            ("all sums sent to one block", COLUMNS, "pair / SHARE, &arrivals", "0, &arrivals"),
            ("one block's sums for all", COLUMNS, "&parts[block][pair % SHARE]", "&parts[0][pair % SHARE]"),
            ("only the first block's sums", COLUMNS, "part < CLUSTER; ++part) sum", "part < 1; ++part) sum"),
            ("columns beyond the last written", COLUMNS, "if (first + j < N) out", "out"),
            ("one row for all groups", COLUMNS, "out[strip.group * N + first + j]", "out[first + j]"),
            ("alignment not asked for", LINEAR_TEXT, "vectors = aligned<VECTOR_WIDTH>(grad_y);", "vectors = true;"),
            ("one column for all", LINEAR_TEXT, "sums[k] += g[k]", "sums[k] += g[0]"),
        ],
    ),
    "linear_gelu_forward": (
        "on_the_way",
        [
            ("the bias left out", GELU_TEXT, "v[k] = held[i][k] + b[k];", "v[k] = held[i][k];"),
            ("one bias for all columns of an access", GELU_TEXT, "held[i][k] + b[k]", "held[i][k] + b[0]"),
            (
                "the bias of the first columns",
                GELU_TEXT,
                "load_packed(bias + column, VECTORS)",
                "load_packed(bias, VECTORS)",
            ),
            ("z kept without the bias", GELU_TEXT, "            store_row<VECTORS>(z + at, packed);\n", ""),
            ("GELU of what the product was", GELU_TEXT, "v[k] = gelu(packed[k]);", "v[k] = gelu(held[i][k]);"),
            ("GELU of z before it is rounded", GELU_TEXT, "v[k] = gelu(packed[k]);", "v[k] = gelu(v[k]);"),
            (
                "alignment of z not asked for",
                GELU_TEXT,
                "aligned<VECTOR_WIDTH>(z) && aligned<VECTOR_WIDTH>(bias)",
                "aligned<VECTOR_WIDTH>(bias)",
            ),
            ("alignment of the bias not asked for", GELU_TEXT, "aligned<VECTOR_WIDTH>(bias) && ", ""),
            ("alignment of y not asked for", GELU_TEXT, " && aligned<VECTOR_WIDTH>(y);", ";"),
            (
                "columns beyond the last",
                GELU_TEXT,
                "    if (column >= N) return;\n    const Packed",
                "    const Packed",
            ),
            ("rows beyond the last read", GELU_TEXT, "if (row + i * step < M) held", "held"),
            ("rows beyond the last written", GELU_TEXT, "            if (row + i * step >= M) break;\n", ""),
            ("only the first turn", GELU_TEXT, "row < M; row += ROWS_EACH * step)", "row < M; row += M)"),
            ("turns that overlap", GELU_TEXT, "row += ROWS_EACH * step)", "row += step)"),
            (
                "rows that are a step apart stored together",
                GELU_TEXT,
                "at = (row + i * step) * N",
                "at = (row + i) * N",
            ),
        ],
    ),
    "linear_gelu_backward": (
        "(gradient_of_gelu or alignment)",
        [
            (
                "gradient and input swapped",
                GELU_TEXT,
                "in.grad_y[k] * gelu_derivative(in.z[k])",
                "in.z[k] * gelu_derivative(in.grad_y[k])",
            ),
            ("sums of what comes in", GELU_TEXT, "sums[k] += out[k]", "sums[k] += in.grad_y[k]"),
            ("the value for the derivative", GELU_TEXT, "gelu_derivative(in.z[k])", "gelu(in.z[k])"),
            ("alignment of z not asked for", GELU_TEXT, " && aligned<VECTOR_WIDTH>(z)", ""),
            ("alignment of the gradient not asked for", GELU_TEXT, "aligned<VECTOR_WIDTH>(grad_y) && ", ""),
            (
                "rows in flight too close",
                COLUMNS,
                "fetch((row + i * step) * N + column)",
                "fetch((row + i) * N + column)",
            ),
            (
                "rows stored too close",
                COLUMNS,
                "use((row + i * step) * N + column, held[i]",
                "use((row + i) * N + column, held[i]",
            ),
            ("strips that overlap", COLUMNS, "tile % strips * STRIP", "tile % strips * (STRIP - 1)"),
            ("columns beyond the last read", COLUMNS, "        if (column >= N) return;\n", ""),
        ],
    ),
}

# Their tests are in a file of their own.
LINEAR_NARROW: dict[str, tuple[str, list[Fault]]] = {
    "linear_narrow": (
        "(few or odd)",
        [
            ("alignment of the long matrix not asked for", LINEAR_TEXT, "aligned<VECTOR_WIDTH>(many) && ", ""),
            (
                "every warp takes every part",
                LINEAR_TEXT,
                "k < K; k += SPLIT * 32 * VECTOR_WIDTH",
                "k < K; k += 32 * VECTOR_WIDTH",
            ),
            ("the bias of the other matrix", LINEAR_TEXT, "bias[FEW_IS_X ? r : f]", "bias[FEW_IS_X ? f : r]"),
            ("the result transposed", LINEAR_TEXT, "at = FEW_IS_X ? f * R + r : r * FEW + f", "at = r * FEW + f"),
            (
                "only the first warp's part",
                LINEAR_TEXT,
                "for (int p = 0; p < SPLIT; ++p)",
                "for (int p = 0; p < 1; ++p)",
            ),
            ("rows beyond the last written", LINEAR_TEXT, "        if (r >= R) continue;\n", ""),
            (
                "an absent bias read",
                LINEAR_TEXT,
                "if (bias) sum += convert<acc_t>(bias[FEW_IS_X",
                "sum += convert<acc_t>(bias[FEW_IS_X",
            ),
            ("half a warp's sums left out", LINEAR_TEXT, "int step = 16; step > 0", "int step = 8; step > 0"),
            ("rows beyond the last read", LINEAR_TEXT, "first + i < R ? first + i : R - 1", "first + i"),
            (
                "one of the few rows for all",
                LINEAR_TEXT,
                "load_packed(few + f * K + k, vectors)",
                "load_packed(few + k, vectors)",
            ),
            ("a column too many", LINEAR_TEXT, "* VECTOR_WIDTH; k < K", "* VECTOR_WIDTH; k <= K"),
            ("turns that overlap", LINEAR_TEXT, "k += SPLIT * 32 * VECTOR_WIDTH", "k += SPLIT * 32"),
            ("z not kept", LINEAR_TEXT, "        z[at] = convert<scalar_t>(sum);\n", ""),
            ("y without GELU", LINEAR_TEXT, "(gelu(convert<acc_t>(convert<scalar_t>(sum))))", "(sum)"),
            (
                "GELU of z before it is rounded",
                LINEAR_TEXT,
                "gelu(convert<acc_t>(convert<scalar_t>(sum)))",
                "gelu(sum)",
            ),
            ("one y for all", LINEAR_TEXT, "if constexpr (GELU) y[at]", "if constexpr (GELU) y[0]"),
            ("y in place of z", LINEAR_TEXT, "if constexpr (GELU) y[at]", "if constexpr (GELU) z[at]"),
            ("y where none is wanted", LINEAR_TEXT, "if constexpr (GELU) y", "y"),
            ("sums added up before they are there", LINEAR_TEXT, "    __syncthreads();\n", ""),
        ],
    ),
}
