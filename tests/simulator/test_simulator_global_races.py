"""Races in global memory: threads of one launch at one address, one of them writing, and nothing that orders them. Each
correct pattern passes, and the same pattern without its ordering is reported with both lines."""

import importlib.util
import re
import sys

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, LaunchError, Rows
from cupyops.simulator import flags
from tests.conftest import NO_COMPILER

pytestmark = [pytest.mark.simulator, pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER)]


def kernel(body: str, *, block: int = 64, before: str = "", head: str = "", y: str = "float", z: str = "int") -> Kernel:
    """`n` elements in `x`, `y` and `z`, of which `x` is only read; the body begins in line 10 of k.cu."""
    text = f"""{before}
extern "C" __global__ void {head} k(
    const float* x,  // (n)
    {y}* y,          // (n)
    {z}* z,          // (n)
    long long M, int n) {{ const int t = threadIdx.x, b = blockIdx.x, i = b * (int)blockDim.x + t; (void)i; (void)t;\n"""
    text += "\n" * (9 - text.count("\n")) + body + "\n}\n"
    assert text.split("\n").index(body.split("\n")[0]) == 9
    return Kernel(text, "k", Rows("M", block=block), dtypes=("float32",))


def run(
    found: Kernel, rows: int = 1, *, n: int = 256, y: type = np.float32, z: type = np.int32, optimize: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(n, dtype=np.float32)
    to_y, to_z = np.zeros(n, y), np.zeros(n, z)
    with cupyops.simulate(sanitize=True, optimize=optimize):
        found(x, to_y, to_z, rows, n)
    return to_y, to_z


def race(found: Kernel, rows: int = 1, **options) -> str:  # type: ignore[no-untyped-def]
    """The message, which begins as that of every race in global memory."""
    with pytest.raises(LaunchError) as caught:
        run(found, rows, **options)
    message = str(caught.value)
    assert message.startswith("k: a race in global memory: "), message
    return message


# Sums of all into one


@pytest.mark.parametrize("optimize", [True, False])
def test_a_sum_of_all_threads_into_one_element(optimize: bool) -> None:
    message = race(kernel("if (i < n)\ny[3] += x[i];"), optimize=optimize)
    assert message == (
        "k: a race in global memory: reads element 3 of `y` (float32[256] on cpu), which thread (0, 0, 0) wrote at k.cu:11 "
        "with nothing that orders the two at k.cu:11, by block (0, 0, 0), thread (1, 0, 0) of grid (1, 1, 1), block (64, 1, 1)"
    )


def test_a_sum_of_all_blocks_into_one_element() -> None:
    message = race(kernel("if (t == 5)\ny[3] += x[i];"), 3)
    assert (
        "which thread (5, 0, 0) of block (0, 0, 0) wrote at k.cu:11 with nothing that orders the two at k.cu:11"
        in message
    )
    assert "by block (1, 0, 0), thread (5, 0, 0) of grid (3, 1, 1)" in message


@pytest.mark.parametrize("optimize", [True, False])
def test_atomic_sums_do_not_race_but_with_plain_accesses(optimize: bool) -> None:
    assert run(kernel("atomicAdd(y, x[i]);"), 3, optimize=optimize)[0][0] == 191 * 96
    told = r"element 0 of `y` .*, which thread \(63, 0, 0\) of block \(0, 0, 0\) wrote at k.cu:10 with nothing .* at k.cu:12, by"
    plain = kernel("if (i != 64) atomicAdd(y, x[i]);\nelse\ny[1] = y[0];")
    assert re.search("reads " + told, race(plain, 3, optimize=optimize))
    later = "if (i == 0)\ny[1] = y[0];\nif (i == 64)\natomicAdd(y, x[i]);"
    assert re.search(
        r"writes element 0 of `y` .*, which thread \(0, 0, 0\) of block \(0, 0, 0\) read at k.cu:11 .* at k.cu:13, by",
        race(kernel(later), 3, optimize=optimize),
    )


@pytest.mark.parametrize("other", [32, 64])  # of another warp and of another block
def test_an_atomic_operation_is_not_seen_to_race_with_a_plain_write(other: int) -> None:
    message = race(kernel(f"if (i == 0)\nz[0] = 0;\nif (i == {other})\natomicAdd(z, 1);"), 2)
    assert re.search(
        r"element 0 of `z` .*, which thread \(0, 0, 0\).* wrote at k.cu:11 with nothing .* at k.cu:13, by", message
    )


# Who reads what others write


NEIGHBOUR = "y[i] = x[i];\n{}\nz[i] = y[i ^ {}];"


def test_a_neighbour_behind_a_barrier_and_without_one() -> None:
    assert run(kernel(NEIGHBOUR.format("__syncthreads();", 33)), 3)[1][:2].tolist() == [33, 32]
    message = race(kernel(NEIGHBOUR.format("", 33)), 3)
    assert (
        "writes element 32 of `y` (float32[256] on cpu), which thread (1, 0, 0) read at k.cu:12 with nothing" in message
    )
    assert "at k.cu:10, by block (0, 0, 0), thread (32, 0, 0)" in message


def test_a_barrier_of_a_block_orders_nothing_between_blocks() -> None:
    message = race(kernel(NEIGHBOUR.format("__syncthreads();", 64)), 2)
    assert re.search(
        r"writes element 64 of `y` .*, which thread \(0, 0, 0\) of block \(0, 0, 0\) read at k.cu:12 .* at k.cu:10, by block \(1,",
        message,
    )
    message = race(kernel(NEIGHBOUR.format("__syncthreads();", 64).replace("z[i] =", "if (b == 1) z[i] =")), 2)
    assert re.search(
        r"reads element (\d+) of `y` .*, which thread \(\1, 0, 0\) of block \(0, 0, 0\) wrote at k.cu:10 .* at k.cu:12, by block \(1,",
        message,
    )


def test_a_warp_is_ordered_by_syncwarp_and_not_by_shuffles() -> None:
    assert run(kernel(NEIGHBOUR.format("__syncwarp();", 1)))[1][:2].tolist() == [1, 0]
    assert "reads element 30 of `y`" in race(kernel(NEIGHBOUR.format("__shfl_sync(0xffffffff, 1, 0);", 1)))
    shuffled = "float v = y[i ^ 1];\nv += __shfl_sync(0xffffffff, v, t % 32);\ny[i] = v;"
    run(kernel(shuffled))  # a shuffled value has been read before


def test_each_thread_its_own_element_in_place() -> None:
    found = kernel("y[i] = x[i] + 1;\ny[i] = y[i] * 2;\nz[i] += z[i] + i;")
    y, z = run(found, 4)
    assert y[:3].tolist() == [2, 4, 6]
    assert z[:3].tolist() == [0, 1, 2]
    both = np.arange(256, dtype=np.float32)
    with cupyops.simulate(sanitize=True):
        found(both, both, np.zeros(256, np.int32), 4, 256)
    assert both[:3].tolist() == [2, 4, 6]


def test_an_input_that_is_also_written_is_looked_at() -> None:
    found = kernel("y[i] = x[(i + 1) % n];")
    both = np.arange(256, dtype=np.float32)
    with (
        cupyops.simulate(sanitize=True),
        pytest.raises(LaunchError, match=r"a race in global memory: writes element 1 of"),
    ):
        found(both, both, np.zeros(256, np.int32), 4, 256)
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    with cupyops.simulate(sanitize=True):
        found(x, y, np.zeros(256, np.int32), 4, 256)
        found(x[::-1][::-1], y, np.zeros(256, np.int32), 4, 256)
    assert y[0] == 1


def test_one_launch_after_another() -> None:
    """In the second launch, other threads write and read the memory of the first."""
    found = kernel("y[n - 1 - i] += x[i];\nz[i] = y[n - 1 - i];")
    x, y, z = np.arange(256, dtype=np.float32), np.zeros(256, np.float32), np.zeros(256, np.int32)
    turned = kernel("y[i] += z[n - 1 - i];")
    with cupyops.simulate(sanitize=True):
        for _ in range(3):
            found(x, y, z, 4, 256)
            turned(x, y, z, 4, 256)
    assert (y == [14 * (255 - i) for i in range(256)]).all()


# Widths


def test_bytes_beside_each_other_do_not_race() -> None:
    bytes_of_z = "char* c = (char*)z;\nc[i] = i;\nreinterpret_cast<short*>(y)[i] = i;\n__syncthreads();\n"
    y, z = run(kernel(bytes_of_z), 4)
    assert z.view(np.int8)[:200].tolist() == [np.int8(np.uint8(i)) for i in range(200)]
    assert y.view(np.int16)[:256].tolist() == list(range(256))
    beside = "char* c = (char*)z;\nif (t == 0) *reinterpret_cast<int*>(c + 8) = 1;\nif (t == 1) c[7] = 2;\nif (t == 2) c[12] = 3;\n"
    beside += "if (t == 3) *reinterpret_cast<int4*>(c + 16) = make_int4(1, 2, 3, 4);\nif (t == 4) *reinterpret_cast<short*>(c + {}) = 5;"
    assert run(kernel(beside.format(14)))[1][:8].tolist() == [0, 2 << 24, 1, 3 + (5 << 16), 1, 2, 3, 4]
    assert "writes element 4 of `z`" in race(kernel(beside.format(16)))
    assert "writes element 7 of `z`" in race(kernel(beside.format(30)))
    assert "writes element 2 of `z`" in race(kernel(beside.format(10)))


def test_a_wide_access_over_one_byte() -> None:
    body = "char* c = (char*)z;\nif (t == 1) c[{}] = 1;\n__syncwarp(6);\nif (t == 2) y[0] = reinterpret_cast<int4*>(z)[1].w;"
    body = body.replace("__syncwarp(6);\n", "")
    assert run(kernel(body.format(15)))[0][0] == 0
    run(kernel(body.format(32)))
    assert "reads element 7 of `z`" in race(kernel(body.format(29)))


@pytest.mark.parametrize("page", [0, 506, 510])
def test_an_access_over_the_end_of_a_page_of_the_checks(page: int) -> None:
    """The records of accesses lie in pages of 512 bytes."""
    body = f"char* c = (char*)z + {page};\nif (t == 0) memset(c, 1, {{}});\nif (t == 1) c[7] = 2;"
    assert run(kernel(body.format(7)))[1].view(np.int8)[page + 7] == 2
    assert f"writes element {(page + 7) // 4} of `z`" in race(kernel(body.format(8)))


# The same value


def test_two_writes_of_the_same_value_are_told_as_such() -> None:
    same, other = "if (x[i] >= 0)\ny[7] = {};", "(both write the same value now)"
    for rows, wide in ((1, 1), (2, 64)):
        message = race(kernel(same.format("1").replace("x[i] >= 0", f"t % {wide} == 0")), rows)
        assert f"k.cu:11 with nothing that orders the two {other} at k.cu:11, by" in message
        assert "writes element 7 of `y`" in message
        assert "same value" not in race(kernel(same.format("i").replace("x[i] >= 0", f"t % {wide} == 0")), rows)
    # The values are also distinguished at the thread's end and at a barrier, if the thread does nothing after it.
    assert other in race(kernel("y[0] = 1;"))
    assert other in race(kernel("y[0] = 1;\n__syncthreads();"))
    assert other in race(kernel("y[0] = 1;\natomicAdd(z, 1);"))
    assert "same value" not in race(kernel("y[0] = 1 + t;\n__syncthreads();"))
    assert other in race(kernel("reinterpret_cast<float4*>(y)[0] = make_float4(1, 2, 3, 4);"))
    assert "same value" not in race(kernel("reinterpret_cast<float4*>(y)[0] = make_float4(1, 2, 3, t);"))


# Flags between blocks


LAST_BLOCK = """__shared__ bool last;
y[i] = x[i];
FENCE
__syncthreads();
if (t == 0) last = TICKET == (int)gridDim.x - 1;
__syncthreads();
if (last) {
    float s = 0;
    for (int k = t; k < n; k += 64) s +=
y[k];
    z[1 + t] = (int)s;
    if (t == 0) z[0] = 0;
}"""


@pytest.mark.parametrize("optimize", [True, False])
def test_the_block_that_is_done_last_reads_what_the_others_wrote(optimize: bool) -> None:
    """The kernel of the CUDA samples, which also resets the counter."""
    right = LAST_BLOCK.replace("FENCE", "__threadfence();").replace("TICKET", "atomicAdd(z, 1)")
    found = kernel(right)
    for _ in range(2):
        z = run(found, 4, optimize=optimize)[1]
        assert z[0] == 0
        assert z[1:65].sum() == 255 * 128
    message = race(kernel(right.replace("__threadfence();", "")), 4, optimize=optimize)
    assert re.search(
        r"reads element (\d+) of `y` .*, which thread \(\1, 0, 0\) of block \(0, 0, 0\) wrote at k.cu:11 .* at k.cu:19, by block \(3,",
        message,
    )
    behind = right.replace(
        "__threadfence();\n__syncthreads();\nif (t == 0) last =",
        "__syncthreads();\nif (t == 0) __threadfence(), last =",
    )
    assert behind != right
    run(kernel(behind), 4, optimize=optimize)
    late = right.replace("__threadfence();", "").replace(
        "= atomicAdd(z, 1)", "= [&] { const int v = atomicAdd(z, 1); __threadfence(); return v; }()"
    )
    assert late.count("__threadfence") == 1
    assert "reads element" in race(kernel(late), 4, optimize=optimize)


def test_a_counter_that_is_read_as_plain_memory() -> None:
    plain = LAST_BLOCK.replace("FENCE", "__threadfence();").replace("TICKET ==", "(atomicAdd(z, 1), z[0]) - 1 ==")
    message = race(kernel(plain), 4)
    assert re.search(
        r"writes element 0 of `z` .*, which thread \(0, 0, 0\) of block \(0, 0, 0\) read at k.cu:14 .* at k.cu:14, by block \(1,",
        message,
    )
    volatile = plain.replace(", z[0])", ", *(volatile int*)z)")
    run(kernel(volatile), 4)


GRID_BARRIER = """__device__ void grid_barrier(int* count, int round) {
    __syncthreads();
    if (threadIdx.x == 0) { FENCE atomicAdd(count, 1); while (WAIT < round * (int)gridDim.x) __nanosleep(20); __threadfence(); }
    __syncthreads(); }"""


@pytest.mark.parametrize("wait", ["*(volatile int*)count", "atomicAdd(count, 0)", "__ldcg(count)"])
def test_a_barrier_of_the_grid_made_by_hand(wait: str) -> None:
    barrier = GRID_BARRIER.replace("WAIT", wait)
    body = (
        "y[i] = x[i];\nBARRIER(z, 1);\nconst float v = y[(i + 64) % n] + y[(i + 128) % n];\nBARRIER(z, 2);\ny[i] = v;"
    )
    right = body.replace("BARRIER", "grid_barrier")
    y, z = run(kernel(right, before=barrier.replace("FENCE", "__threadfence();").replace("\n", " ")), 4)
    assert y[:2].tolist() == [64 + 128, 65 + 129]
    assert z[0] == 8
    told = r"which thread \(\d+, 0, 0\) of block \(\d, 0, 0\) {} at k.cu:{} .* at k.cu:{}, by block"
    message = race(kernel(right, before=barrier.replace("FENCE", "").replace("\n", " ")), 4)
    assert re.search("reads element .* of `y`.*" + told.format("wrote", 10, 12), message)
    first = body.replace("BARRIER(z, 1);", "").replace("BARRIER(z, 2)", "grid_barrier(z, 1)")
    message = race(kernel(first, before=barrier.replace("FENCE", "__threadfence();").replace("\n", " ")), 4)
    assert re.search("writes element .* of `y`.*" + told.format("read", 12, 10), message)
    second = right.replace("grid_barrier(z, 2);", "")
    message = race(kernel(second, before=barrier.replace("FENCE", "__threadfence();").replace("\n", " ")), 4)
    assert re.search("writes element .* of `y`.*" + told.format("read", 12, 14), message) or re.search(
        "reads element .* of `y`.*" + told.format("wrote", 14, 12), message
    )


LOCK = """if (t == 0) {
while (atomicCAS(z, 0, 1)) __nanosleep(20);
TAKE
y[3] += x[i];
GIVE
atomicExch(z, 0);
}"""


def test_a_lock() -> None:
    right = LOCK.replace("TAKE", "__threadfence();")
    assert run(kernel(right.replace("GIVE", "__threadfence();")), 4)[0][3] == 64 * 6
    assert "of block (0, 0, 0) wrote at k.cu:13" in race(kernel(right.replace("GIVE", "")), 4)


def test_who_has_seen_a_flag_sets_it_back() -> None:
    body = """if (t == 0 && b == 0) { __threadfence(); atomicExch(z, 1); }
if (t == 0 && b == 1) {
WAIT
z[0] = 0; }"""
    assert run(kernel(body.replace("WAIT", "while (*(volatile int*)z == 0) __nanosleep(20);")), 2)[1][0] == 0
    assert (
        "which thread (0, 0, 0) of block (0, 0, 0) wrote at k.cu:10 with nothing that orders the two at k.cu:13"
        in race(kernel(body.replace("WAIT", "")), 2)
    )


def test_a_flag_that_goes_by_a_third_block() -> None:
    """Order is transitive: the third block passes it on by its own flag."""
    body = """if (t == 0 && b == 0) { y[9] = 4; FENCE atomicExch(z, 1); }
if (b == 1) { if (t == 0) while (*(volatile int*)z == 0) __nanosleep(20);
__syncthreads();
if (t == 40) { __threadfence(); *(volatile int*)(z + 1) = 1; } }
if (t == 7 && b == 2) { while (atomicAdd(z + 1, 0) == 0) {}
y[10] = y[9]; }"""
    assert run(kernel(body.replace("FENCE", "__threadfence();")), 3)[0][10] == 4
    assert "which thread (0, 0, 0) of block (0, 0, 0) wrote at k.cu:10" in race(kernel(body.replace("FENCE", "")), 3)
    assert "which thread (0, 0, 0) of block (0, 0, 0) wrote at k.cu:10" in race(
        kernel(body.replace("FENCE", "__threadfence();").replace("__syncthreads();", "")), 3
    )


# Clusters


CLUSTER = "y[i] = x[i];\nARRIVE;\nWAIT\nz[i] = y[i ^ 64];"


def test_a_barrier_of_the_cluster() -> None:
    def found(arrive: str, wait: str = "__cluster_barrier_wait();") -> Kernel:
        return kernel(CLUSTER.replace("ARRIVE", arrive).replace("WAIT", wait), head="__cluster_dims__(2, 1, 1)")

    assert run(found("__cluster_barrier_arrive()"), 4)[1].tolist() == [i ^ 64 for i in range(256)]
    told = r"which thread \(\d+, 0, 0\) of block \(\d, 0, 0\) "
    assert re.search(told, race(found("__cluster_barrier_arrive_relaxed()"), 4))
    assert re.search(told + r"read at k.cu:13 .* at k.cu:10", race(found("__syncthreads()", ""), 4))
    across = CLUSTER.replace("ARRIVE", "__cluster_barrier_arrive()").replace("WAIT", "__cluster_barrier_wait();")
    message = race(kernel(across.replace("^ 64", "^ 128"), head="__cluster_dims__(2, 1, 1)"), 4)
    assert "of block (0, 0, 0) read at k.cu:13" in message
    assert "at k.cu:10, by block (2, 0, 0)" in message


def test_a_barrier_of_the_cluster_hands_on_what_was_learnt_before() -> None:
    """One thread of the first cluster is notified, and another block of the second cluster reads."""
    body = """if (i == 0) { y[9] = 4; __threadfence(); atomicExch(z, 1); }
if (b == 2 && t == 3) while (*(volatile int*)z == 0) __nanosleep(20);
ARRIVE; __cluster_barrier_wait();
if (b == 3) z[4 + t] = (int)y[9];"""
    head = "__cluster_dims__(2, 1, 1)"
    z = run(kernel(body.replace("ARRIVE", "__cluster_barrier_arrive()"), head=head), 4)[1]
    assert z[4:68].tolist() == [4] * 64
    assert "of block (0, 0, 0) wrote at k.cu:10" in race(
        kernel(body.replace("ARRIVE", "__cluster_barrier_arrive_relaxed()"), head=head), 4
    )


# What else belongs to it


def test_a_part_of_the_blocks() -> None:
    found = kernel("if (b > 4)\ny[b & 1] = 1;")
    x, y, z = np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(64, np.int32)
    with cupyops.simulate(sanitize=True, blocks=slice(5, 6)), pytest.raises(LaunchError, match=r"by block \(5, 0, 0\)"):
        found(x, y, z, 9, 64)
    first = kernel("if (t == 0)\ny[b & 1] = b;")
    with cupyops.simulate(sanitize=True, blocks=slice(5, 7)):
        first(x, y, z, 9, 64)
    assert y[:2].tolist() == [6, 5]
    with (
        cupyops.simulate(sanitize=True, blocks=slice(5, None)),
        pytest.raises(LaunchError, match=r"of block \(5, 0, 0\) wrote at k.cu:11 .* by block \(7, 0, 0\)"),
    ):
        first(x, y, z, 9, 64)


def test_a_compiler_that_cannot_tell_volatile_accesses_leaves_global_memory_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """g++ before 12: who waits for a flag would race with who sets it."""
    assert race(kernel("y[3] += x[i];"))
    monkeypatch.setattr(flags, "tells_volatile_apart", lambda tool: False)
    assert run(kernel("y[3] += x[i];"))[0][3] == 63 * 32
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError, match="out of bounds: writes"):
        kernel("y[t - 1] = 1;")(np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(64, np.int32), 1, 64)


def test_without_checks_nothing_is_looked_for() -> None:
    x, y, z = np.ones(64, np.float32), np.zeros(64, np.float32), np.zeros(64, np.int32)
    with cupyops.simulate():
        kernel("y[3] += x[i];")(x, y, z, 1, 64)
    assert y[3] == 64


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_what_clang_compiles_is_looked_at_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CXX", f"{sys.executable} -m ziglang c++")
    message = race(kernel("if (i < n)\ny[3] += x[i];"))
    assert "which thread (0, 0, 0) wrote at k.cu:11 with nothing that orders the two at k.cu:11, by" in message
    right = LAST_BLOCK.replace("FENCE", "__threadfence();").replace("TICKET", "atomicAdd(z, 1)")
    assert run(kernel(right), 4)[1][0] == 0
    message = race(kernel(right.replace("__threadfence();", "")), 4)
    assert "wrote at k.cu:11" in message
    assert "at k.cu:19, by block (3" in message
    assert "(both write the same value" in race(kernel("y[0] = 1;"))
    message = race(kernel("if (i != 64) atomicAdd(y, x[i]);\nelse\ny[1] = y[0];"), 3)
    assert "wrote at k.cu:10" in message
