"""Kernels with planted faults of bounds, and right kernels that are unusual: (name, text, policy, assumptions)."""

from dataclasses import dataclass

from cupyops import Blocks, GridStride, Kernel, Rows, Threads
from cupyops.launch.geometry import Geometry

I64 = "const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;"
I32 = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
XY = "const float* x, /* (n) */ float* y, /* (n) */ long long n"
XY32 = "const float* x, /* (n) */ float* y, /* (n) */ int n"
MN = "const float* x, /* (M, N) */ float* y, /* (M, N) */ int M, int N"
ROWS = "const float* x, /* (M, N) */ float* y, /* (M) */ long long M, long long N"


@dataclass(frozen=True)
class Case:
    """A kernel of its parameters and its body."""

    name: str
    parameters: str
    body: str
    geometry: Geometry | None
    assume: tuple[str, ...] = ()
    shared: int | str = 0

    @property
    def kernel(self) -> Kernel:
        text = f'extern "C" __global__ void k({self.parameters}) {{\n{self.body}\n}}'
        return Kernel(text, "k", self.geometry, shared=self.shared)


# Each iteration sets a pointer to another one and a distance, as unrolled loops do.
def _two_pointers(distance: int) -> str:
    return f"""unsigned long long p = (unsigned long long)y, q = p + {distance};
    for (int k = 0; k + 1 < n; k += 2) {{
        asm volatile("st.global.f32 [%0], 0f00000000;" ::"l"(p));
        asm volatile("st.global.f32 [%0], 0f00000000;" ::"l"(q));
        p += 8;
        asm volatile("add.s64 %0, %1, {distance};" : "=l"(q) : "l"(p));
    }}"""


N = Threads("n")
BROKEN = (
    Case("a second pointer an element ahead", XY32, _two_pointers(8), None),
    Case("guard off by one", XY, I64 + "if (i <= n) y[i] = x[i];", N),
    Case("no guard", XY, I64 + "y[i] = x[i];", N),
    Case("the next element", XY, I64 + "if (i < n) y[i] = x[i + 1];", N),
    Case("the element before", XY, I64 + "if (i < n) y[i] = x[i - 1];", N),
    Case("reversed by one too many", XY, I64 + "if (i < n) y[i] = x[n - i];", N),
    Case("vectors past the end", XY, I64 + "if (i * 2 < n) ((float2*)y)[i] = ((const float2*)x)[i];", N),
    Case(
        "vectors of arrays that are not aligned",
        XY,
        I64 + "if (i * 4 + 3 < n) ((float4*)y)[i] = ((const float4*)x)[i];",
        N,
    ),
    Case("32 bits of an index", XY, I32 + "if (i < n) y[i] = x[i];", N),
    Case(
        "32 bits of a product",
        MN.replace("int M, int N", "long long M, long long N"),
        "const int c = threadIdx.x; if (c < N) y[(int)blockIdx.x * (int)N + c] = 1;",
        Rows("M"),
        ("N <= 256",),
    ),
    Case("unsigned below 0", XY, I64 + "if (i < n) y[i] = x[i > 0 ? i - 1u : n];", N),
    Case(
        "stride of the wrong dimension",
        MN,
        "const int r = blockIdx.y, c = blockIdx.x * 32 + threadIdx.x; if (c < N && r < M) y[r * M + c] = x[r * N + c];",
        Blocks("ceil(N / 32)", "M", block=32),
    ),
    Case(
        "dimensions swapped in the guard",
        MN,
        "const int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;\n"
        "if (c < M && r < N) y[(long long)r * N + c] = x[(long long)r * N + c];",
        Threads("N", "M", block=(16, 16)),
    ),
    Case(
        "grid of too many blocks",
        "float* y, /* (M) */ long long M, long long N",
        "if (threadIdx.x == 0) y[blockIdx.x] = 1;",
        Rows("N"),
    ),
    Case(
        "grid-stride loop to the end",
        XY,
        "for (long long i = blockIdx.x * 256 + threadIdx.x; i <= n; i += gridDim.x * 256) y[i] = 1;",
        GridStride("n"),
    ),
    Case("loop of pairs", XY, I64 + "for (int j = 0; j < 2; ++j) if (2 * i < n) y[2 * i + j] = 0;", N),
    Case(
        "loop over a row to the end",
        ROWS,
        "float s = 0; for (long long c = threadIdx.x; c <= N; c += 256) s += x[blockIdx.x * N + c]; y[blockIdx.x] = s;",
        Rows("M"),
    ),
    Case(
        "shared memory of half the block",
        XY,
        I64 + "__shared__ float t[128]; t[threadIdx.x] = i < n ? x[i] : 0; __syncthreads();\n"
        "if (i < n) y[i] = t[255 - threadIdx.x];",
        N,
    ),
    Case(
        "dynamic shared memory for one row too few",
        "float* y, /* (n) */ int n",
        "extern __shared__ float t[]; t[threadIdx.x] = 1; __syncthreads(); if (threadIdx.x < n) y[threadIdx.x] = t[threadIdx.x];",
        Blocks(1, block=64),
        (),
        252,
    ),
    Case(
        "a part of each warp",
        XY,
        "__shared__ float t[7]; if (threadIdx.x % 32 == 0) t[threadIdx.x / 32] = n; __syncthreads();\n"
        "if (threadIdx.x == 0 && n > 0) y[0] = t[n % 7];",
        N,
    ),
    Case(
        "an optional array",
        "const float* x, /* (n) or null */ float* y, /* (n) */ long long n",
        I64 + "if (i < n) y[i] = x[i];",
        N,
    ),
    Case(
        "an atomic sum past the end",
        "float* y, /* (K) */ long long n, long long K",
        I64 + "if (i < n) atomicAdd(y + i % (K + 1), 1.f);",
        N,
        ("K >= 1",),
    ),
    Case("every other element twice", XY, I64 + "if (i < n) y[2 * i] = x[i];", N),
    Case("an index from memory", XY + ", const long long* at /* (n) */", I64 + "if (i < n) y[i] = x[at[i]];", N),
    Case("a launch on any grid", XY, I64 + "y[i] = x[i];", None),
)

RIGHT = (
    Case("two pointers of a loop", XY32, _two_pointers(4), None),
    Case("guard", XY, I64 + "if (i < n) y[i] = x[i];", N),
    Case("early return", XY, I64 + "if (i >= n) return; y[i] = x[n - 1 - i];", N),
    Case(
        "neighbours at both ends", XY, I64 + "if (i < n) y[i] = x[i > 0 ? i - 1 : 0] + x[i + 1 < n ? i + 1 : n - 1];", N
    ),
    Case("clamped by min and max", XY32, I32 + "if (i < n) y[i] = x[min(max(i - 3, 0), n - 1)];", N),
    Case("rotated", XY, I64 + "if (i < n) y[(i + 1) % n] = x[i];", N, ("n <= 1000000000",)),
    Case("32 bits where they suffice", XY32, I32 + "if (i < n) y[i] = x[i];", N),
    Case(
        "vectors of a checked address",
        XY,
        I64 + "const bool whole = (((unsigned long long)x | (unsigned long long)y) & 15) == 0;\n"
        "if (whole && 4 * i + 3 < n) ((float4*)y)[i] = ((const float4*)x)[i];\n"
        "else for (int j = 0; j < 4; ++j) if (4 * i + j < n) y[4 * i + j] = x[4 * i + j];",
        N,
    ),
    Case(
        "vectors of a type",
        "const float4* x, /* (n) */ float4* y, /* (n) */ long long n",
        I64 + "if (i < n) y[i] = x[i];",
        N,
    ),
    Case(
        "grid-stride loop",
        XY,
        "for (long long i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) y[i] = x[i];",
        GridStride("n"),
    ),
    Case(
        "loop backwards",
        XY,
        "for (long long i = n - 1 - threadIdx.x; i >= 0; i -= 256) y[i] = x[i];",
        Blocks(1, block=256),
    ),
    Case(
        "two dimensions",
        MN,
        "const int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;\n"
        "if (c < N && r < M) y[(long long)r * N + c] = x[(long long)r * N + c];",
        Threads("N", "M", block=(16, 16)),
    ),
    Case(
        "transposed",
        MN.replace("float* y, /* (M, N) */", "float* y, /* (N, M) */"),
        "const int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;\n"
        "if (c < N && r < M) y[(long long)c * M + r] = x[(long long)r * N + c];",
        Threads("N", "M", block=(16, 16)),
    ),
    Case(
        "flat index taken apart",
        "const float* x, /* (N) */ float* y, /* (M, N) */ long long M, long long N, long long n",
        I64 + "if (i < M * N) y[i] = x[i % N];",
        N,
        ("N >= 1", "M <= 100000", "N <= 100000"),
    ),
    Case(
        "three dimensions",
        "float* y, /* (B, M, N) */ int B, int M, int N",
        "const int c = blockIdx.x * 32 + threadIdx.x; if (c < N) y[((long long)blockIdx.z * M + blockIdx.y) * N + c] = 1;",
        Blocks("ceil(N / 32)", "M", "B", block=32),
    ),
    Case(
        "sums of rows",
        ROWS,
        "__shared__ float t[8]; float s = 0;\n"
        "for (long long c = threadIdx.x; c < N; c += 256) s += x[blockIdx.x * N + c];\n"
        "for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);\n"
        "if (threadIdx.x % 32 == 0) t[threadIdx.x / 32] = s;\n__syncthreads();\n"
        "if (threadIdx.x == 0) { for (int w = 1; w < 8; ++w) s += t[w]; y[blockIdx.x] = s; }",
        Rows("M"),
    ),
    Case(
        "a tree in shared memory",
        XY32,
        I32 + "__shared__ float t[256]; t[threadIdx.x] = i < n ? x[i] : 0; __syncthreads();\n"
        "for (int s = 128; s > 0; s >>= 1) { if (threadIdx.x < s) t[threadIdx.x] += t[threadIdx.x + s]; __syncthreads(); }\n"
        "if (i < n) y[i] = t[0];",
        N,
    ),
    Case(
        "dynamic shared memory",
        "float* y, /* (n) */ int n",
        "extern __shared__ float t[]; t[threadIdx.x] = 1; __syncthreads();\n"
        "for (int i = threadIdx.x; i < n; i += 64) y[i] = t[i & 63];",
        Blocks(1, block=64),
        ("n <= 2000000000",),
        256,
    ),
    Case(
        "an optional array",
        "const float* x, /* (n) or null */ float* y, /* (n) */ long long n",
        I64 + "if (i < n) y[i] = x ? x[i] : 0.f;",
        N,
    ),
    Case(
        "a checked index from memory",
        "const int* at, /* (n) */ const float* x, /* (K) */ float* y, /* (n) */ int n, int K",
        I32 + "if (i < n) { const int j = at[i]; y[i] = j >= 0 && j < K ? x[j] : 0.f; }",
        N,
    ),
    Case(
        "the same of 64 bits",
        "const long long* at, /* (n) */ const float* x, /* (K) */ float* y, /* (n) */ int n, long long K",
        I32 + "if (i < n) { const long long j = at[i]; y[i] = j >= 0 && j < K ? x[j] : 0.f; }",
        N,
    ),
    Case(
        "a histogram",
        "const int* x, /* (n) */ unsigned* y, /* (256) */ int n",
        I32 + "if (i < n) atomicAdd(y + (x[i] & 255), 1u);",
        N,
    ),
    Case(
        "any grid",
        XY,
        "for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n;\n"
        "     i += (unsigned long long)gridDim.x * blockDim.x) y[i] = x[i];",
        None,
    ),
    Case(
        "pairs of even rows",
        MN.replace("int M, int N", "long long M, long long N"),
        "for (long long c = 2 * threadIdx.x; c < N; c += 512) { y[blockIdx.x * N + c] = 0; y[blockIdx.x * N + c + 1] = x[blockIdx.x * N + c + 1]; }",
        Rows("M"),
        ("N % 2 == 0",),
    ),
)
