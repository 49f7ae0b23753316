"""The mutants of the matrix kernel of sm_90 (``mutants.py``): the tests held against it, and its faults."""

TEXT = "linear_gelu_sm90.cu"

Fault = tuple[str, str, str, str]  # what, file, old, new


def _of(what: str, old: str, new: str) -> Fault:
    return what, TEXT, old, new


_EMPTY = "                    arrival_wait(empty + stage, turn / STAGES % 2 ^ 1);\n"
_FULL = "                arrival_wait(full + stage, turn / STAGES % 2);\n"
_SLICE_FREE = "if (k > 0 && thread < 2) arrive_in(thread, empty + (turn - 1) % STAGES);"
_LAST_FREE = "            if (thread < 2) arrive_in(thread, empty + (turn - 1) % STAGES);\n            settle"
_FIRST_MEETING = "                meet(group, 128);\n#pragma"
_SECOND_MEETING = "                meet(group, 128);\n                if (thread == 0) {"
_OWN_ROW = "const int row = (place.m * 2 + rank) * TILE_M + half * 64, first"
_BIASES = "bias && column < N ? "

LINEAR_GELU_SM90: dict[str, tuple[str, list[Fault]]] = {
    "linear_gelu_sm90": (
        "(y_and_z or cut_and_the_number or pairs_are_made or stays_in_its_row)",
        [
            # The producer, and what both sides count.
            _of("no wait before a stage is used again", _EMPTY, ""),
            _of("the wrong phase of a stage that is to be free", _EMPTY, _EMPTY.replace(" ^ 1", "")),
            _of("no wait for a slice", _FULL, ""),
            _of("the wrong phase of a slice", _FULL, _FULL.replace("% 2)", "% 2 ^ 1)")),
            _of("phases that do not turn", _FULL, _FULL.replace("turn / STAGES % 2", "0")),
            _of(
                "only x's bytes expected",
                "arrive_expecting(full + stage, STAGE_BYTES)",
                "arrive_expecting(full + stage, X_BYTES)",
            ),
            _of(
                "a stage free as soon as one block is done with it",
                "arrival_init(empty + s, 4)",
                "arrival_init(empty + s, 2)",
            ),
            _of(
                "a stage free as soon as three of four groups are done",
                "arrival_init(empty + s, 4)",
                "arrival_init(empty + s, 3)",
            ),
            _of(
                "the last stage not set up",
                "for (int s = 0; s < STAGES; ++s) {\n",
                "for (int s = 0; s < STAGES - 1; ++s) {\n",
            ),
            _of("the consumers' stages come round too early", "turn % STAGES, at =", "turn % (STAGES - 1), at ="),
            _of(
                "no barrier before the other block's counters are used",
                "    meet_cluster();\n    unsigned turn",
                "    __syncthreads();\n    unsigned turn",
            ),
            _of(
                "no barrier at all before counters are used",
                "    meet_cluster();\n    unsigned turn",
                "    unsigned turn",
            ),
            _of(
                "a block ends while the other sends to it",
                "    meet_cluster();\n}",
                "}",
            ),
            # What is fetched.
            _of("the last slice along K left out", "(K + TILE_K - 1) / TILE_K", "K / TILE_K"),
            _of("the last tile along N left out", "(N + TILE_N - 1) / TILE_N", "N / TILE_N"),
            _of("the last pair along M left out", "(M + 2 * TILE_M - 1) / (2 * TILE_M)", "M / (2 * TILE_M)"),
            _of("x's slices of the first column", "load_box(to, &x_map, k * TILE_K,", "load_box(to, &x_map, 0,"),
            _of("both blocks fetch the same rows of W", "place.n * TILE_N + rank * (TILE_N / 2);", "place.n * TILE_N;"),
            _of("both halves of W to one place", "to + X_BYTES + rank * (TILE_N / 2 * TILE_K * 2)", "to + X_BYTES"),
            _of("W fetched for one block alone", "load_box_for_both(half_of_weight", "load_box(half_of_weight"),
            _of(
                "both blocks fetch the same rows of x",
                "const int row = (place.m * 2 + rank) * TILE_M, row_of_weight",
                "const int row = place.m * 2 * TILE_M, row_of_weight",
            ),
            # The products.
            _of("both groups multiply the first half of x", "rows_at(at + half * (X_BYTES / 2))", "rows_at(at)"),
            _of("W where x lies", "of_weight = rows_at(at + X_BYTES)", "of_weight = rows_at(at)"),
            _of("steps along K of 16 bytes", "of_x + 2 * i, of_weight + 2 * i", "of_x + i, of_weight + i"),
            _of("x's steps along K left out", "of_x + 2 * i, of_weight", "of_x, of_weight"),
            _of("a tile added to the one before", "k > 0 || i > 0);", "true);"),
            _of("each slice begins anew", "k > 0 || i > 0);", "i > 0);"),
            _of("registers not ordered before a product", "                multiply_begin();\n", ""),
            _of("products never committed", "                multiply_commit();\n", ""),
            _of("a stage freed while its slice is read", "multiply_wait<1>();", "multiply_wait<2>();"),
            _of("the stage freed that has just been asked for", _SLICE_FREE, _SLICE_FREE.replace("(turn - 1)", "turn")),
            _of(
                "a stage freed in one block alone",
                _SLICE_FREE,
                _SLICE_FREE.replace("arrive_in(thread,", "arrive_in(rank,"),
            ),
            _of(
                "a stage freed by each thread",
                _SLICE_FREE,
                _SLICE_FREE.replace("thread < 2", "true").replace("(thread,", "(thread % 2,"),
            ),
            _of("the last stage of a tile not freed", _LAST_FREE, "            settle"),
            _of("sums read before they are finished", "            multiply_wait<0>();\n", ""),
            # The end of a tile.
            _of("the second group's rows on the first's", _OWN_ROW, _OWN_ROW.replace(" + half * 64", "")),
            _of("the second block's rows on the first's", _OWN_ROW, _OWN_ROW.replace(" + rank", "")),
            _of("biases read beyond the last", _BIASES, "bias ? "),
            _of("an absent bias read", _BIASES, "column < N ? "),
            _of("the last biases left out", _BIASES, "bias && column + 8 < N ? "),
            _of("biases of a neighbouring column", "first + j * 8 + lane % 4 * 2", "first + j * 8 + lane % 4"),
            _of("biases of the first tile for all", "const int column = first + j", "const int column = j"),
            _of("one bias for two columns", "z3 = s[3] + b1;", "z3 = s[3] + b0;"),
            _of("the second row's sums without bias", "z2 = s[2] + b0", "z2 = s[2]"),
            _of(
                "both rows the first",
                "zs[2 * j + 1] = Scalar<scalar_t>::narrow_two(z2, z3)",
                "zs[2 * j + 1] = Scalar<scalar_t>::narrow_two(z0, z1)",
            ),
            _of(
                "two columns swapped",
                "ys[2 * j] = Scalar<scalar_t>::narrow_two(gelu(z0), gelu(z1))",
                "ys[2 * j] = Scalar<scalar_t>::narrow_two(gelu(z1), gelu(z0))",
            ),
            _of("the derivative for the value", "gelu(z0), gelu(z1)", "gelu_derivative(z0), gelu_derivative(z1)"),
            _of("gelu of sums without bias", "gelu(z2), gelu(z3)", "gelu(s[2]), gelu(s[3])"),
            _of(
                "gelu of what has been rounded",
                "gelu(z0), gelu(z1)",
                "gelu(Scalar<scalar_t>::widen(zs[2 * j], 0)), gelu(Scalar<scalar_t>::widen(zs[2 * j], 1))",
            ),
            _of("pieces not swizzled", "(lane / 16 ^ lane % 8) * 16", "lane / 16 * 16"),
            _of(
                "a piece's swizzle added", "const unsigned at = row_at ^ j * 16", "const unsigned at = row_at + j * 16"
            ),
            _of("rows of a piece twice as wide", "(PIECE * 2) + (lane / 16", "(PIECE * 4) + (lane / 16"),
            _of("both groups leave by one piece", "pieces + half * PIECES * 2 * PIECE_BYTES", "pieces"),
            _of("y's piece on z's", "y_piece = z_piece + PIECE_BYTES", "y_piece = z_piece"),
            _of(
                "pieces that overlap",
                "own_pieces + c % PIECES * 2 * PIECE_BYTES",
                "own_pieces + c % PIECES * PIECE_BYTES",
            ),
            _of(
                "a piece overwritten before it has been read",
                "stores_have_read<PIECES - 1>()",
                "stores_have_read<PIECES>()",
            ),
            _of(
                "nobody waits for pieces to be read",
                "                if (thread == 0) stores_have_read<PIECES - 1>();\n",
                "",
            ),
            _of("no barrier before a piece is overwritten", _FIRST_MEETING, "#pragma"),
            _of(
                "no barrier before a piece is sent",
                _SECOND_MEETING,
                _SECOND_MEETING.replace("                meet(group, 128);\n", ""),
            ),
            _of("the groups at each other's barrier", _SECOND_MEETING, _SECOND_MEETING.replace("meet(group", "meet(1")),
            _of(
                "a barrier of all where a group meets",
                _SECOND_MEETING,
                _SECOND_MEETING.replace("meet(group, 128)", "__syncthreads()"),
            ),
            _of("what was written not shown to the copies", "                show_to_copies();\n", ""),
            _of("z's columns of the first piece", "store_box(&z_map, first + c * PIECE,", "store_box(&z_map, first,"),
            _of(
                "y sent as z",
                "store_box(&z_map, first + c * PIECE, row, z_piece)",
                "store_box(&z_map, first + c * PIECE, row, y_piece)",
            ),
            _of("stores never committed", "                    stores_commit();\n", ""),
            _of("nobody waits for the last stores", "        if (thread == 0) stores_are_done();\n", ""),
            # Which tiles.
            _of("each cluster makes one pair alone", "step = static_cast<int>(clusters)", "step = pairs"),
            _of("blocks for clusters", "static_cast<int>(blockIdx.x) / 2, step", "static_cast<int>(blockIdx.x), step"),
            _of(
                "along N first",
                "return {first + in % height, in / height};",
                "return {first + in / tiles_n, in % tiles_n};",
            ),
            _of(
                "the last group as high as the others",
                "pairs_m - first < PAIRS_M ? pairs_m - first : PAIRS_M",
                "PAIRS_M",
            ),
            _of("groups that overlap", "first = pair / group * PAIRS_M, in", "first = pair / group, in"),
            _of(
                "tiles along M and N swapped",
                "return {first + in % height, in / height};",
                "return {in / height, first + in % height};",
            ),
        ],
    ),
}
