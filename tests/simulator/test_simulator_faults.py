"""Faults that the simulator finds, each planted in a kernel: the report names kernel, line, block and thread."""

import re

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, LaunchError, Rows, Threads
from tests.conftest import NO_COMPILER

pytestmark = pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER)


def kernel(body: str, *, block: int = 64, shared: int = 0, before: str = "", const: bool = False) -> Kernel:
    """Returns a kernel with one block a row and `n` elements in `x` and in `y`. The body begins in line 10 of k.cu."""
    parameters = "const float* x,  // (n)\n    float* y,        // (n)\n    long long M, int n, int k"
    text = f'{before}\nextern "C" __global__ void k(\n    {parameters}) {{\n'
    text += "\n" * (9 - text.count("\n")) + body + "\n}\n"
    assert text.split("\n").index(body.split("\n")[0]) == 9
    return Kernel(text, "k", Rows("M", block=block), dtypes=("float32",), shared=shared)


def run(found: Kernel, *, n: int = 64, rows: int = 1, k: int = 0, sanitize: bool = True) -> np.ndarray:
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    with cupyops.simulate(sanitize=sanitize):
        found(x, y, rows, n, k)
    return y


def fault(found: Kernel, **options: int) -> str:
    """The message of a sanitized launch."""
    with pytest.raises(LaunchError) as caught:
        run(found, **options)
    return str(caught.value)


def place(line: int, thread: int, block: int = 0, grid: int = 1) -> str:
    return f"at k.cu:{line}, by block ({block}, 0, 0), thread ({thread}, 0, 0) of grid ({grid}, 1, 1), block (64, 1, 1)"


# Bounds


@pytest.mark.parametrize("n", [63, 64, 65])
def test_a_write_past_the_end_is_told_to_the_element(n: int) -> None:
    message = fault(kernel("if (threadIdx.x <= n) {\ny[threadIdx.x == 5 ? n : threadIdx.x] = x[0];\n}"), n=n)
    assert f"k: out of bounds: writes 4 bytes at element {n} of `y` (float32[{n}] on cpu) {place(11, 5)}" == message


def test_a_read_before_the_first_element() -> None:
    message = fault(kernel("y[0] = x[int(threadIdx.x) - 1];"))
    assert f"k: out of bounds: reads 4 bytes at element -1 of `x` (float32[64] on cpu) {place(10, 0)}" == message


def test_an_index_of_one_array_never_falls_into_another() -> None:
    memory = np.zeros(128, np.float32)
    found = kernel("y[threadIdx.x] = x[threadIdx.x + k];")
    with cupyops.simulate(sanitize=True):
        found(memory[:64], memory[64:], 1, 64, 0)
        with pytest.raises(LaunchError, match=r"element 64 of `x`"):
            found(memory[:64], memory[64:], 1, 64, 1)


def test_an_index_past_a_large_array_is_told_as_one_of_the_next_array() -> None:
    memory = np.zeros(200_000, np.float32)
    found = kernel("y[k == 2 ? n : 0] = x[k == 1 ? n : 0];")
    for k, name in ((1, "x"), (2, "y")):
        for x, y in ((memory[:100_000], memory[100_000:]), (memory[100_000:], memory[:100_000])):
            with cupyops.simulate(sanitize=True), pytest.raises(LaunchError, match=f"element 100000 of `{name}`"):
                found(x, y, 1, 100_000, k)


def test_a_vector_that_hangs_over_the_end() -> None:
    message = fault(
        kernel(
            "if (threadIdx.x < 16) { float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];\ny[threadIdx.x] = v.x; }"
        ),
        n=60,
    )
    assert "out of bounds: reads" in message
    assert "element 60 of `x` (float32[60] on cpu) at k.cu:10, by block (0, 0, 0), thread (15, 0, 0)" in message


def test_a_write_to_what_is_const() -> None:
    message = fault(kernel("const_cast<float*>(x)[threadIdx.x] = 1;"))
    assert f"k: writes to an array that is const: element 0 of `x` (float32[64] on cpu) {place(10, 0)}" == message


@pytest.mark.parametrize(
    "declared", ["__constant__ float c[64];", "namespace a { __constant__ float c[64]; } using a::c;"]
)
def test_a_write_to_constant_memory(declared: str) -> None:
    found = kernel(
        "if (k) reinterpret_cast<float*>(&c)[threadIdx.x] = 2;\ny[threadIdx.x] = c[threadIdx.x];", before=declared
    )
    run(found)
    message = fault(found, k=1)
    assert (
        f"k: out of bounds: writes 4 bytes at memory that belongs to no array of the launch {place(10, 0)}" == message
    )


def test_a_pointer_to_nowhere() -> None:
    message = fault(kernel("*reinterpret_cast<float*>(0x1234560) = x[0];"))
    assert (
        f"k: out of bounds: writes 4 bytes at memory that belongs to no array of the launch {place(10, 0)}" == message
    )


def test_static_shared_memory_is_bounded_to_the_element() -> None:
    body = "__shared__ float s[32], t[32];\nfloat* p = s;\np[threadIdx.x % 33] = x[0]; if (threadIdx.x == 0) t[0] = 0;\ny[threadIdx.x] = 1;"
    message = fault(kernel(body))
    assert (
        f"k: out of bounds in shared memory: writes 4 bytes at element 32 of `s`, which has 32 {place(12, 32)}"
        == message
    )


def test_an_array_indexed_by_name_beyond_its_size() -> None:
    body = "__shared__ float s[32];\ns[threadIdx.x] = x[0];\ny[threadIdx.x] = 1;"
    message = fault(kernel(body))
    assert "32" in message
    assert "out of bounds" in message
    assert "at k.cu:11, by block (0, 0, 0), thread (32, 0, 0)" in message


def test_dynamic_shared_memory_is_bounded() -> None:
    found = kernel(
        "extern __shared__ float s[];\ns[threadIdx.x] = x[threadIdx.x];\ny[threadIdx.x] = s[threadIdx.x];", shared=252
    )
    message = fault(found)
    assert (
        f"k: out of bounds in shared memory: writes 4 bytes at byte 252 of dynamic shared memory {place(11, 63)}"
        == message
    )


def test_local_arrays_are_bounded() -> None:
    message = fault(kernel("float a[4] = {x[0], x[1], x[2], x[3]};\ny[threadIdx.x] = a[threadIdx.x];"))
    assert "index 4 of an array 'float [4]' at k.cu:11, by block (0, 0, 0), thread (4, 0, 0)" in message


def test_a_local_variable_of_another_thread() -> None:
    body = (
        "__shared__ float* p;\nfloat mine = x[0];\nif (threadIdx.x == 0) p = &mine;\n__syncthreads();\n"
        "if (threadIdx.x == 1) y[0] = *p;\n__syncthreads();\ny[1] = mine;"
    )
    assert "memory that belongs to no array of the launch at k.cu:14" in fault(kernel(body))


# Barriers


def test_a_barrier_that_some_threads_do_not_reach() -> None:
    message = fault(kernel("if (threadIdx.x < 40) __syncthreads();\ny[threadIdx.x] = x[0];"))
    told = "a barrier is not reached by all threads of its block: threads 0-39 wait at __syncthreads (k.cu:10); threads 40-63 ended"
    assert f"k: {told} {place(10, 0)}" == message


def test_a_barrier_and_a_warp_that_wait_for_each_other() -> None:
    body = "if (threadIdx.x % 32 < 16) __syncthreads();\nelse __shfl_sync(0xffffffff, 1, 0);"
    for sanitize in (False, True):
        with pytest.raises(LaunchError) as caught:
            run(kernel(body), sanitize=sanitize)
        assert (
            "a barrier is not reached by all threads of its block: threads 0-15, 32-47 wait at __syncthreads (k.cu:10); "
            "threads 16-31, 48-63 wait at __shfl_sync with mask 0xffffffff (k.cu:11)"
        ) in str(caught.value)


def test_two_forms_of_a_barrier_do_not_meet() -> None:
    message = fault(kernel("if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads_or(1);"))
    assert (
        "different forms of it: threads 0-31 wait at __syncthreads (k.cu:10); threads 32-63 wait at __syncthreads_or"
        in message
    )


def test_threads_that_have_ended_count_as_a_gpu_counts_them_without_checks() -> None:
    found = kernel("if (threadIdx.x >= 40) return;\n__syncthreads();\ny[threadIdx.x] = 1;")
    assert run(found, sanitize=False).sum() == 40


@pytest.mark.parametrize(
    "wait",
    [
        "while (atomicAdd(&y[0], 0.f) == 0.f) {}",
        "while (atomicCAS((int*)&y[0], 0, 0) == 0) __nanosleep(100);",
        "while (*(volatile float*)y == 0.f) __threadfence();",
    ],
)
def test_a_wait_for_what_nobody_does_any_more(wait: str) -> None:
    """Also if other threads wait for the thread at a barrier, and in a grid of several blocks."""
    for more in ("", "\n__syncthreads();"):
        message = fault(kernel(f"x += 0;\nif (threadIdx.x == 5) {wait}{more}"))
        told = "waits for ever: the remaining threads only read memory that none of them changes"
        assert f"k: {told} {place(11, 5)}" == message


@pytest.mark.parametrize(
    "wait",
    [
        "for (int i = 0; i < 20000; ++i) s += __ldcg(x);",  # it makes progress, which shows only in its registers
        "for (int i = 0; i < 5000; ++i) if (atomicAdd(&y[0], 1.f) < 0) return;",
        "for (long long start = clock64(); clock64() - start < 20000000;) __nanosleep(100);",
        "volatile int n = 0; while (n < 3000) { n = n + 1; __nanosleep(100); }",
    ],
)
def test_a_wait_that_ends_is_waited_for(wait: str) -> None:
    y = run(kernel(f"float s = 0;\nif (threadIdx.x == 0) {{ {wait} }}\n__syncthreads();\ny[threadIdx.x] = 1 + 0 * s;"))
    assert (y == 1).all()


# Races and uninitialised reads


RACE = "__shared__ float s[64];\ns[threadIdx.x] = x[threadIdx.x];\n{}\ny[threadIdx.x] = s[63 - threadIdx.x];"


def test_a_dropped_barrier_is_a_race() -> None:
    assert run(kernel(RACE.format("__syncthreads();")))[0] == 63
    body = (
        "__shared__ float s[64];\ns[63 - threadIdx.x] = 0;\n__syncthreads();\ns[threadIdx.x] = x[threadIdx.x];\n"
        "y[threadIdx.x] = s[63 - threadIdx.x];"
    )
    message = fault(kernel(body))
    told = (
        "k: a race in shared memory: writes element 0 of `s`, which has 64, which thread (63, 0, 0) read at k.cu:14 "
        "with no barrier between at k.cu:13, by block (0, 0, 0), thread (0, 0, 0)"
    )
    assert message.startswith(told)
    body = body.replace("s[63 - threadIdx.x];", "s[threadIdx.x & 32];")
    told = (
        "k: a race in shared memory: reads element 0 of `s`, which has 64, which thread (0, 0, 0) wrote at k.cu:13 "
        "with no barrier between at k.cu:14, by block (0, 0, 0), thread (1, 0, 0)"
    )
    assert fault(kernel(body)).startswith(told)


def test_a_write_after_reads_without_a_barrier() -> None:
    body = "__shared__ float s[64];\ns[threadIdx.x] = 0;\n__syncthreads();\ny[threadIdx.x] = s[(threadIdx.x + 1) % 64];\ns[threadIdx.x] = 1;"
    message = fault(kernel(body))
    assert (
        "a race in shared memory: writes element 0 of `s`, which has 64, which thread (63, 0, 0) read at k.cu:13"
        in message
    )


def test_reads_of_a_warp_hide_a_read_of_another_warp_from_a_write() -> None:
    body = (
        "__shared__ float s;\nif (threadIdx.x == 0) s = 0;\n__syncthreads();\nif (threadIdx.x % 32 < 9) y[threadIdx.x] = s;\n"
        "__syncwarp();\n{}\nif (threadIdx.x == k) s = 1;"
    )
    for writer, others in ((0, r"(3\d|40)"), (32, r"\d")):
        run(kernel(body.format("__syncthreads();")), k=writer)
        told = rf"writes element 0 of `s`, .* thread \({others}, 0, 0\) read at k.cu:13 .* at k.cu:16, by"
        assert re.search(told, fault(kernel(body.format("")), k=writer))


def test_two_writes_of_one_element() -> None:
    message = fault(kernel("__shared__ int s;\ns = threadIdx.x;\n__syncthreads();\ny[0] = s;"))
    assert "writes element 0 of `s`, which has 1, which thread (0, 0, 0) wrote at k.cu:11" in message


def test_a_warp_orders_its_accesses_by_syncwarp_and_not_by_shuffles() -> None:
    body = "__shared__ float s[64];\ns[threadIdx.x] = x[threadIdx.x];\n{}\ny[threadIdx.x] = s[threadIdx.x ^ 1];"
    assert run(kernel(body.format("__syncwarp();")))[:2].tolist() == [1, 0]
    assert run(kernel(body.format("__syncwarp(3u << (threadIdx.x % 32 & 30));")))[:2].tolist() == [1, 0]
    assert "a race" in fault(kernel(body.format("__shfl_sync(0xffffffff, 1, 0);")))
    halves = "__syncwarp();\ns[threadIdx.x] = 1;\n__syncwarp(0x55555555u << threadIdx.x % 2);"
    assert "a race" in fault(kernel(body.format(halves)))


def test_atomic_operations_do_not_race_with_each_other() -> None:
    body = (
        "__shared__ int s;\nif (threadIdx.x == 0) s = 0;\n__syncthreads();\natomicAdd(&s, 1);\n{}\ny[threadIdx.x] = s;"
    )
    assert run(kernel(body.format("__syncthreads();"))).tolist() == [64] * 64
    assert "a race in shared memory" in fault(kernel(body.format("")))


def test_bytes_beside_each_other_do_not_race() -> None:
    body = (
        "__shared__ char s[64];\ns[threadIdx.x] = threadIdx.x;\n__syncthreads();\ny[threadIdx.x] = s[threadIdx.x ^ 1];"
    )
    assert run(kernel(body))[:4].tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("s[2] = 0;", "s[2] = 1;", "a race in shared memory: reads element 2 of `s`, which has 4, which thread (63, 0, 0) wrote"),
        ("s[2] = 0;", "y[1] = s[2];", "a race in shared memory: writes element 2 of `s`, which has 4, which thread (63, 0, 0) read"),
        ("", "", "reads shared memory that nobody has written: element 2 of `s`"),
    ],
    ids=["written", "read", "never written"],
)  # fmt: skip
def test_one_byte_of_an_element_differs_from_its_others(before: str, after: str, words: str) -> None:
    """The bytes of an access are looked at together only where the same became of all of them."""
    whole = "*reinterpret_cast<int*>(s) = 0;" if "writes" in words else "y[0] = *reinterpret_cast<int*>(s);"
    body = (
        f"__shared__ __align__(4) char s[4];\nif (threadIdx.x == 0) {{ s[0] = s[1] = s[3] = 0; {before} }}\n__syncthreads();\n"
        f"if (threadIdx.x == 63) {{ {after} }}\nif (threadIdx.x == 1) {{ {whole} }}"
    )
    assert words in fault(kernel(body))


def test_shared_memory_that_nobody_has_written() -> None:
    message = fault(
        kernel(
            "__shared__ float s[64];\nif (threadIdx.x != 7) s[threadIdx.x] = 1;\n__syncthreads();\ny[threadIdx.x] = s[threadIdx.x];"
        )
    )
    assert f"k: reads shared memory that nobody has written: element 7 of `s`, which has 64 {place(13, 7)}" == message


def test_each_block_begins_with_shared_memory_that_nobody_has_written() -> None:
    body = "__shared__ float s;\nif (blockIdx.x == 0 && threadIdx.x == 0) s = 1;\n__syncthreads();\nif (threadIdx.x == 0) y[0] = s;"
    assert f"nobody has written: element 0 of `s`, which has 1 {place(13, 0, block=1, grid=2)}" in fault(
        kernel(body), rows=2
    )
    assert np.isnan(run(kernel(body), rows=2, sanitize=False)[0])


def test_each_block_begins_with_dynamic_shared_memory_that_nobody_has_written() -> None:
    body = "extern __shared__ float s[];\nif (blockIdx.x == 0) s[threadIdx.x] = 1;\nif (s[threadIdx.x] == 2) y[0] = 1;"
    message = fault(kernel(body, shared=256), rows=3)
    assert f"nobody has written: byte 0 of dynamic shared memory {place(12, 0, block=1, grid=3)}" in message


# Alignment and arithmetic


@pytest.mark.parametrize("sanitize", [False, True])
def test_a_misaligned_vector(sanitize: bool) -> None:
    with pytest.raises(LaunchError) as caught:
        run(kernel("y[0] = reinterpret_cast<const float4*>(x + k)->x;"), k=1, sanitize=sanitize)
    assert re.search(
        r"misaligned: .*float4.* at address 0x\w+, which is not a multiple of 16 at k.cu:10", str(caught.value)
    )
    run(kernel("y[threadIdx.x] = reinterpret_cast<const float4*>(x + k)->x;"), k=4, sanitize=sanitize)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("int i = 2147483647 - k; y[0] = k - 2 - i;", "signed overflow: -2 - 2147483647 does not fit 'int'"),
        ("int i = n * 1000000; y[0] = i * i;", "signed overflow: 64000000 * 64000000 does not fit 'int'"),
        ("y[0] = -(-2147483647 - 1 + k);", "signed overflow: -(-2147483648) does not fit 'int'"),
        ("y[0] = 1 << (n / 2);", "bad shift: 1 by 32, of type 'int'"),
        ("y[0] = 1 << (k - 1);", "bad shift: 1 by -1, of type 'int'"),
        ("y[0] = n / k;", "divides 64 by zero"),
    ],
)
def test_arithmetic_that_is_undefined(body: str, told: str) -> None:
    assert f"k: {told} {place(10, 0)}" == fault(kernel(body))


def test_integers_wrap_without_checks_as_on_a_gpu() -> None:
    assert run(kernel("int i = n * 1000000; y[threadIdx.x] = i * n;"), sanitize=False)[0] == np.float32(
        64 * 64 * 10**6 - 2**32
    )


# Warps


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "__shfl_xor_sync(0x0000ffff, 1, 1);",
            "__shfl_xor_sync is called by lane 16, which its mask 0x0000ffff leaves out",
        ),
        (
            "if (threadIdx.x < 16) __shfl_down_sync(0x0000ffff, 1, 8);",
            "__shfl_down_sync with mask 0x0000ffff reads lane 16, which is not in the mask, from lane 8",
        ),
        (
            "if (threadIdx.x >= 8) __shfl_sync(0xffffffff, 1, 3);",
            "__shfl_sync with mask 0xffffffff {} lane {}, which has ended, from lane 8",
        ),
        ("__shfl_sync(0xffffffff, 1, 3, 12);", "__shfl_sync has width 12, which must be 1, 2, 4, 8, 16 or 32"),
    ],
)
def test_a_wrong_mask(body: str, told: str, sanitize: bool) -> None:
    with pytest.raises(LaunchError) as caught:
        run(kernel(body), sanitize=sanitize)
    assert f"k: {told.format(*('names', 0) if sanitize else ('reads', 3))} at k.cu:10" in str(caught.value)


def test_lanes_that_name_different_masks() -> None:
    body = "const unsigned mask = threadIdx.x % 32 < 16 ? 0xffffffff : 0xfffffff0;\n__shfl_xor_sync(mask, 1, 1);\n"
    for sanitize in (False, True):
        with pytest.raises(LaunchError) as caught:
            run(kernel(body), sanitize=sanitize)
        assert (
            "k: lanes of a warp name different masks, and none can go on: threads 0-15, 32-47 wait at __shfl_xor_sync with "
            "mask 0xffffffff (k.cu:11); threads 16-31, 48-63 wait at __shfl_xor_sync with mask 0xfffffff0 (k.cu:11) at k.cu:11"
        ) in str(caught.value)


def test_a_mask_that_names_lanes_that_have_ended() -> None:
    """A GPU goes on without them; whoever wrote the mask most likely did not mean that."""
    found = kernel("if (threadIdx.x % 32 >= 20) return;\ny[threadIdx.x] = __shfl_xor_sync(0xffffffff, 1, 1);")
    assert run(found, sanitize=False).sum() == 40
    message = fault(found)
    assert "__shfl_xor_sync with mask 0xffffffff names lane 20, which has ended, from lane 0 at k.cu:11" in message


def test_a_partial_warp_has_no_lanes_beyond_its_threads() -> None:
    found = kernel("y[0] = __shfl_down_sync(0xffffffff, 1, 16);", block=40)
    message = fault(found)
    assert (
        "__shfl_down_sync with mask 0xffffffff reads lane 16, which does not exist, from lane 0 at k.cu:10" in message
    )
    assert "thread (32, 0, 0)" in message


# Other ends


@pytest.mark.parametrize("sanitize", [False, True])
def test_an_assertion_names_its_thread(sanitize: bool) -> None:
    with pytest.raises(LaunchError) as caught:
        run(kernel("assert(threadIdx.x != 3);\ny[threadIdx.x] = 1;"), sanitize=sanitize)
    assert f"k: assertion `threadIdx.x != 3` failed in k {place(10, 3)}" in str(caught.value)


def test_without_checks_a_wild_pointer_ends_the_launch_and_not_the_process() -> None:
    with pytest.raises(LaunchError) as caught:
        run(kernel("*reinterpret_cast<float*>(0x1234560) = x[0];"), sanitize=False)
    assert f"k: touches address 0x1234560, which holds no memory {place(10, 0)}" in str(caught.value)
    assert "simulate(sanitize=True)` checks more" in str(caught.value)


def test_a_recursion_without_end() -> None:
    before = "__device__ __noinline__ int deeper(int i) { volatile int a[100]; a[0] = i; return i == -1 ? 0 : deeper(i + 1) + a[0]; }"
    with pytest.raises(LaunchError, match="needs a deeper stack than a thread has at k.cu:1"):
        run(kernel("y[0] = deeper(n);", before=before), sanitize=False)


def test_the_way_to_the_line_is_told() -> None:
    before = "__device__ __noinline__ void put(float* p, int i) { p[i] = 1; }"
    message = fault(kernel("y[0] = 0;\nput(y, n);", before=before))
    assert "element 64 of `y` (float32[64] on cpu) at k.cu:1 (called from k.cu:11), by block" in message


def test_a_fault_leaves_nothing_behind() -> None:
    bad = kernel(
        "__shared__ float s[64];\n__syncthreads();\ns[threadIdx.x] = 1;\nif (threadIdx.x == 33) y[n] = 0;\n__syncthreads();"
    )
    good = kernel(RACE.format("__syncthreads();"))
    for _ in range(20):
        assert "element 64 of `y`" in fault(bad)
        assert run(good).tolist() == list(range(63, -1, -1))


def test_outputs_of_a_launch_that_failed_are_not_copied_back() -> None:
    y = np.zeros(64, np.float32)
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError):
        kernel("y[threadIdx.x + 32] = 1;")(np.zeros(64, np.float32), y, 1, 64, 0)
    assert not y.any()


def test_arrays_that_overlap_stay_together() -> None:
    memory = np.arange(65, dtype=np.float32)
    with cupyops.simulate(sanitize=True):
        kernel("const float v = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] = v;")(
            memory[:64], memory[1:], 1, 64, 0
        )
    assert memory.tolist() == [0, *range(64)]


def test_a_grid_of_many_dimensions_names_its_thread() -> None:
    text = 'extern "C" __global__ void g(float* y, // (M, N)\n int M, int N) {\nif (threadIdx.y == 3 && blockIdx.y == 1) y[M * N] = 1; }'
    found = Kernel(text, "g", Threads("N", "M", block=(8, 4, 1)), dtypes=("float32",))
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError) as caught:
        found(np.zeros((7, 16), np.float32), 7, 16)
    assert "at g.cu:3, by block (0, 1, 0), thread (0, 3, 0) of grid (2, 2, 1), block (8, 4, 1)" in str(caught.value)
