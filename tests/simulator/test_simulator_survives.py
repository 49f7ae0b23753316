"""Nothing that a text holds ends the process: each kernel here tries to, and ends in an error that names it."""

import ctypes
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import cupyops
from cupyops import CompileError, Kernel, LaunchError, Threads
from cupyops.simulator import build
from cupyops.torch import Operator

pytestmark = pytest.mark.simulator

BOUNDS = "out of bounds: writes 4 bytes at"
NO_ARRAY = "memory that belongs to no array of the launch"
DEEP = "needs a deeper stack than a thread has"
SMASHED = "out of bounds: the function has written past a local array"
# By name, a body and the words of the error. The bodies are the cases of one kernel.
ATTACKS = {
    "off by one": ("y[n] = 1;", f"{BOUNDS} element 4 of `y`"),
    "a negative index": ("y[-1] = 1;", f"{BOUNDS} element -1 of `y`"),
    "far away": ("y[1000000000] = 1;", f"{BOUNDS} {NO_ARRAY}"),
    "far before": ("y[-100000000000ll] = 1;", f"{BOUNDS} {NO_ARRAY}"),
    "the last bytes of all": ("*(int*)(~0ull - 3) = 1;", f"{BOUNDS} {NO_ARRAY}"),
    "a null pointer": ("*(int*)nullptr = 1;", f"{BOUNDS} {NO_ARRAY}"),
    "a wild pointer": ("*(int*)0x123456780 = 1;", f"{BOUNDS} {NO_ARRAY}"),
    "a wild read": ("y[0] = x[n + 1000000];", f"reads 4 bytes at {NO_ARRAY}"),
    "a wild atomic": ("atomicAdd((int*)0x1234560, 1);", f"{BOUNDS} {NO_ARRAY}"),
    "an atomic off by one": ("atomicAdd(y + n, 1.f);", f"{BOUNDS} element 4 of `y`"),
    "memset": ("memset(y, 0, 1ull << 60);", "writes 1152921504606846976 bytes at element 0 of `y`"),
    "memcpy to a local array": ("char a[16]; memcpy(a, x, 1ull << 40); y[0] = a[n];", "reads 1099511627776 bytes"),
    "a struct": ("struct S { int a[1000]; }; *(S*)y = *(const S*)x;", "4000 bytes at element 0 of"),
    "a virtual function": ("((Base*)y)->f();", f"reads 8 bytes at {NO_ARRAY}|misaligned"),
    "double free": ("void* p = malloc(n); y[0] = p != nullptr; free(p); free(p);", "frees address 0x"),
    "free of an array": ("free((void*)y);", "frees address 0x"),
    "free of the middle": ("char* p = (char*)malloc(16); free(p + 8);", "frees address 0x"),
    "delete twice": ("Base* p = new Quiet; p->f(); Base* volatile q = p; delete q; delete q;", f"{NO_ARRAY}|frees"),
    "use after free": ("int* p = (int*)malloc(16); free(p); p[0] = n;", f"{BOUNDS} {NO_ARRAY}"),
    "behind the heap's block": ("int* p = (int*)malloc(16); p[n] = 1;", f"{BOUNDS} {NO_ARRAY}"),
    "a heap without end": ("while (void* p = malloc(100000)) memset(p, 1, 100000); y[n] = 1;", f"{BOUNDS} element 4"),
    "new of negative": ("y[0] = *new int[n - 5];", f"an array of a negative number of elements by new|{NO_ARRAY}"),
    "shared memory": (
        "int* p = part; p[n] = 1;",
        "in shared memory: writes 4 bytes at element 4 of `part`, which has 4",
    ),
    "shared memory far": ("int* p = part; p[-1000000 * n] = 1;", f"{BOUNDS} {NO_ARRAY}"),
    "an index of shared memory": ("part[n + 4] = 1;", r"out of bounds: index 8 of an array 'int \[4\]'"),
    "a variable": ("int* p = table; for (int i = 0; i < 1000000; ++i) p[i] = 0x41414141;", f"{BOUNDS} {NO_ARRAY}"),
    "before a variable": (
        "int* p = table; for (int i = 0; i < 1000000; ++i) p[-i] = 0x41414141;",
        f"{BOUNDS} {NO_ARRAY}",
    ),
    "an index of a variable": ("table[n] = 1;", r"out of bounds: index 4 of an array 'int \[4\]'"),
    "a string": ("char* s = (char*)message(n); s[n & 1] = 'x';", f"writes 1 bytes at {NO_ARRAY}"),
    "an index of a local array": ("int a[4] = {n}; a[n + n] = 3; y[0] = a[n & 1];", r"index 8 of an array 'int \[4\]'"),
    "a local array": ("int a[4] = {n}; int* p = a; for (int i = 0; i < 4000; ++i) p[i] = 7; y[0] = a[n & 1];", BOUNDS),
    "a local array of the caller": ("int a[4]; fill(a, 5 * n); y[0] = a[n & 1];", f"{SMASHED}|{BOUNDS}"),
    "the return address": ("smash(n);", SMASHED),
    "recursion": ("y[0] = deep(1000000000 + n);", DEEP),
    "a frame beyond the guard page": ("y[0] = large(n);", DEEP),
    "no return": ("y[0] = without_return(n);", "a function ends without the return of its value"),
    "unreachable": ("if (n == 4) __builtin_unreachable(); y[0] = 1;", r"__builtin_unreachable\(\) is reached"),
    "a null function": ("((void (*)())(long)(n - 4))();", r"touches address \(nil\), which holds no memory"),
    "a wild function": ("((void (*)())(0x123456l + n))();", "touches address 0x12345a, which holds no memory"),
    "an array as function": ("((void (*)())y)();", "touches address 0x"),
    "a pure virtual function": ("Derived d;", "calls a pure virtual function"),
    "division by zero": ("y[0] = 1 / (n - 4);", "divides 1 by zero"),
    "modulo zero": ("y[0] = n % (n - 4);", "divides 4 by zero"),
    "the smallest by -1": ("int m = -2147483647 - 1; y[0] = m / (n - 5);", "-2147483648 / -1 does not fit 'int'"),
    "the smallest modulo -1": ("long long m = 1ll << 63; y[0] = m % (n - 5);", "does not fit 'long long int'"),
    "misaligned": ("*(float4*)(y + 1) = make_float4(1, 1, 1, 1);", "misaligned: 'struct float4' at address"),
    "trap": ("__trap();", r"__trap\(\) was called"),
    "trap in PTX": ('asm volatile("trap;");', r"__trap\(\) was called"),
    "assert": ("assert(n == 5);", "assertion `n == 5` failed in k"),
    "printf of a number as text": (r'printf("%s\n", (char*)(long)n);', "touches address 0x4, which holds no memory"),
    "printf without arguments": (r'printf("%d %s %f %s\n");', "touches address 0x"),
    "printf that writes": (r'printf("abc%n\n", (int*)0x1234);', "printf writes a number"),
    "printf of null": ("printf((const char*)(long)(n - 4));", r"touches address \(nil\)"),
    "a lane that is not there": ("y[0] = __shfl_sync(1u << 31, 1, 0);", "__shfl_sync is called by lane 0"),
}
TEXT = r"""
__device__ int table[4];
struct Base {
    __device__ virtual void f() = 0;
    __device__ Base() {}
    __device__ Base(int) { g(); }
    __device__ __noinline__ void g() { f(); }
    __device__ virtual ~Base() {}
};
struct Derived : Base {
    __device__ void f() override {}
    __device__ Derived() : Base(1) {}
};
struct Quiet : Base {
    __device__ void f() override {}
    __device__ Quiet() {}
};
__device__ const char* message(int n) { return n == 3 ? "abc" : "def"; }
__device__ __noinline__ int deep(int n) {
    volatile int a[16];
    a[n & 15] = n;
    return n == 0 ? 0 : deep(n - 1) + a[n & 15];
}
__device__ __noinline__ int large(int n) {
    volatile char p[100000000];
    p[n] = 1;
    return p[n];
}
__device__ __noinline__ void fill(int* a, int n) {
    for (int i = 0; i < n; ++i) a[i] = 0x41414141;
}
__device__ __noinline__ void smash(int n) {
    int a[4];
    for (int i = 0; i < 40; ++i) fill(a + i, 1);
    table[0] = a[n & 1];
}
__device__ __noinline__ int without_return(int n) {
    if (n == 3) return 1;
}
extern "C" __global__ void k(
    const float* x,  // (n)
    float* y,        // (n)
    int n, int which) {
    __shared__ int part[4];
    if (which < 0) y[threadIdx.x] = x[threadIdx.x] + 1;
CASES
}
"""


@pytest.fixture(scope="module")
def attacked() -> Kernel:
    cases = "".join(f"    if (which == {i}) {{ {body} }}\n" for i, (body, _) in enumerate(ATTACKS.values()))
    return Kernel(TEXT.replace("CASES", cases), "k", Threads(block=4))


@pytest.mark.parametrize("name", ATTACKS)
def test_a_kernel_ends_the_process(name: str, attacked: Kernel) -> None:
    which = list(ATTACKS).index(name)
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    with cupyops.simulate():
        with pytest.raises(LaunchError) as caught:
            attacked[4](x, y, 4, which)
        assert (y == 0).all(), "a launch that fails has changed its arrays"
        attacked[4](x, y, 4, -1)
    assert y.tolist() == [1, 2, 3, 4], "the next launch"
    assert re.search(ATTACKS[name][1], str(caught.value)), caught.value
    assert re.match(r"k: .* at k\.cu:\d+.*, by block \(0, 0, 0\), thread \(\d, 0, 0\) of grid", str(caught.value))


def test_an_operator_that_simulates_by_itself_checks_nothing() -> None:
    text = 'extern "C" __global__ void plus(const float* x, /* (n) */ float* y, /* (n) */ int n) { y[threadIdx.x] = x[n] + 1; }'
    plus = Kernel(text, "plus", Threads("n", block=32))

    def body(x: Any) -> Any:
        y = torch.empty_like(x)
        plus(x, y, x.numel())
        return y

    with pytest.raises(LaunchError, match="plus: out of bounds: reads 4 bytes at element 5 of `x`"):
        Operator("survives::plus(Tensor x) -> Tensor y", body)(torch.zeros(5))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("quick_exit(0);", "quick_exit"),
        ("_Exit(0);", "_Exit"),
        ('fopen("/tmp/never", "w");', "fopen"),
        ("y[0] = *(char*)alloca(64);", "alloca"),
        ("throw 1;", "k.cu:1: error: (exception handling disabled|cannot use 'throw')"),
        ("abort();", "abort"),
    ],
)
def test_a_function_of_the_host_runs(body: str, told: str) -> None:
    kernel = Kernel(f'extern "C" __global__ void k(int* y) {{ {body} }}', "k", Threads(block=1))
    with cupyops.simulate(), pytest.raises(CompileError, match=told):
        kernel[1](np.zeros(1, np.int32))


def test_a_float_that_libc_has_too_is_taken_for_a_function_of_the_host() -> None:
    text = 'extern "C" __global__ void k(double* y) { int e; const double m = frexp(y[0], &e); y[0] = ldexp(m, e) + copysign(1., scalbn(y[0], 1)); }'
    y = np.full(1, 3.0)
    with cupyops.simulate():
        Kernel(text, "k", Threads(block=1))[1](y)
    assert y[0] == 4


GRID_BARRIER = """
extern "C" __global__ void k(int* y) {
    if (threadIdx.x == 0) atomicAdd(y, 1);
    __syncthreads();
    if (threadIdx.x == 0) while (atomicAdd(y, 0) < (int)gridDim.x);
    __syncthreads();
}
"""


@pytest.fixture
def limits() -> Iterator[Any]:
    """Sets whether stacks have guard pages, and how many threads may run at once."""
    set_limits = build.runtime().cupyops_limits
    yield lambda guards, threads: set_limits(guards, ctypes.c_size_t(threads))
    set_limits(1, ctypes.c_size_t(132 * 2048))


def test_more_threads_wait_than_a_process_has_mappings() -> None:
    y, kernel = np.zeros(1, np.int32), Kernel(GRID_BARRIER, "k", Threads(block=1024))
    with cupyops.simulate():
        kernel[36 * 1024](y)  # 36,864 stacks, and a process has 65,530 mappings
        assert y[0] == 36


DEEP_TEXT = """
__device__ __noinline__ int deep(int n) {
    volatile int a[16];
    a[n & 15] = n;
    return n == 0 ? 0 : deep(n - 1) + a[n & 15];
}
extern "C" __global__ void k(int* y, int depth) {
    __syncthreads();
    if (blockIdx.x == 1 && threadIdx.x == 40) y[1] = deep(depth);
    __syncthreads();
}
"""


def test_more_threads_wait_than_a_gpu_has_room_for(limits: Any) -> None:
    y, kernel = np.zeros(1, np.int32), Kernel(GRID_BARRIER, "k", Threads(block=1024))
    limits(1, 4 * 1024)
    said = "k: 5120 threads wait for blocks that have not begun, and an H200 has room for 4096 threads at once"
    with cupyops.simulate():
        with pytest.raises(LaunchError, match=said):
            kernel[100 * 1024](y)
        y[0] = 0
        kernel[2 * 1024](y)
    assert y[0] == 2


def test_stacks_without_guard_pages_overflow_into_others() -> None:
    """Beyond a number of stacks, and before Linux 6.13, stacks have no guard pages; the words between them show an overflow."""
    script = f"""
import ctypes, numpy
from cupyops import Kernel, LaunchError, Threads, simulate
from cupyops.simulator import build
text = {DEEP_TEXT!r}
kernel, y = Kernel(text, "k", Threads(block=64)), numpy.zeros(2, numpy.int32)
build.runtime().cupyops_limits(0, ctypes.c_size_t(132 * 2048))
for depth in (3000, 10**9, 10):
    try:
        with simulate():
            kernel[128](y, depth)
        print("ran", y[1])
    except LaunchError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [DEEP in line for line in lines] == [True, True, False], done.stdout
    assert lines[2] == "ran 55"


def test_no_memory_for_stacks_is_a_bad_alloc() -> None:
    script = f"""
import numpy, resource
from cupyops import Kernel, LaunchError, Threads, simulate
kernel, y = Kernel({GRID_BARRIER!r}, "k", Threads(block=1024)), numpy.zeros(1, numpy.int32)
with simulate():
    kernel[1024](y)
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, now + 2**30))
    try:
        kernel[20 * 1024](y)
    except LaunchError as error:
        print(error)
    y[0] = 0
    kernel[1024](y)
    print(y[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    told, count = done.stdout.splitlines()
    assert re.match(
        r"k: the host has too little memory for the \d+ threads that run at once. Launch fewer blocks", told
    )
    assert count == "1"


ENDLESS = {
    "a thread that never gives way": ("for (;;) {}", "threads 0-3 still run at k.cu:[23]"),
    "one that reads and writes": ("for (int i = 0;; i ^= 1) y[i] = x[i];", "threads 0-3 still run at k.cu:[23]"),
    "one that waits": ("while (atomicAdd(y, 0.f) == 0.f) y[1] += 1;", r"wait for memory to change \(k.cu:3\)"),
    "barriers": ("for (;;) __syncthreads();", r"wait at __syncthreads \(k.cu:3\)"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_launch_ignores_its_limit_of_time(name: str) -> None:
    body, told = ENDLESS[name]
    text = f'extern "C" __global__ void k(const float* x, /* (n) */ float* y, /* (n) */ int n) {{\n  if (n > 3)\n  {{ {body} }}\n}}'
    kernel = Kernel(text, "k", Threads("n", block=4))
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    with cupyops.simulate(timeout=0.1):
        with pytest.raises(LaunchError) as caught:
            kernel(x, y, 8)
        kernel(x[:3], y[:3], 3)
    said = r"k: the launch has run for the 0.1 s of `cupyops.simulate\(timeout=0.1\)`, and 0 of 2 blocks are done: "
    assert re.match(said, str(caught.value)), caught.value
    assert re.search(told, str(caught.value)), caught.value


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan")])
def test_a_limit_of_no_time(wrong: float) -> None:
    with (
        pytest.raises(ValueError, match="simulate: `timeout` must be a positive number of seconds or None"),
        cupyops.simulate(timeout=wrong),
    ):
        pass


@pytest.mark.parametrize("sanitize", [None, True, False])
def test_the_exception_of_a_signal_handler_comes_out_as_ctrl_c(sanitize: bool | None) -> None:
    class Failed(BaseException):
        pass

    def fail(*_: object) -> None:
        raise Failed

    text = 'extern "C" __global__ void k(float* y, int n) { while (n < 0) {} y[threadIdx.x] = 1; }'
    kernel, y = Kernel(text, "k", Threads(block=4)), np.zeros(4, np.float32)
    with cupyops.simulate(sanitize=sanitize):
        kernel[4](y, 4)
        before = signal.signal(signal.SIGALRM, fail)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Failed):
                kernel[4](y, -4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        kernel[4](y, 4)
    assert (y == 1).all()


def test_a_signal_handler_launches_into_a_launch() -> None:
    text = 'extern "C" __global__ void k(int* y, int n) { while (n < 0) {} y[0] = n; }'
    kernel, y = Kernel(text, "k", Threads(block=1)), np.zeros(1, np.int32)
    with cupyops.simulate(timeout=5):
        kernel[1](y, 1)
        before = signal.signal(signal.SIGALRM, lambda *_: kernel[1](y, 2))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(LaunchError, match="k: a signal handler launches a kernel while k is simulated"):
                kernel[1](y, -1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        kernel[1](y, 3)
    assert y[0] == 3
