"""The mutants of the LLTM over a sequence on tensor cores: by kernel, the tests held against it and its faults (``mutants.py``)."""

FORWARD, BACKWARD, SHARED = "lltm_tensor_cores.cu", "lltm_tensor_cores_backward.cu", "lltm_tensor_cores.cuh"
TWIN = "cupyops/simulator/hardware/tensor_cores.cuh"

Fault = tuple[str, str, str, str]  # what, file, old, new

LLTM_TENSOR_CORES: dict[str, tuple[str, list[Fault]]] = {
    "lltm_tensor_cores": (
        "(sequence_step_by_step and tensor-cores) or unaligned_state",
        [
            (
                "no barrier before the sums are read",
                SHARED,
                "            if (n % 2 == 0) continue;\n            __syncthreads();\n",
                "            if (n % 2 == 0) continue;\n",
            ),
            ("one table for two groups", SHARED, "TABLES = GROUPS > 1 ? 2 : 1;", "TABLES = 1;"),
            (
                "no barrier behind the last sums",
                FORWARD,
                "        __syncthreads();  // all threads have read the last step's sums\n",
                "",
            ),
            ("the upper rows' weights for the lower", SHARED, "band, line + 8, element", "band, line, element"),
            ("weights beyond a row", SHARED, "        if (!EVEN && k >= LENGTH) return 0;\n", ""),
            ("rows beyond the last read", SHARED, "        if (!there) return;\n", ""),
            ("elements beyond the row read", SHARED, "if (EVEN || element(i) < LENGTH) {", "{"),
            ("a warp's sums left out", SHARED, "w < WARPS; ++w", "w < WARPS - 1; ++w"),
            ("units mixed", SHARED, "[line + i / 2 * 8] = sums", "[line + i % 2 * 8] = sums"),
            ("rows mixed", SHARED, "mine[band][2 * part + i % 2]", "mine[band][2 * part + i / 2]"),
            (
                "c rounded from step to step",
                FORWARD,
                "c[g] = unit.cell(c[g]);",
                "c[g] = convert<acc_t>(convert<scalar_t>(unit.cell(c[g])));",
            ),
            (
                "no barrier of the team",
                FORWARD,
                "            if (t + 1 < T) team_barrier(counters + tile, t + 1);\n",
                "            __syncthreads();\n",
            ),
            (
                "a barrier too early",
                FORWARD,
                "team_barrier(counters + tile, t + 1)",
                "team_barrier(counters + tile, t)",
            ),
            (
                "one counter for all tiles",
                FORWARD,
                "team_barrier(counters + tile, t + 1)",
                "team_barrier(counters, t + 1)",
            ),
            (
                "gates beyond the last step read",
                FORWARD,
                "if (t + 1 < T)\n#pragma unroll\nfor (int gate",
                "if (true)\n#pragma unroll\nfor (int gate",
            ),
            ("the first h at every step", FORWARD, "(t ? h_t - B * STATE : first_h)", "first_h"),
            ("the first tile's rows for all", FORWARD, ": first_h) + first_row * STATE;", ": first_h);"),
            (
                "the last h for the last c",
                FORWARD,
                "[own.place(g)] = new_c;\n                }",
                "[own.place(g)] = new_h;\n                }",
            ),
            ("an unaligned h read by whole accesses", FORWARD, "t || aligned<8>(before),", "true,"),
            ("half of the elements left out", TWIN, "which < 2; ++which", "which < 1; ++which"),
        ],
    ),
    "lltm_tensor_cores_backward": (
        "sequence_back_step_by_step and tensor-cores",
        [
            ("the first rows again", SHARED, "prefetch(n + AHEAD);", "prefetch(n);"),
            (
                "weights not transposed",
                BACKWARD,
                "weights[j * K + first_unit + unit]",
                "weights[(first_unit + unit) * K + j % STATE]",
            ),
            ("an absent gradient read", BACKWARD, "            if (grad_last) {\n", "            {\n"),
            (
                "the last h for the last c",
                BACKWARD,
                "((grad_last + B * STATE)[own.place(g)])",
                "(grad_last[own.place(g)])",
            ),
            ("the cell's gradient not carried", BACKWARD, "if (grad_cells) dc[g] +=", "if (grad_cells) dc[g] ="),
            ("the outer gradient of h left out", BACKWARD, "dh[g] + more[g], dc[g], dz", "dh[g], dc[g], dz"),
            ("steps before the first read", BACKWARD, "if (t > 0) prefetch(g, t - 1);", "prefetch(g, t - 1);"),
            ("the same step again", BACKWARD, "if (t > 0) prefetch(g, t - 1);", "if (t > 0) prefetch(g, t);"),
            ("only the first step's dL/db", BACKWARD, "bias_sum[gate] += dz[gate];", "bias_sum[gate] = dz[gate];"),
            (
                "dL/db of rounded terms",
                BACKWARD,
                "bias_sum[gate] += dz[gate];",
                "bias_sum[gate] += convert<acc_t>(convert<scalar_t>(dz[gate]));",
            ),
            (
                "barriers counted from the wrong end",
                BACKWARD,
                "team_barrier(counters + tile, T - t)",
                "team_barrier(counters + tile, t + 1)",
            ),
            (
                "a barrier too early",
                BACKWARD,
                "team_barrier(counters + tile, T - t)",
                "team_barrier(counters + tile, T - t - 1)",
            ),
            (
                "rows of another tile",
                BACKWARD,
                "grad_z_t + first_row * GATES * STATE, B",
                "grad_z_t + first_row * STATE, B",
            ),
            ("parts of dL/db mixed", BACKWARD, "part = tile * ROWS + threadIdx.x", "part = tile + threadIdx.x"),
            ("h for c", BACKWARD, "= convert<scalar_t>(dc[g]);", "= convert<scalar_t>(dh[g]);"),
            ("slices of fewer warps", SHARED, "(i * WARPS + warp) * SLICE", "(i * (WARPS - 1) + warp) * SLICE"),
            ("steps of the gates' gradient too close", BACKWARD, "(grad_gates + step * GATES)", "(grad_gates + step)"),
        ],
    ),
}
