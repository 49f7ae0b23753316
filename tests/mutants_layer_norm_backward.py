"""The mutants of layer normalisation's backward and of its sums over columns, as those of ``mutants_layer_norm.py``."""

BACKWARD, SUMS = "layer_norm_backward.cu", "column_sums.cu"
ROWS, PACKED, STAGES = "rows.cuh", "packed.cuh", "stages.cuh"

_EACH = "#pragma unroll\n            for (int v = 0; v < VECTORS; ++v)\n"
_SLICES = "for (Columns columns{0, static_cast<int>(N)}; columns.start < columns.n;"

Fault = tuple[str, str, str, str]  # what, file, old, new

LAYER_NORM_BACKWARD: dict[str, tuple[str, list[Fault]]] = {
    "layer_norm_backward": (
        "backward and registers",
        [
            (
                "wrong derivative: deviation left out",
                BACKWARD,
                "sums[1] = fma(w, (s[k] - mean) * rstd, sums[1]);",
                "sums[1] = fma(w, s[k] - mean, sums[1]);",
            ),
            (
                "wrong derivative: mean left out",
                BACKWARD,
                "fma(g[k], (s[k] - mean) * rstd, grad",
                "fma(g[k], s[k] * rstd, grad",
            ),
            (
                "wrong derivative: part along 1 kept",
                BACKWARD,
                "product(g[k], weight[k]) - means[0])",
                "product(g[k], weight[k]))",
            ),
            ("wrong derivative: sign of the slope", BACKWARD, "slope = -rstd * means[1]", "slope = rstd * means[1]"),
            ("wrong derivative: slope without deviation", BACKWARD, "slope = -rstd * means[1]", "slope = -means[1]"),
            ("gradient of the sum subtracted", BACKWARD, "out[k] += more[k];", "out[k] -= more[k];"),
            ("x for its gradient in the sum of bias", BACKWARD, "grad_bias[k] += g[k];", "grad_bias[k] += s[k];"),
            ("one table for two turns", BACKWARD, "table[turn % 2][group_of_block()]", "table[0][group_of_block()]"),
            ("one table for all groups", BACKWARD, "table[turn % 2][group_of_block()]", "table[turn % 2][0]"),
            (
                "dropped barrier",
                BACKWARD,
                "            __syncthreads();\n            sum_parts",
                "            sum_parts",
            ),
            ("dropped barrier between groups", BACKWARD, "            if (GROUPS > 1) __syncthreads();\n", ""),
            ("wrong stride over the rows", BACKWARD, "fetch(at_row + groups);", "fetch(at_row + parts);"),
            (
                "other groups' sums left out",
                BACKWARD,
                "grad_weight[v][k] += group ? w : acc_t(0);",
                "grad_weight[v][k];",
            ),
            (
                "bias's part in weight's place",
                BACKWARD,
                "partial[(parts + part) * columns.n",
                "partial[part * columns.n",
            ),
            (
                "place of a part cut to 32 bits",
                BACKWARD,
                "partial[(parts + part) * columns.n + columns.of(v)",
                "partial[int((parts + part) * columns.n) + columns.of(v)",
            ),
            (
                "each block the first slice",
                BACKWARD,
                "static_cast<int>(part % tiles) * SLICE",
                "static_cast<int>(part % 1) * SLICE",
            ),
            ("slices counted as parts", BACKWARD, "        part /= tiles;\n", ""),
            (
                "rows beyond the last summed",
                BACKWARD,
                f"        if (at_row < M)\n{_EACH}                if (columns.has(v)) {{\n                    more",
                f"{_EACH}                if (columns.has(v)) {{\n                    more",
            ),
            (
                "off by one in the last row",
                BACKWARD,
                "        if (row >= M) return;\n        next_mean",
                "        if (row > M) return;\n        next_mean",
            ),
            (
                "address cut to 32 bits",
                BACKWARD,
                "next_g[v] = load_packed(grad_y + row * N",
                "next_g[v] = load_packed(grad_y + int(row * N)",
            ),
            (
                "address of the gradient cut to 32 bits",
                BACKWARD,
                "const long long at = at_row * N + columns.of(v);\n                row.store(g[v]",
                "const int at = at_row * N + columns.of(v);\n                row.store(g[v]",
            ),
            ("mean for deviation", BACKWARD, "next_rstd = stats[M + row];", "next_rstd = stats[row];"),
            (
                "dropped exchange in a cluster",
                BACKWARD,
                "        sum_parts(meeting.ask(turn), sums);\n#else",
                "        meeting.ask(turn);\n#else",
            ),
            ("dropped sum over a warp", BACKWARD, "        warp_sum(sums);\n#if CLUSTER", "#if CLUSTER"),
            ("parts read beyond the last", ROWS, "part_read(p) < PARTS ?", "part_read(p) <= PARTS ?"),
            (
                "a step of a sum left out",
                ROWS,
                "(ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; step > 0;",
                "(ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; step > 1;",
            ),
            (
                "wrong mask of a shuffle",
                ROWS,
                "__shfl_xor_sync(0xffffffffu, v[i], step)",
                "__shfl_xor_sync(0xffffu, v[i], step)",
            ),
            ("a step of the readers' sum left out", ROWS, "READERS / 2; step > 0;", "READERS / 2; step > 1;"),
            ("readers too close", ROWS, "i * READERS; }", "i * (READERS - 1); }"),
        ],
    ),
    "layer_norm_backward_wide": (
        "backward and wide",
        [
            (
                "second array where one of the same dtype would end",
                BACKWARD,
                "take<scalar_t, sizeof(y_t)>",
                "take<scalar_t, sizeof(scalar_t)>",
            ),
            (
                "copies of rows that are not whole",
                BACKWARD,
                "grad_x) && Inputs::can_copy(N, grad_y, s);",
                "grad_x);",
            ),
            (
                "stage filled again before it is read",
                BACKWARD,
                "        begin(turn + 1);\n",
                "        request(turn + STAGES);\n        begin(turn + 1);\n",
            ),
            ("wrong phase of a stage", STAGES, "turn / STAGES % 2", "turn % 2"),
            ("a warp's readers not waited for", STAGES, "        __syncwarp();\n", ""),
            ("one counter for all warps", STAGES, "arrivals(all[threadIdx.x / 32])", "arrivals(all[0])"),
            (
                "the wrong row asked for",
                BACKWARD,
                "        request(turn + STAGES);\n    }",
                "        request(turn + STAGES + 1);\n    }",
            ),
            ("gradient taken for x", BACKWARD, "take<scalar_t, sizeof(y_t)>", "take<scalar_t, 0>"),
            (
                "swapped arrays",
                BACKWARD,
                "stages.request(turn, grad_y + at, s + at)",
                "stages.request(turn, s + at, grad_y + at)",
            ),
            (
                "swapped sums",
                BACKWARD,
                "meeting.tell({sums[0], sums[1]}, turn);\n    };",
                "meeting.tell({sums[1], sums[0]}, turn);\n    };",
            ),
            (
                "wrong stride over the rows",
                BACKWARD,
                "at_row < M; at_row += parts, ++turn",
                "at_row < M; at_row += parts + 1, ++turn",
            ),
            (
                "address cut to 32 bits",
                BACKWARD,
                "const long long at = (first + turn * parts) * N + columns.start;",
                "const int at = (first + turn * parts) * N + columns.start;",
            ),
            (
                "address of the gradient cut to 32 bits",
                BACKWARD,
                "const long long at = at_row * N + columns.of(v);\n            Packed",
                "const int at = at_row * N + columns.of(v);\n            Packed",
            ),
            (
                "each block the first slice",
                BACKWARD,
                "(first + turn * parts) * N + columns.start;",
                "(first + turn * parts) * N;",
            ),
            (
                "all parts in one place",
                BACKWARD,
                "gradients.leave(partial, columns, first, parts)",
                "gradients.leave(partial, columns, 0, parts)",
            ),
            (
                "blocks do not wait for each other's counters",
                BACKWARD,
                "vectors);\n    sync_row_blocks();",
                "vectors);",
            ),
            (
                "statistics of another row",
                BACKWARD,
                "const BackwardRow row{stats[at_row], stats[M + at_row]};\n#pragma",
                "const BackwardRow row{stats[first], stats[M + first]};\n#pragma",
            ),
            ("absent columns' weights", BACKWARD, "if (WANT_X && columns.has(v)) weight[v]", "if (WANT_X) weight[v]"),
        ],
    ),
    "layer_norm_backward_streaming": (
        "backward and streaming",
        [
            ("off by one in the bound", ROWS, "FULL || of(v) < n", "FULL || of(v) <= n"),
            ("dropped barrier", BACKWARD, "    __syncthreads();\n    sum_parts(table", "    sum_parts(table"),
            (
                "dropped sum over a warp",
                BACKWARD,
                "    warp_sum(sums);\n    if (threadIdx.x % 32 == 0) table",
                "    if (threadIdx.x % 32 == 0) table",
            ),
            (
                "first pass without its tail",
                BACKWARD,
                f"acc_t sums[2] = {{0, 0}};\n    {_SLICES}",
                f"acc_t sums[2] = {{0, 0}};\n    {_SLICES[:-1]} - SLICE;",
            ),
            (
                "weight left out of the sums",
                BACKWARD,
                "load_or(weight, 1, columns.of(v), vectors), sums);",
                "Packed<weight_t>::of(1), sums);",
            ),
            (
                "weight left out of the gradient",
                BACKWARD,
                "load_or(weight, 1, columns.of(v), vectors), means,",
                "Packed<weight_t>::of(1), means,",
            ),
            ("the wrong gradient added", BACKWARD, "load_more(grad_sum, at, vectors)", "load_more(s, at, vectors)"),
            (
                "address cut to 32 bits",
                BACKWARD,
                "const long long at = at_row * N + columns.of(v);\n                row.sum(",
                "const int at = at_row * N + columns.of(v);\n                row.sum(",
            ),
            (
                "address of the gradient cut to 32 bits",
                BACKWARD,
                "const long long at = at_row * N + columns.of(v);\n                row.store(load",
                "const int at = at_row * N + columns.of(v);\n                row.store(load",
            ),
            (
                "swapped statistics",
                BACKWARD,
                "row{stats[at_row], stats[M + at_row]};\n    acc_t",
                "row{stats[M + at_row], stats[at_row]};\n    acc_t",
            ),
            (
                "swapped sums",
                BACKWARD,
                "table[threadIdx.x / 32] = {sums[0], sums[1]};",
                "table[threadIdx.x / 32] = {sums[1], sums[0]};",
            ),
            (
                "half a double not stored",
                PACKED,
                "make_uint2(packed.word[0], packed.word[1])",
                "make_uint2(packed.word[0], packed.word[0])",
            ),
        ],
    ),
    "column_sums": (
        "column_sums",
        [
            ("off by one in the bound", SUMS, "if (column < N)", "if (column <= N)"),
            ("no bound of the result", SUMS, "|| out == nullptr || column >= N)", "|| out == nullptr)"),
            ("absent sums stored", SUMS, "|| out == nullptr || column >= N)", "|| column >= N)"),
            ("wrong stride over the parts", SUMS, "p += 32", "p += 33"),
            ("last part left out", SUMS, "p < parts; p += 32", "p < parts - 1; p += 32"),
            ("dropped barrier", SUMS, "    __syncthreads();\n", ""),
            ("a warp's sums left out", SUMS, "i < 32; ++i", "i < 31; ++i"),
            ("first matrix for both", SUMS, "partial[(parts + p) * N + column]", "partial[p * N + column]"),
            (
                "address cut to 32 bits",
                SUMS,
                "partial[(parts + p) * N + column]",
                "partial[int((parts + p) * N) + column]",
            ),
            ("matrices swapped", SUMS, "threadIdx.y == 0 ? first : second", "threadIdx.y == 0 ? second : first"),
            ("first sums for both", SUMS, "total += sums[threadIdx.y][i]", "total += sums[0][i]"),
            ("second matrix left out", SUMS, "threadIdx.y > 1 ||", "threadIdx.y > 0 ||"),
            (
                "warps share a row of the table",
                SUMS,
                "sums[0][threadIdx.y][threadIdx.x] = a;",
                "sums[0][threadIdx.y / 2][threadIdx.x] = a;",
            ),
        ],
    ),
}
