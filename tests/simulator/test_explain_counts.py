"""The counts of known access patterns. The numbers are derived by hand from the addresses of 32 lanes."""

import re

import numpy as np
import pytest

from cupyops import Kernel, Rows, Threads
from cupyops.arrays import Info
from cupyops.simulator import Counted, counted, host
from cupyops.simulator.counts import ArrayCounts, Line, Requests
from tests.conftest import NO_COMPILER

pytestmark = pytest.mark.simulator
# The report says so, too.
splits = pytest.mark.skipif(not NO_COMPILER and host.compiler().family == "clang", reason="clang splits structures")

BLOCKS, WARPS = 3, 2  # of a launch, and of a block
ALL = BLOCKS * WARPS

GLOBAL = """
struct Three { float a, b, c; };
__device__ float loaded(const float* p) {
    return *p;  // called twice
}
extern "C" __global__ void k(
    const float* __restrict__ x,  // (m)
    float* __restrict__ y,        // (m)
    long long n, long long m) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const int lane = threadIdx.x % 32;
    float s = x[i];  // coalesced
    s += x[2 * i];  // stride 2
    s += x[32 * i];  // stride 32
    const float4 four = reinterpret_cast<const float4*>(x)[i];  // float4
    s += four.x + four.y + four.z + four.w;
    s += x[i + 1];  // misaligned
    s += x[7];  // broadcast
    s += x[i] * x[i];  // already loaded
    s += float(reinterpret_cast<const double*>(x)[i]);  // double
    s += reinterpret_cast<const signed char*>(x)[i];  // char
    const Three three = reinterpret_cast<const Three*>(x)[i];  // three words
    s += three.a + three.b + three.c;
    s += __ldg(x + 3 * i);  // hinted
    if (lane < 16)
        s += x[i + 64];  // half a warp
    for (int j = lane; j < 40; j += 32)
        s += x[j + 128];  // tail
    for (int j = 0; j < 2; ++j)
        if ((lane + j) % 2)
            s += x[i + 256 + j];  // alternating
    if (lane % 2) s += loaded(x + i + 1024);
    else s *= loaded(x + i + 1025);
    if (lane >= 24) return;
    y[i] = s;  // after an exit
    y[8 * i] = s;  // scattered
}
"""
SHARED = """
extern "C" __global__ void k(
    const float* x,  // (n)
    float* y,        // (n)
    int* count,      // (64)
    long long n) {
    __shared__ float plain[64][32], padded[64][33];
    __shared__ float4 wide[64];
    __shared__ double twice[128];
    __shared__ int votes[4];
    const int t = threadIdx.x, lane = t % 32;
    for (int j = 0; j < 32; ++j) plain[t][j] = x[j];  // down a column
    for (int j = 0; j < 32; ++j) padded[t][j] = x[j];  // down a padded column
    wide[t] = make_float4(t, t, t, t);  // wide store
    twice[t] = t;  // double store
    twice[t + 64] = t;
    if (t < 4) votes[t] = 0;
    __syncthreads();
    float s = plain[0][lane];  // row
    s += plain[lane][0];  // column
    s += padded[lane][0];  // padded column
    s += plain[0][2 * lane % 32];  // two rows of a bank are one word
    s += (&plain[0][0])[2 * lane];  // stride 2
    s += plain[3][5];  // one word
    const float4 a = wide[t];  // wide load
    const float4 b = wide[2 * lane % 64];  // wide load, stride 2
    const float4 c = wide[7];  // one wide element
    s += a.x + a.y + b.z + b.w + c.x + c.w;
    s += float(twice[lane]);  // double load
    s += float(twice[2 * lane]);  // double load, stride 2
    atomicAdd(&count[0], 1);  // one address
    atomicAdd(&count[t], 1);  // own address
    atomicAdd(&votes[lane % 4], 1);  // four addresses
    __syncthreads();
    y[t] = s + votes[0];
}
"""


class Found:
    """The counts of a launch, by the comment at the end of a line."""

    def __init__(self, launch: Counted) -> None:
        self.counts = launch.counts
        self.grid = launch.grid
        self.lines: dict[str, Line] = {}
        for line in launch.counts.lines:
            if comment := re.search(r"// (.*)$", line.text):
                self.lines[comment[1]] = line

    def __call__(self, comment: str, space: str, *kinds: str) -> Requests:
        return self.lines[comment].of(space, *kinds)


def launch(kernel: Kernel, *args: object) -> Found:
    with counted(132) as launches:
        kernel(*args)
    return Found(launches[0])


@pytest.fixture(scope="module")
def of_global() -> Found:
    kernel = Kernel(GLOBAL, "k", Threads("n", block=32 * WARPS), dtypes=("float32",))
    n, m = 32 * ALL, 32 * 32 * ALL
    return launch(kernel, np.ones(m, np.float32), np.zeros(m, np.float32), n, m)


@pytest.fixture(scope="module")
def of_shared() -> Found:
    kernel = Kernel(SHARED, "k", Rows("n", block=64), dtypes=("float32",))
    count = np.zeros(64, np.int32)
    x = np.arange(64, dtype=np.float32)
    found = launch(kernel, x, np.zeros(64, np.float32), count, 64)
    assert count.tolist() == [64 * 65, *[64] * 63]
    return found


@pytest.mark.parametrize(
    ("pattern", "requests", "sectors", "lanes"),
    [
        ("coalesced", 1, 4, 32),  # 128 bytes
        ("stride 2", 1, 8, 32),  # 256 bytes, of which every other word is needed
        ("stride 32", 1, 32, 32),  # a sector for each lane
        pytest.param("float4", 1, 16, 32, marks=splits),  # one request of 512 bytes, not four of a word
        ("misaligned", 1, 5, 32),  # 128 bytes that begin 4 bytes after a sector's begin
        ("broadcast", 1, 1, 32),
        ("already loaded", 0, 0, 0),  # the compiler has x[i] in a register
        ("double", 1, 8, 32),
        ("char", 1, 1, 32),
        ("three words", 3, 36, 96),  # a structure aligned to 4 bytes is three loads, each of a word in every 12 bytes
        ("hinted", 1, 12, 32),
        ("half a warp", 1, 2, 16),
        ("tail", 2, 5, 40),  # 32 lanes, then 8
        # The lanes with odd numbers in the first iteration, then the others: two requests of 16 lanes. The words are
        # 1, 3 .. 31, and then 1, 3 .. 31 again, since the second iteration reads one word further.
        ("alternating", 2, 8, 32),
        # Odd lanes read their own word and even lanes the next one, in different branches: 1, 3 .. 31 both times.
        ("called twice", 2, 8, 32),
    ],
)
def test_loads_of_global_memory(of_global: Found, pattern: str, requests: int, sectors: int, lanes: int) -> None:
    if requests == 0:
        assert not of_global(pattern, "global").requests
        return
    found = of_global(pattern, "global", "load")
    assert (found.requests, found.sectors, found.lanes) == (requests * ALL, sectors * ALL, lanes * ALL)


def test_stores_of_the_lanes_that_are_left(of_global: Found) -> None:
    found = of_global("after an exit", "global", "store")
    assert (found.requests, found.sectors, found.lanes) == (ALL, 3 * ALL, 24 * ALL)  # 96 bytes
    found = of_global("scattered", "global", "store")
    assert (found.requests, found.sectors, found.ideal) == (ALL, 24 * ALL, 3 * ALL)


@splits  # and copies loops
def test_divergence_is_counted_by_line(of_global: Found) -> None:
    line = of_global.lines["half a warp"]
    assert (line.executions, line.active) == (ALL, 16)
    line = of_global.lines["tail"]
    assert (line.executions, line.active) == (2 * ALL, 20)
    line = of_global.lines["alternating"]
    assert (line.executions, line.active) == (2 * ALL, 16)
    assert of_global.lines["coalesced"].active == 32


def test_bytes_needed_are_distinct(of_global: Found) -> None:
    """The words that every thread reads, once each, whatever the number of requests."""
    words = set()
    n = 32 * ALL
    for i in range(n):
        words |= {i, 2 * i, 32 * i, 4 * i + 1, i + 1, 7, 2 * i, 2 * i + 1, 3 * i, 3 * i + 1, 3 * i + 2}
        words |= {4 * i, 4 * i + 2, 4 * i + 3, i + 1024 + (i + 1) % 2}
        words |= {i // 4}  # a char of every word
        words |= {i + 64} if i % 32 < 16 else set()
        words |= {j + 128 for j in range(i % 32, 40, 32)} | {i + 256 + j for j in range(2) if (i % 32 + j) % 2}
    x, y = of_global.counts.arrays
    assert (x.name, x.loaded_bytes, x.stored_bytes) == ("x", 4 * len(words), 0)
    left = [i for i in range(n) if i % 32 < 24]
    assert (y.loaded_bytes, y.stored_bytes) == (0, 4 * len({*left, *(8 * i for i in left)}))
    assert y.stored_sectors == ALL * 27
    assert x.loaded == 32 * sum(line.of("global", "load").sectors for line in of_global.counts.lines)


@pytest.mark.parametrize(
    ("pattern", "kind", "wavefronts", "conflicts"),
    [
        ("row", "load", 1, 0),
        ("column", "load", 32, 31),
        ("padded column", "load", 1, 0),
        ("two rows of a bank are one word", "load", 1, 0),
        ("stride 2", "load", 2, 1),
        ("one word", "load", 1, 0),
        ("down a column", "store", 32 * 32, 32 * 31),
        ("down a padded column", "store", 32, 0),
        pytest.param("wide store", "store", 4, 0, marks=splits),  # a quarter of the warp at a time
        pytest.param("wide load", "load", 4, 0, marks=splits),
        pytest.param(
            "wide load, stride 2", "load", 8, 4, marks=splits
        ),  # lanes l and l + 4 of a quarter have the same banks
        ("one wide element", "load", 2, 0),  # pairs of lanes share their address: half a warp at a time
        ("double store", "store", 2, 0),
        ("double load", "load", 2, 0),
        ("double load, stride 2", "load", 4, 2),
    ],
)
def test_banks_of_shared_memory(of_shared: Found, pattern: str, kind: str, wavefronts: int, conflicts: int) -> None:
    found = of_shared(pattern, "shared", kind)
    warps = 64 * WARPS
    assert (found.wavefronts, found.conflicts) == (wavefronts * warps, conflicts * warps)


@pytest.mark.parametrize(
    ("pattern", "space", "most"),
    [("one address", "global", 32), ("own address", "global", 1), ("four addresses", "shared", 8)],
)
def test_lanes_of_an_atomic_operation_at_one_address(of_shared: Found, pattern: str, space: str, most: int) -> None:
    found = of_shared(pattern, space, "atomic")
    assert (found.requests, found.collisions) == (64 * WARPS, most * 64 * WARPS)


COPY = """extern "C" __global__ void k(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];  // copy
}"""


@pytest.fixture(scope="module")
def copy() -> Kernel:
    return Kernel(COPY, "k", Threads("n", block=128), dtypes=("float32",))


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_an_array_lies_as_on_a_gpu(copy: Kernel, offset: int) -> None:
    """A GPU's allocations begin at multiples of 256 bytes, unlike NumPy's; a view has the same offset from them."""
    for shift in range(4):  # memory at every multiple of 4 bytes within 16
        memory = bytearray(4 * 600 + 64)
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        owner = np.frombuffer(memory, np.float32, 512, -address % 16 + 4 * shift)
        x = np.array(owner)[offset : offset + 256]
        found = launch(copy, x, np.zeros(256, np.float32), 256)
        assert found("copy", "global", "load").per_request == (5 if offset == 1 else 4)
        assert found("copy", "global", "store").per_request == 4


def test_a_tensor_counts_from_its_storage(copy: Kernel) -> None:
    import torch

    x = torch.ones(300)
    assert launch(copy, x[3:259], torch.empty(256), 256)("copy", "global", "load").per_request == 5
    assert launch(copy, x[8:264], torch.empty(256), 256)("copy", "global", "load").per_request == 4


def test_the_last_warp_has_fewer_lanes(copy: Kernel) -> None:
    found = launch(copy, np.ones(130, np.float32), np.zeros(130, np.float32), 130)
    # 4 warps of 32 elements, one with 2 and three with none; the condition is on the same line
    assert found("copy", "global", "load").lanes == 130
    assert found("copy", "global", "load").requests == 5
    assert found("copy", "global", "load").sectors == 17


def test_arrays_that_share_memory_have_their_own_accesses(copy: Kernel) -> None:
    x = np.ones(256, np.float32)
    source, target = launch(copy, x, x, 256).counts.arrays
    assert (source.name, source.loaded_bytes, source.stored_bytes) == ("x", 1024, 0)
    assert (target.name, target.loaded_bytes, target.stored_bytes) == ("y", 0, 1024)


def test_counting_changes_no_result_and_no_other_build(copy: Kernel) -> None:
    import cupyops
    from cupyops.simulator.simulated import prepare

    x, y, z = np.arange(100, dtype=np.float32), np.zeros(100, np.float32), np.zeros(100, np.float32)
    launch(copy, x, y, 100)
    with cupyops.simulate():
        copy(x, z, 100)
    assert (y == x).all()
    assert (z == x).all()
    plain = prepare(copy, {"scalar_t": "float32"}, 4, checked=False, optimize=True)
    with_counts = prepare(copy, {"scalar_t": "float32"}, 132, checked=False, optimize=True, counted=True)
    assert b"__sanitizer_cov_trace_pc" not in plain.path.read_bytes()
    assert b"__sanitizer_cov_trace_pc" in with_counts.path.read_bytes()


LOOP = """extern "C" __global__ void k(
    const float* x,  // (n)
    float* y,        // (M)
    long long n, long long M) {
    __shared__ float part[2];
    float s = 0;
    for (long long j = threadIdx.x; j < n; j += 64)
        s += x[j] + x[j + (j < n - 1)];  // long loop
    for (int step = 16; step; step /= 2) s += __shfl_xor_sync(0xffffffff, s, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = part[0] + part[1];  // result
}"""


def test_a_long_loop_does_not_lose_the_order_of_lanes() -> None:
    """The lanes run one after the other, thousands of accesses at a time; their requests are those of a warp."""
    kernel = Kernel(LOOP, "k", Rows("M", block=64), dtypes=("float32",))
    n = 64 * 5000
    x, y = np.ones(n, np.float32), np.zeros(1, np.float32)
    found = launch(kernel, x, y, n, 1)
    assert y[0] == 2 * n
    loads = found("long loop", "global", "load")
    assert (loads.requests, loads.lanes) == (2 * n // 32, 2 * n)
    assert loads.sectors == n // 32 * (4 + 5) - 1  # the last word of the second load is inside its own sector
    result = found("result", "global", "store")
    assert (result.requests, result.lanes) == (1, 1)


def test_bulk_copies_move_bytes_beside_the_sectors_of_requests() -> None:
    info = Info("float32", (8,), (1,), 8, "cpu", None, 0)
    counts = ArrayCounts("x", info, 32, 32, loaded_sectors=2, stored_sectors=3, loaded_bulk=100, stored_bulk=200)
    assert (counts.loaded, counts.stored) == (2 * 32 + 100, 3 * 32 + 200)
