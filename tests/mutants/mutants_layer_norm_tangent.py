"""The mutants of layer normalisation's tangent, as those of ``mutants_layer_norm.py``."""

REGISTERS, STREAMING = "layer_norm_tangent.cu", "layer_norm_tangent_streaming.cu"
WIDE, STAGES = "layer_norm_tangent_wide.cu", "stages.cuh"
TANGENT, ROWS, EXCHANGE, NORM = "layer_norm_tangent.cuh", "rows.cuh", "exchange.cuh", "layer_norm.cuh"

_EACH = ")\n#pragma unroll\n        for (int v = 0; v < VECTORS; ++v)\n            if (columns.has(v))\n                row."
_LOADED = "load_packed(x + first + columns.of(v), vectors)"
BEGIN_FIRST = "            begin(turn + 1, next);\n            held = next;"

Fault = tuple[str, str, str, str]  # what, file, old, new

LAYER_NORM_TANGENT: dict[str, tuple[str, list[Fault]]] = {
    "layer_norm_tangent": (
        "tangent and not streaming and not wide",
        [
            (
                "wrong derivative: deviation left out",
                TANGENT,
                "fma(dx[k], (x[k] - mean) * rstd, sums[1])",
                "fma(dx[k], x[k] * rstd, sums[1])",
            ),
            ("wrong derivative: sign of the slope", TANGENT, "slope = -rstd * product", "slope = rstd * product"),
            ("wrong derivative: slope without deviation", TANGENT, "slope = -rstd * product", "slope = -product"),
            ("wrong derivative: part along 1 kept", TANGENT, "dx[k] - mean_of_dx)", "dx[k])"),
            (
                "weight within the derivative alone",
                TANGENT,
                "fma(moved, weight[k], fma(product(deviation, rstd), by_weight[k], by_bias[k]))",
                "fma(moved, weight[k], weight[k] * fma(product(deviation, rstd), by_weight[k], by_bias[k]))",
            ),
            ("tangent of weight without rstd", TANGENT, "fma(product(deviation, rstd), by", "fma(deviation, by"),
            ("tangent of bias left out", TANGENT, "by_weight[k], by_bias[k])", "by_weight[k], acc_t(0))"),
            ("tangent of bias for that of weight", TANGENT, "load_or(of.tangent_weight,", "load_or(of.tangent_bias,"),
            ("absent weight taken for 0", TANGENT, "load_or(of.weight, 1,", "load_or(of.weight, 0,"),
            (
                "alignment of the result not asked for",
                TANGENT,
                "tangent_weight, tangent_bias, tangent_y);\n    }",
                "tangent_weight, tangent_bias);\n    }",
            ),
            ("statistics swapped", REGISTERS, "{any ? of.stats[at_row]", "{any ? of.stats[of.M + at_row]"),
            ("a row too many", REGISTERS, "any = at_row < of.M;", "any = at_row <= of.M;"),
            ("other rows taken for aligned", REGISTERS, "if (of.aligned()) tangent", "if (true) tangent"),
            ("sums of one warp alone", REGISTERS, "if constexpr (PARTS > 1) {", "if constexpr (PARTS > 99) {"),
            (
                "address cut to 32 bits",
                REGISTERS,
                "const long long at = at_row * of.N + columns.of(v);",
                "const int at = static_cast<int>(at_row * of.N) + columns.of(v);",
            ),
            (
                "result's address cut to 32 bits",
                REGISTERS,
                "of.tangent_y + at_row * of.N, vectors",
                "of.tangent_y + static_cast<int>(at_row * of.N), vectors",
            ),
            (
                "dropped barrier",
                EXCHANGE,
                "        __syncthreads();\n        return parts;",
                "        return parts;",
            ),
        ],
    ),
    "layer_norm_tangent_wide": (
        "tangent and wide",
        [
            ("wrong phase of a stage", STAGES, "turn / STAGES % 2", "turn % 2"),
            ("wrong phase of an exchange", EXCHANGE, "turn / 4 % 2", "turn / 2 % 2"),
            ("blocks publish in one place", EXCHANGE, "[block_of_cluster() * ROW_WARPS +", "[0 * ROW_WARPS +"),
            ("one array for both", WIDE, "take<scalar_t, sizeof(scalar_t)>", "take<scalar_t, 0>"),
            (
                "swapped arrays",
                WIDE,
                "stages.request(turn, of.tangent_x + at, of.x + at);",
                "stages.request(turn, of.x + at, of.tangent_x + at);",
            ),
            ("each block the first slice", WIDE, "at = row * of.N + columns.start;", "at = row * of.N;"),
            (
                "address cut to 32 bits",
                WIDE,
                "at = row * of.N + columns.start;",
                "at = static_cast<int>(row * of.N) + columns.start;",
            ),
            (
                "result's address cut to 32 bits",
                WIDE,
                "of.tangent_y + row * of.N, vectors",
                "of.tangent_y + static_cast<int>(row * of.N), vectors",
            ),
            (
                "stage asked for again before it is read",
                WIDE,
                "        if (vectors) stages.wait(turn);\n",
                "        if (vectors) stages.wait(turn);\n        request(turn + STAGES);\n",
            ),
            ("the wrong row asked for", WIDE, "request(turn + STAGES);", "request(turn + STAGES + 1);"),
            ("a row past the last", WIDE, "if (row >= of.M) return;", "if (row > of.M) return;"),
            (
                "statistics swapped",
                WIDE,
                "{of.stats[row], of.stats[of.M + row]",
                "{of.stats[of.M + row], of.stats[row]",
            ),
            (
                "statistics of this row for the next",
                WIDE,
                "coming = statistics_of(turn + 1);",
                "coming = statistics_of(turn);",
            ),
            ("swapped sums", WIDE, "publish({sums[0], sums[1]}, turn)", "publish({sums[1], sums[0]}, turn)"),
            ("a thread's sums alone", WIDE, "        warp_sum(sums);\n", ""),
            (
                "next row's sums for this row",
                WIDE,
                "sum_parts(exchange.collect(turn)",
                "sum_parts(exchange.collect(turn + 1)",
            ),
            ("next row stored", WIDE, "            held = next;\n            begin(turn + 1, next);", BEGIN_FIRST),
            ("wrong stride over the rows", WIDE, "row += groups, ++turn", "row += groups + 1, ++turn"),
            ("other rows taken for aligned", WIDE, "if (of.aligned()) tangent", "if (true) tangent"),
            ("blocks do not wait for each other's counters", WIDE, "    sync_cluster();\n", ""),
        ],
    ),
    "layer_norm_tangent_streaming": (
        "tangent",
        [
            ("a part left out", TANGENT, "part_read(p) < PARTS ?", "part_read(p) < PARTS - 1 ?"),
            ("one sum for both", TANGENT, "parts[part_read(p)].of[i]", "parts[part_read(p)].of[0]"),
            ("swapped sums", STREAMING, "= {sums[0], sums[1]};", "= {sums[1], sums[0]};"),
            ("dropped barrier", STREAMING, "    __syncthreads();\n", ""),
            ("a warp's sums left out", STREAMING, "    warp_sum(sums);\n", ""),
            (
                "rows of the statistics swapped",
                STREAMING,
                "{stats[at_row], stats[M + at_row]",
                "{stats[M + at_row], stats[at_row]",
            ),
            ("mean of a slice", STREAMING, "acc_t(1) / acc_t(N)}", "acc_t(1) / acc_t(SLICE)}"),
            (
                "address cut to 32 bits",
                STREAMING,
                "first = at_row * N;",
                "first = static_cast<int>(at_row * N);",
            ),
            (
                "first slice alone summed",
                STREAMING,
                f"columns.start += SLICE{_EACH}sum(",
                f"columns.start += 1 << 30{_EACH}sum(",
            ),
            (
                "first slice alone stored",
                STREAMING,
                f"columns.start += SLICE{_EACH}store(",
                f"columns.start += 1 << 30{_EACH}store(",
            ),
            ("alignment not asked for", STREAMING, "vectors = of.aligned();", "vectors = true;"),
            (
                "x for its tangent",
                STREAMING,
                f"load_packed(tangent_x + first + columns.of(v), vectors), {_LOADED}, sums);",
                f"{_LOADED}, {_LOADED}, sums);",
            ),
        ],
    ),
}
