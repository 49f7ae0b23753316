"""The mutants of the LLTM over a sequence on tensor cores: by kernel, the tests held against it and its faults (``mutants.py``)."""

MATRIX, TWIN = "lltm_matrix.cu", "cupyops/simulator/hardware/tensor_cores.cuh"

Fault = tuple[str, str, str, str]  # what, file, old, new

LLTM_MATRIX: dict[str, tuple[str, list[Fault]]] = {
    "lltm_matrix": (
        "(sequence_step_by_step and matrix) or unaligned_state",
        [
            (
                "no barrier before the sums are read",
                MATRIX,
                "            if (n % 2 == 0) continue;\n            __syncthreads();\n",
                "            if (n % 2 == 0) continue;\n",
            ),
            ("one table for two groups", MATRIX, "TABLES = GROUPS > 1 ? 2 : 1;", "TABLES = 1;"),
            (
                "no barrier behind the last sums",
                MATRIX,
                "meet_at(counters + tile, t + 1); } __syncthreads();",
                "meet_at(counters + tile, t + 1); }",
            ),
            ("the upper rows' weights for the lower", MATRIX, "band, line + 8, element", "band, line, element"),
            ("weights beyond a row", MATRIX, "        if (!EVEN && k >= LENGTH) return 0;\n", ""),
            ("rows beyond the last read", MATRIX, "        if (!there) return;\n", ""),
            ("elements beyond the row read", MATRIX, "if (EVEN || element(i) < LENGTH) {", "{"),
            ("a warp's sums left out", MATRIX, "w < WARPS; ++w", "w < WARPS - 1; ++w"),
            ("units mixed", MATRIX, "[line + i / 2 * 8] = sums", "[line + i % 2 * 8] = sums"),
            ("rows mixed", MATRIX, "mine[band][2 * part + i % 2]", "mine[band][2 * part + i / 2]"),
            (
                "c rounded from step to step",
                MATRIX,
                "c[g] = unit.cell(c[g]);",
                "c[g] = convert<acc_t>(convert<scalar_t>(unit.cell(c[g])));",
            ),
            (
                "no meeting",
                MATRIX,
                "            if (t + 1 < T) meet_at(counters + tile, t + 1);\n",
                "            __syncthreads();\n",
            ),
            ("a meeting too early", MATRIX, "meet_at(counters + tile, t + 1)", "meet_at(counters + tile, t)"),
            ("one counter for all tiles", MATRIX, "meet_at(counters + tile, t + 1)", "meet_at(counters, t + 1)"),
            ("gates beyond the last step read", MATRIX, "if (t + 1 < T)\n#pragma unroll", "if (true)\n#pragma unroll"),
            ("the first h at every step", MATRIX, "(t ? h_t - B * STATE : first_h)", "first_h"),
            ("the first tile's rows for all", MATRIX, ": first_h) + first_row * STATE;", ": first_h);"),
            (
                "the last h for the last c",
                MATRIX,
                "[own.place(g)] = new_c;\n                }",
                "[own.place(g)] = new_h;\n                }",
            ),
            ("an unaligned h read by whole accesses", MATRIX, "t || aligned<8>(before),", "true,"),
            ("half of the elements left out", TWIN, "which < 2; ++which", "which < 1; ++which"),
        ],
    ),
    "lltm_matrix_backward": (
        "sequence_back_step_by_step and matrix",
        [
            ("the first rows again", MATRIX, "request(n + AHEAD);", "request(n);"),
            (
                "weights not transposed",
                MATRIX,
                "weights[j * K + first_unit + unit]",
                "weights[(first_unit + unit) * K + j % STATE]",
            ),
            ("an absent gradient read", MATRIX, "            if (grad_last) {\n", "            {\n"),
            (
                "the last h for the last c",
                MATRIX,
                "((grad_last + B * STATE)[own.place(g)])",
                "(grad_last[own.place(g)])",
            ),
            ("the cell's gradient not carried", MATRIX, "if (grad_cells) dc[g] +=", "if (grad_cells) dc[g] ="),
            ("the outer gradient of h left out", MATRIX, "dh[g] + more[g], dc[g], dz", "dh[g], dc[g], dz"),
            ("steps before the first read", MATRIX, "if (t > 0) request(g, t - 1);", "request(g, t - 1);"),
            ("the same step again", MATRIX, "if (t > 0) request(g, t - 1);", "if (t > 0) request(g, t);"),
            ("only the first step's dL/db", MATRIX, "bias_sum[gate] += dz[gate];", "bias_sum[gate] = dz[gate];"),
            (
                "dL/db of rounded terms",
                MATRIX,
                "bias_sum[gate] += dz[gate];",
                "bias_sum[gate] += convert<acc_t>(convert<scalar_t>(dz[gate]));",
            ),
            (
                "meetings counted from the wrong end",
                MATRIX,
                "meet_at(counters + tile, T - t)",
                "meet_at(counters + tile, t + 1)",
            ),
            ("a meeting too early", MATRIX, "meet_at(counters + tile, T - t)", "meet_at(counters + tile, T - t - 1)"),
            (
                "rows of another tile",
                MATRIX,
                "grad_z_t + first_row * GATES * STATE, B",
                "grad_z_t + first_row * STATE, B",
            ),
            ("parts of dL/db mixed", MATRIX, "part = tile * ROWS + threadIdx.x", "part = tile + threadIdx.x"),
            ("h for c", MATRIX, "= convert<scalar_t>(dc[g]);", "= convert<scalar_t>(dh[g]);"),
            ("slices of fewer warps", MATRIX, "(i * WARPS + warp) * SLICE", "(i * (WARPS - 1) + warp) * SLICE"),
            ("steps of the gates' gradient too close", MATRIX, "(grad_gates + step * GATES)", "(grad_gates + step)"),
        ],
    ),
}
