"""The mutants of layer normalisation's backward with a ring, as those of ``mutants_layer_norm_backward.py``."""

RING, BACKWARD = "layer_norm_backward_ring.cu", "layer_norm_backward.cuh"
GRADIENTS, NORM = "layer_norm_column_gradients.cuh", "layer_norm.cuh"

Fault = tuple[str, str, str, str]  # what, file, old, new

LAYER_NORM_RING: dict[str, tuple[str, list[Fault]]] = {
    "layer_norm_backward_ring": (
        "backward and ring",
        [
            ("phase of a place kept", RING, "index = 0, phase ^= 1;", "index = 0;"),
            ("one place too few", RING, "(index += AT_ONCE) == RING)", "(index += AT_ONCE) == RING - AT_ONCE)"),
            ("one place too many", RING, "(index += AT_ONCE) == RING)", "(index += AT_ONCE) == RING + AT_ONCE)"),
            ("x where the gradient lies", RING, "(index + behind) * BYTES + BEHIND_G)", "(index + behind) * BYTES)"),
            (
                "copies of rows that are not whole",
                RING,
                "of.aligned() && Ring::can_copy(N, grad_y, s);",
                "of.aligned();",
            ),
            (
                "place filled again before it is read",
                RING,
                "        begin(step);\n",
                "        request(step + RING / VECTORS, RING % VECTORS, stored);\n        begin(step);\n",
            ),
            (
                "a warp's readers not waited for",
                RING,
                "        __syncwarp();\n        if (lane == 0) arrive",
                "        if (lane == 0) arrive",
            ),
            ("one counter for all warps", RING, "arrivals[threadIdx.x / 32], vectors}", "arrivals[0], vectors}"),
            (
                "the next piece asked for",
                RING,
                "first_piece = v + 1 - AT_ONCE + RING;",
                "first_piece = v + 1 + RING;",
            ),
            (
                "the next row asked for",
                RING,
                "request(turn + first_piece / VECTORS, first",
                "request(turn + 1 + first_piece / VECTORS, first",
            ),
            (
                "copy beyond the end of the row",
                RING,
                "left > PART ? PART : left < 0 ? 0 : left;",
                "true ? PART : left;",
            ),
            ("x copied from the gradient", RING, "s + at, static", "g + at, static"),
            ("bytes of one piece expected", RING, "elements += elements_of(v + i);", "elements = elements_of(v + i);"),
            ("pieces of a row in one place", RING, "place.g(piece) - behind", "place.g(0) - behind"),
            (
                "x of the second thread's place",
                RING,
                "place.s(piece) - behind, s + at",
                "place.s(piece) - behind + VECTOR_WIDTH, s + at",
            ),
            ("each block the first slice", RING, "return columns.start + (v", "return (v"),
            ("rows not waited for", RING, "if (v % AT_ONCE == 0) ring.wait(summed);", ""),
            ("statistics of the first 32 rows", RING, "if (turn % 32 == 0 && turn", "if (turn == 0 && turn"),
            ("statistics of a lane that has no row", RING, "turn % 32 == 0 && turn + lane < turns", "turn % 32 == 0"),
            (
                "statistics of neighbouring rows",
                RING,
                "of_lane = first + (turn + lane) * parts",
                "of_lane = first + turn * parts + lane",
            ),
            (
                "statistics of the row ahead",
                RING,
                "        if (!SUM_AHEAD) row = next;",
                "        row = next;",
            ),
            (
                "swapped sums",
                RING,
                "exchange.publish({sums[0], sums[1]}, turn);",
                "exchange.publish({sums[1], sums[0]}, turn);",
            ),
            ("last row left out", RING, "step < turns + SUM_AHEAD;", "step < turns;"),
            (
                "address cut to 32 bits",
                RING,
                "ring.request(place, v, (first + turn * parts) * N);",
                "ring.request(place, v, int((first + turn * parts) * N));",
            ),
            (
                "address of the gradient cut to 32 bits",
                RING,
                "const long long at_row = (first + turn * parts) * N;",
                "const int at_row = (first + turn * parts) * N;",
            ),
            (
                "all parts in one place",
                RING,
                "gradients.store(partial, columns, first, parts)",
                "gradients.store(partial, columns, 0, parts)",
            ),
            ("the wrong gradient added", RING, "of.load_more(at, vectors)", "load_packed(s + at, vectors)"),
            (
                "gradient of the sum of the first row",
                RING,
                "of.load_more(at, vectors)",
                "of.load_more(columns.of(v), vectors)",
            ),
            (
                "gradient of the sum of the row ahead",
                RING,
                "of.load_more(at, vectors)",
                "of.load_more(at_row + SUM_AHEAD * parts * N < M * N ? at + SUM_AHEAD * parts * N : at, vectors)",
            ),
            (
                "gradient of the sum taken for aligned",
                BACKWARD,
                "all_aligned(grad_y, s, weight, grad_sum, grad_x)",
                "all_aligned(grad_y, s, weight, grad_x)",
            ),
            (
                "gradient of the sum over the deviation",
                BACKWARD,
                "fma(rstd, in_deviations, more[k])",
                "rstd * (in_deviations + more[k])",
            ),
            ("blocks do not wait for each other's counters", RING, "    sync_cluster();\n", ""),
            (
                "weights in the places of the ring",
                RING,
                "ring_memory + RING * Place::BYTES)",
                "ring_memory + (RING - 1) * Place::BYTES)",
            ),
            ("weights of the registers stored too", GRADIENTS, "kept.store(v - HELD, loaded)", "kept.store(v, loaded)"),
            ("weights of another access", GRADIENTS, ".load(v - HELD)", ".load(v)"),
            (
                "halves of wider weights overlap",
                NORM,
                "(i * ELEMENTS + place_of(v)) / PIECES",
                "(i * 32 + place_of(v)) / PIECES",
            ),
        ],
    ),
}
