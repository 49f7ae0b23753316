"""The mutants of the sums over columns."""

SUMS = "column_sums.cu"

Fault = tuple[str, str, str, str]  # what, file, old, new

COLUMN_SUMS: dict[str, tuple[str, list[Fault]]] = {
    "column_sums": (
        "column_sums",
        [
            ("off by one in the bound", SUMS, "if (column < N)", "if (column <= N)"),
            ("no bound of the result", SUMS, "|| out == nullptr || column >= N)", "|| out == nullptr)"),
            (
                "no bound of the result of few parts",
                SUMS,
                "    if (column >= N) return;\n    if (first",
                "    if (first",
            ),
            ("absent sums stored", SUMS, "|| out == nullptr || column >= N)", "|| column >= N)"),
            ("absent first sums of few parts stored", SUMS, "if (first != nullptr) first", "first"),
            ("absent second sums of few parts stored", SUMS, "MATRICES > 1 && second != nullptr", "MATRICES > 1"),
            ("wrong stride over the parts", SUMS, "p += AT_ONCE", "p += AT_ONCE + 1"),
            ("last part left out", SUMS, "p < parts; p += AT_ONCE", "p < parts - 1; p += AT_ONCE"),
            ("dropped barrier", SUMS, "    __syncthreads();\n", ""),
            ("a warp's sums left out", SUMS, "i < AT_ONCE; ++i", "i < AT_ONCE - 1; ++i"),
            ("first matrix for both", SUMS, "partial[(m * parts + p) * N + column]", "partial[p * N + column]"),
            (
                "address cut to 32 bits",
                SUMS,
                "partial[(m * parts + p) * N + column]",
                "partial[int((m * parts + p) * N) + column]",
            ),
            ("matrices swapped", SUMS, "threadIdx.y == 0 ? first : second", "threadIdx.y == 0 ? second : first"),
            ("first sums for both", SUMS, "total += sums[threadIdx.y][i]", "total += sums[0][i]"),
            ("second matrix left out", SUMS, "threadIdx.y >= MATRICES ||", "threadIdx.y > 0 ||"),
            (
                "second matrix of few parts has the first sums",
                SUMS,
                "convert<scalar_t>(found[MATRICES - 1])",
                "convert<scalar_t>(found[0])",
            ),
            (
                "warps share a row of the table",
                SUMS,
                "sums[m][threadIdx.y][threadIdx.x] = found[m];",
                "sums[m][threadIdx.y / 2][threadIdx.x] = found[m];",
            ),
            ("columns of another block", SUMS, "(blockIdx.x) * WIDTH", "(blockIdx.x) * 32"),
        ],
    ),
}
