"""The CUDA constructs that the simulator covers, compared with the results of a GPU, with and without checks."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import cupyops
from cupyops import GridStride, Kernel, LaunchError, Rows, Threads
from tests.conftest import NO_COMPILER

pytestmark = [
    pytest.mark.simulator,
    pytest.mark.parametrize("sanitize", [False, True], ids=["plain", "sanitized"]),
]
assert NO_COMPILER is not None


def run(
    body: str, *, n: int = 64, rows: int = 1, block: int = 64, shared: int = 0, before: str = "", k: int = 0
) -> np.ndarray:
    """`y[n]` doubles, from `x[n]` = 0, 1, 2 ..., one block a row."""
    text = f"""{before}
extern "C" __global__ void k(const float* x, // (n)
    double* y, // (n)
    long long M, int n, int k) {{ const int t = threadIdx.x; (void)t; {body} }}"""
    found = Kernel(text, "k", Rows("M", block=block), dtypes=("float32",), shared=shared)
    x, y = np.arange(n, dtype=np.float32), np.zeros(n)
    found(x, y, rows, n, k)
    return y


@pytest.fixture(autouse=True)
def _simulated(sanitize: bool):  # type: ignore[no-untyped-def]
    with cupyops.simulate(sanitize=sanitize):
        yield


def one_of(expressions: Sequence[tuple[str, object]], to: str) -> str:
    """Assigns the expression number `k`: one text with all of them takes one compilation."""
    return "switch (k) {\n" + "\n".join(f"case {i}: {to} = {e}; break;" for i, (e, _) in enumerate(expressions)) + "\n}"


# Threads and geometry


def test_indices_in_three_dimensions() -> None:
    text = """extern "C" __global__ void k(int* y, // (N, M, L, 3)
        int L, int M, int N) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y,
                  l = blockIdx.z * blockDim.z + threadIdx.z;
        if (i >= L || j >= M || l >= N) return;
        int* to = y + 3 * ((l * M + j) * L + i);
        to[0] = i, to[1] = j, to[2] = l;
        if (gridDim.x != 3 || gridDim.y != 2 || gridDim.z != 2 || blockDim.x != 4 || warpSize != 32) to[0] = -1;
    }"""
    kernel = Kernel(text, "k", Threads("L", "M", "N", block=(4, 3, 2)), dtypes=("int32",))
    y = np.zeros((3, 5, 9, 3), np.int32)
    kernel(y, 9, 5, 3)
    wanted = np.stack(np.meshgrid(np.arange(3), np.arange(5), np.arange(9), indexing="ij")[::-1], -1)
    assert (y == wanted).all()


def test_a_stride_over_the_grid() -> None:
    text = """extern "C" __global__ void k(int* y, // (n)
        long long n) { for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += 1; }"""
    y = np.zeros(100_003, np.int32)
    Kernel(text, "k", GridStride("n"), dtypes=("int32",))(y, y.size)
    assert (y == 1).all()


# Shared memory


SHARED = [
    "__shared__ float s[64]; s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];",
    "__shared__ float a[2], s[64], *p; if (t == 0) p = s; s[t] = x[t]; __syncthreads(); y[t] = p[63 - t] + 0 * sizeof(a);",
    "__shared__ float s[8][8]; s[t / 8][t % 8] = x[t]; __syncthreads(); y[t] = s[7 - t / 8][7 - t % 8];",
    "__shared__ alignas(16) float s[64]; s[t] = x[t]; __syncthreads(); y[t] = reinterpret_cast<float4*>(s)[15 - t / 4].w - t % 4;",
    "__shared__ struct { int pad; float v[64]; } s; s.v[t] = x[t]; __syncthreads(); y[t] = s.v[63 - t];",
    "__shared__ union { float v[64]; double d[32]; } s; s.v[t] = x[t]; __syncthreads(); y[t] = s.v[63 - t];",
    "volatile __shared__ float s[64]; s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];",
    "extern __shared__ float s[]; s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];",
    "extern __shared__ __align__(16) unsigned char raw[]; float* s = (float*)raw; s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];",
    "y[t] = reversed<64>(x[t]);",
    "y[t] = Reverser<float>::of(x[t]);",
    "auto f = [] (float v) { __shared__ float s[64]; s[threadIdx.x] = v; __syncthreads(); return s[63 - threadIdx.x]; }; y[t] = f(x[t]);",
    "__shared__ float s[64]; auto put = [=](float v) { s[threadIdx.x] = v; }; put(x[t]); __syncthreads(); y[t] = s[63 - t];",
    "global_s[t] = x[t]; __syncthreads(); y[t] = global_s[63 - t];",
]
BEFORE = """
__shared__ float global_s[64];
template <int N> __device__ float reversed(float v) {
    __shared__ float s[N];  // one for each N
    s[threadIdx.x] = v;
    __syncthreads();
    return s[N - 1 - threadIdx.x];
}
template <typename T> struct Reverser {
    static __device__ T of(T v) { __shared__ T s[64]; s[threadIdx.x] = v; __syncthreads(); return s[63 - threadIdx.x]; }
};
"""


@pytest.mark.sample(14)
@pytest.mark.parametrize("body", SHARED)
def test_every_form_of_shared_memory(body: str) -> None:
    y = run(f"y += 64 * blockIdx.x; {body}", n=192, rows=3, shared=256, before=BEFORE)
    assert y.tolist() == 3 * list(range(63, -1, -1))


def test_forms_of_shared_memory_that_are_not_covered_are_named() -> None:
    with pytest.raises(cupyops.CompileError, match=r"k: k.cu:4: the simulator takes shared variables as"):
        run("__shared__ float (*p)[4]; y[t] = 0;")


def test_shared_memory_of_one_name_in_two_kernels() -> None:
    """Templates of the same name are symbols of the same name, which a loader could take for one another."""
    body = "y[t] = reversed<64>(x[t]);"
    for pad in (1, 1000, 2000):
        before = BEFORE.replace("float global_s[64];", f"float global_s[{pad}];")
        assert run(body + f" if (t == 0) global_s[{pad - 1}] = 1;", before=before).tolist() == list(range(63, -1, -1))


def test_barriers_that_vote() -> None:
    y = run("y[t] = __syncthreads_count(t < 10) * 100 + __syncthreads_and(t < 64) * 10 + __syncthreads_or(t == 77);")
    assert y.tolist() == [1010.0] * 64


# Warps


@pytest.mark.parametrize("width", [32, 16, 8, 1])
@pytest.mark.parametrize("kind", ["idx", "up", "down", "xor"])
@pytest.mark.parametrize("by", [0, 1, 3, 9, 31])
def test_shuffles_in_every_width(kind: str, width: int, by: int) -> None:
    name = "__shfl_sync" if kind == "idx" else f"__shfl_{kind}_sync"
    y = run(f"y[t] = {name}(0xffffffff, t, k / 64, k % 64);", k=64 * by + width)
    for t in range(64):
        lane, first = t % 32, t % 32 // width * width
        source = {"idx": first + by % width, "up": lane - by, "down": lane + by, "xor": lane ^ by}[kind]
        # Beyond its own segment a lane keeps what it has; xor may reach back into an earlier one.
        stays = source >= first + width or (kind == "up" and source < first)
        assert y[t] == t - lane + (lane if stays else source), (t, y[t])


def test_shuffles_of_every_size() -> None:
    y = run(
        "y[t] = __shfl_sync(0xffffffff, (char)t, 3) + __shfl_sync(0xffffffff, (short)t, 3) + __shfl_sync(0xffffffff, t * 1e-3, 3)"
        " + __shfl_sync(0xffffffff, (long long)t << 40, 3) / (1ll << 40) + __shfl_sync(0xffffffff, x[t], 3);"
    )
    assert y[:32] == pytest.approx([12 + 0.003] * 32)
    assert y[32:] == pytest.approx([35 * 4 + 0.035] * 32)


VOTES: list[tuple[str, Callable[[int], int]]] = [
    ("__ballot_sync(m, t % 3 == 0)", lambda t: sum(1 << k for k in range(32) if (t // 32 * 32 + k) % 3 == 0)),
    ("__all_sync(m, t >= 32)", lambda t: t >= 32),
    ("__any_sync(m, t == 33)", lambda t: t >= 32),
    ("__match_any_sync(m, t % 5)", lambda t: sum(1 << k for k in range(32) if (t // 32 * 32 + k) % 5 == t % 5)),
    ("__match_all_sync(m, t / 32, &p) == m && p", lambda t: 1),
    ("__match_all_sync(m, t, &p) || p", lambda t: 0),
    ("__reduce_add_sync(m, t - 40)", lambda t: sum(k - 40 for k in range(t // 32 * 32, t // 32 * 32 + 32))),
    ("__reduce_min_sync(m, 5 - t)", lambda t: 5 - (t // 32 * 32 + 31)),
    ("__reduce_max_sync(m, 5u - t)", lambda t: 2**32 - 1 if t < 32 else 5 - 32 + 2**32),
    (
        "__reduce_xor_sync(m, (unsigned)t * 7)",
        lambda t: np.bitwise_xor.reduce([k * 7 for k in range(t // 32 * 32, t // 32 * 32 + 32)]),
    ),
    ("__reduce_or_sync(m, 1u << t / 2 % 32)", lambda t: 0xFFFF if t < 32 else 0xFFFF0000),
    ("__reduce_and_sync(m, ~(unsigned)t)", lambda t: 0xFFFFFFFF - (31 if t < 32 else 63)),
    ("__activemask()", lambda t: 0xFFFFFFFF),
    ("(t % 2 ? __activemask() : 0)", lambda t: 0xAAAAAAAA if t % 2 else 0),
]


@pytest.mark.parametrize("number", range(len(VOTES)), ids=[expression for expression, _ in VOTES])
def test_votes_matches_and_reductions(number: int) -> None:
    y = run(f"const unsigned m = 0xffffffff; int p = 0; {one_of(VOTES, 'y[t]')} (void)m; (void)p;", k=number)
    wanted = VOTES[number][1]
    assert y.tolist() == [float(wanted(t)) for t in range(64)]


def test_parts_of_a_warp_go_their_own_ways() -> None:
    y = run(
        "if (t % 32 < 20) y[t] = __shfl_xor_sync(0x000fffff, t, t % 32 < 16 ? 8 : 2); else y[t] = __shfl_sync(0xfff00000, t, 25);",
        n=52,
        block=52,
    )
    assert y[:20].tolist() == [t ^ 8 if t < 16 else t ^ 2 for t in range(20)]
    assert y[20:32].tolist() == [25.0] * 12
    assert y[32:].tolist() == [32 + (t ^ 8 if t < 16 else t ^ 2) for t in range(20)]


def test_a_partial_warp_votes_with_the_lanes_it_has() -> None:
    assert run("y[t] = __ballot_sync(0xffffffff, 1);", n=40, block=40).tolist() == [2.0**32 - 1] * 32 + [255.0] * 8


# Atomics, memory, blocks that wait for each other


def test_atomics() -> None:
    body = """__shared__ int s[9]; __shared__ unsigned u[2]; __shared__ float f; __shared__ double d; __shared__ unsigned long long c;
    if (t < 9) s[t] = t == 3 ? 1000 : t == 6 ? -1 : 0; if (t < 2) u[t] = 5; if (t == 0) f = 0, d = 0, c = 7;
    __syncthreads();
    atomicAdd(s, t); atomicSub(s + 1, 1); atomicMax(s + 2, t); atomicMin(s + 3, t - 5); atomicOr(s + 4, 1 << t % 31); atomicExch(s + 5, 9);
    atomicAnd(s + 6, ~(1 << t % 4)); atomicXor(s + 7, t); atomicInc(u, 6); atomicDec(u + 1, 6); atomicAdd(&f, 0.5f); atomicAdd(&d, 0.25);
    if (atomicCAS(&c, 7ull, 100ull + t) == 7ull) s[8] = 1;
    __syncthreads();
    if (t < 9) y[t] = s[t]; if (t < 2) y[9 + t] = u[t]; if (t == 0) y[11] = f, y[12] = d, y[13] = c >= 100;"""
    xor = int(np.bitwise_xor.reduce(range(64)))
    inc, dec = 5, 5
    for _ in range(64):
        inc, dec = 0 if inc >= 6 else inc + 1, 6 if dec == 0 or dec > 6 else dec - 1
    assert run(body)[:14].tolist() == [2016, -64, 63, -5, 2**31 - 1, 9, -16, xor, 1, inc, dec, 32, 16, 1]


def test_a_counter_of_many_blocks() -> None:
    assert run("atomicAdd(&y[0], 1.0); atomicAdd((int*)&y[1], 1);", rows=100)[0] == 6400


GRID_BARRIER = """
__device__ unsigned arrived;
__device__ void grid_barrier(unsigned round) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1u);
        WAIT
    }
    __syncthreads();
}
"""


@pytest.mark.parametrize(
    "wait",
    [
        "while (atomicAdd(&arrived, 0u) < round * gridDim.x) {}",
        "while (*(volatile unsigned*)&arrived < round * gridDim.x) {}",
        "while (__ldcg(&arrived) < round * gridDim.x) __nanosleep(20);",
    ],
)
def test_a_barrier_of_the_whole_grid(wait: str) -> None:
    body = """__shared__ double mine; if (t == 0) { mine = blockIdx.x; y[blockIdx.x] = blockIdx.x; }
    grid_barrier(1); const double sum = y[(blockIdx.x + 1) % gridDim.x] + y[gridDim.x - 1]; grid_barrier(2);
    if (t == 0) y[blockIdx.x] = sum * 100 + mine;"""
    y = run(body, rows=37, before=GRID_BARRIER.replace("WAIT", wait))
    assert y[:37].tolist() == [((b + 1) % 37 + 36) * 100 + b for b in range(37)]


CLUSTER = """
extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) __launch_bounds__(64) k(double* y, // (n)
    long long M, int n) {
    __shared__ double part[64];
    const unsigned rank = __clusterRelativeBlockRank(), size = __clusterSizeInBlocks();
    part[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    double sum = 0;
    for (unsigned r = 0; r < size; ++r) sum += ((double*)__cluster_map_shared_rank(part, r))[63 - threadIdx.x];
    BEFORE_END
    if (threadIdx.x == 5) y[blockIdx.x] = sum + 1000 * rank;
}
"""
END = "__cluster_barrier_arrive_relaxed(); __cluster_barrier_wait();"


def test_a_cluster_reads_its_blocks_shared_memory() -> None:
    kernel = Kernel(
        CLUSTER.replace("BEFORE_END", END), "k", Rows("M", block=64), dtypes=("float64",), constants={"SIZE": 4}
    )
    y = np.zeros(8)
    kernel(y, 8, 8)
    for b in range(8):
        first = b // 4 * 4
        assert y[b] == sum(100 * c + 58 for c in range(first, first + 4)) + 1000 * (b % 4)
    with pytest.raises(LaunchError, match=r"its grid must be whole clusters of \(4, 1, 1\) blocks"):
        kernel(np.zeros(6), 6, 6)


def test_faults_in_a_cluster(sanitize: bool) -> None:
    if not sanitize:
        return

    def message(text: str) -> str:
        kernel = Kernel(text, "k", Rows("M", block=64), dtypes=("float64",), constants={"SIZE": 4})
        with pytest.raises(LaunchError) as caught:
            kernel(np.zeros(8), 8, 8)
        return str(caught.value)

    assert "of its cluster, which has ended" in message(CLUSTER.replace("BEFORE_END", ""))
    unordered = CLUSTER.replace("BEFORE_END", END).replace(
        "__cluster_barrier_arrive();", "__cluster_barrier_arrive_relaxed();"
    )
    assert "a race in shared memory: reads" in message(unordered)
    assert "of block (0, 0, 0)" in message(unordered) or "of block (1, 0, 0)" in message(unordered)
    early = CLUSTER.replace("BEFORE_END", END).replace(
        "__cluster_barrier_arrive();\n    __cluster_barrier_wait();", "__syncthreads();"
    )
    assert "which has not begun" in message(early)
    assert "arrives at the cluster's barrier twice" in message(
        CLUSTER.replace("BEFORE_END", "__cluster_barrier_arrive(); __cluster_barrier_arrive();")
    )
    assert "waits for the cluster's barrier without" in message(
        CLUSTER.replace("BEFORE_END", "__cluster_barrier_wait();")
    )
    assert "block 9 of a cluster that has 4" in message(CLUSTER.replace("r))[63", "9))[63").replace("BEFORE_END", END))


# Numbers


VALUES = [
    ("sizeof(exp(three))", 4),
    ("sizeof(erf(three)) + sizeof(fmax(three, three)) + sizeof(rsqrt(three)) + sizeof(fabs(three))", 16),
    ("rsqrt(three + 1)", 0.5),
    ("rsqrtf(three + 1) + rsqrt(16.0)", 0.75),
    ("normcdf(-10.0)", 7.619853024160526e-24),
    ("normcdf(-37.5)", 4.605353009581955e-308),
    ("normcdf(1.5)", 0.9331927987311419),
    ("normcdff(-3.0f)", float(np.float32(0.0013498980316300946))),
    ("erfcx(30.0)", 0.018795888861416751),
    ("erfcx(20.0)", 0.028174348741051319),
    ("exp10(three)", 1000),
    ("sinpi(three / 2) + cospi(three)", -2),
    ("fma(three, 1e-9f, 1.0f) == 1.0f", 1),
    ("fma(0.1, 10.0, -1.0)", math.fsum([0.1 * 10 - 1, 5.551115123125783e-17])),
    ("double(__fadd_rz(1.0f, 1e-9f)) + __fadd_ru(1.0f, 1e-9f)", 2 + 2.0**-23),
    ("__fmul_rd(1.0f / three, three) < 1.0f || true", 1),
    ("__float2int_rn(2.5f) * 10 + __float2int_ru(2.1f)", 23),
    ("__float2int_rz(3e9f)", 2**31 - 1),
    ("__float2uint_rz(-three)", 0),
    ("__double2ll_rn(-1e300)", -(2.0**63)),
    ("__float_as_uint(1.0f)", 0x3F800000),
    ("__int_as_float(0x40400000)", 3),
    ("__saturatef(three) + __saturatef(-three)", 1),
    ("__popc(0xF0F0) + __clz(1) + __ffs(8) + __clzll(1ll) + __popcll(~0ull)", 8 + 31 + 4 + 63 + 64),
    ("__brev(1u)", 2**31),
    ("__umulhi(0x80000000u, 6u) + __mulhi(-1, 1)", 2),
    ("__umul64hi(1ull << 63, 4ull)", 2),
    ("__byte_perm(0x33221100, 0x77665544, 0x7531)", 0x77553311),
    ("__funnelshift_l(0x80000000u, 1u, 1)", 3),
    ("__dp4a(0x01020304, 0x01010101, 5)", 15),
    ("min(3u, 7u) + max(-3, 2) + min(1.5f, 2.5) + max(3ll, 4ll)", 3 + 2 + 1.5 + 4),
    ("__ldg(x + 5) + __ldcs(x + 6) + __ldcg(x + 7) + __ldca(x + 8)", 26),
    ("make_float4(1, 2, 3, 4).w + make_int2(5, 6).y + sizeof(double2) + alignof(float4)", 4 + 6 + 16 + 16),
    ("__isShared(x) + __isGlobal(x) * 2", 2),
    ("(char)-1 < 0", 1),
    ("__CUDA_ARCH__", 900),
    ("[] { float s, c; sincosf(0.0f, &s, &c); return s * 10 + c; }()", 1),
    ("table[2] + constant", 9),
]


@pytest.mark.sample(48)
@pytest.mark.parametrize("number", range(len(VALUES)), ids=[expression for expression, _ in VALUES])
def test_values_of_functions(number: int) -> None:
    before = "__device__ const int table[3] = {1, 2, 4}; __constant__ int constant = 5;"
    body = f"const float three = x[3]; (void)three; if (t == 0) {one_of(VALUES, 'y[0]')}"
    assert run(body, before=before, k=number)[0] == pytest.approx(VALUES[number][1], rel=3e-15, abs=0)


def test_cache_hint_stores_and_vectors() -> None:
    y = run("if (t < 32) { double2 v; v.x = 2 * t; v.y = 2 * t + 1; __stcs(reinterpret_cast<double2*>(y) + t, v); }")
    assert y.tolist() == list(range(64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_cudas(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    text = """extern "C" __global__ void k(const scalar_t* x, // (n)
        scalar_t* y, // (n)
        scalar_t* z, // (n)
        int n) { const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {
            y[i] = x[i] * x[i] + __hmul(x[i], scalar_t(3.0f)) - __shfl_sync(__activemask(), x[i], threadIdx.x % 32);
            z[i] = hrsqrt(__habs(x[i])); } }"""
    kernel = Kernel(text, "k", Threads("n"), dtypes=(dtype,))
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    x = np.linspace(-3, 3, 301).astype(kind)
    y, z = np.empty_like(x), np.empty_like(x)
    kernel(x, y, z, x.size)
    three = np.asarray(3, kind)
    with np.errstate(divide="ignore"):
        assert (y == x * x + x * three - x).all()
        assert (z == (1 / np.sqrt(np.abs(x).astype(np.float64))).astype(kind)).all()


def test_what_the_libraries_of_the_compiler_have() -> None:
    """Tables of virtual functions, memory from the heap, integers of 128 bits."""
    before = """struct Base { __device__ virtual ~Base() {} __device__ virtual float of(float x) const = 0; };
    struct Twice : Base { __device__ float of(float x) const override { return 2 * x; } };"""
    body = """const Base* twice = new Twice; y[t] = twice->of(x[t]); delete twice;
    __int128 large = (__int128)(t + 5) << 80; y[t] += (double)(large / (((__int128)1 << 79) + k)) + exp2(x[t] - t);"""
    assert run(body, before=before).tolist() == [2.0 * t + 2 * (t + 5) + 1 for t in range(64)]


def test_memory_that_is_freed_can_be_allocated_again() -> None:
    """12 MiB in all, of a heap of 8 MiB."""
    body = "if (t == 0) for (int i = 0; i < 12; ++i) { void* p = malloc(1 << 20); y[i] = p != nullptr; free(p); }"
    assert run(body)[:12].all()


def test_printf(capfd: pytest.CaptureFixture[str]) -> None:
    run('if (t == 3) printf("thread %d of %s: %.2f\\n", t, "k", x[5]);')
    assert capfd.readouterr().out == "thread 3 of k: 5.00\n"


def test_arguments_of_every_kind() -> None:
    text = """extern "C" __global__ void k(double* y, // (8)
        bool flag, signed char a, unsigned short b, int c, long long d, float e, double f, Int64s<3> g, int n) {
        y[0] = flag; y[1] = a; y[2] = b; y[3] = c; y[4] = (double)d; y[5] = e; y[6] = f; y[7] = g[0] + 10 * g[1] + 100 * g[2]; }"""
    y = np.zeros(8)
    Kernel(text, "k", Threads("n", block=(1, 1, 1)), dtypes=("float64",))(
        y, True, -5, 65535, -7, 2**40, 0.5, 0.25, (1, 2, 3), 1
    )
    assert y.tolist() == [1, -5, 65535, -7, 2**40, 0.5, 0.25, 321]


def test_attributes_by_a_macro_of_the_text() -> None:
    text = (
        "#if SIZE > 1\n#define IN_CLUSTERS __cluster_dims__(SIZE, 1, 1)\n#else\n#define IN_CLUSTERS\n#endif\n"
        + CLUSTER.replace("__cluster_dims__(SIZE, 1, 1)", "IN_CLUSTERS").replace("BEFORE_END", END)
    )
    for size in (1, 2):
        y = np.zeros(4)
        Kernel(text, "k", Rows("M", block=64), dtypes=("float64",), constants={"SIZE": size})(y, 4, 4)
        assert y[3] == (358 if size == 1 else 258 + 358 + 1000)


def test_a_cluster_has_three_dimensions() -> None:
    text = """
#include <cooperative_groups.h>
extern "C" __global__ void __cluster_dims__(1, 2, 2) ranks(float* y /* (n) */, long long n) {
    const auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) y[blockIdx.z * gridDim.y + blockIdx.y] = 10 * cluster.num_blocks() + cluster.block_rank();
}
"""
    y = np.zeros(8, np.float32)
    with cupyops.simulate():
        Kernel(text, "ranks")[(1, 2, 4), 32](y, 8)
    assert y.tolist() == [40, 41, 42, 43] * 2
