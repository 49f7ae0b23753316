"""Tests that need a GPU: streams, devices, threads, graphs, the checks of a real launch, debug mode, sizes beyond 32
bits."""

import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import cupyops
import kernels_cu
from autograd_bridge import GELU, add2, gelu
from cupyops import CompileError, Elementwise, GridStride, Kernel, LaunchError, Rows, Threads
from tests.cases import CASES, Case
from tests.support import HANG, alike

pytestmark = pytest.mark.gpu
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def agree(case: Case, a: Tensor, b: Tensor) -> bool:
    """The same bits; of a library's products, which may choose another way on another stream, about the same values."""
    return torch.allclose(a, b, rtol=1e-4, atol=1e-3) if case.library else alike(a, b)


# Streams, devices, threads


@EVERY_CASE
@pytest.mark.parametrize("grad", [False, True])
def test_side_stream_with_the_default_stream_kept_busy(case: Case, grad: bool) -> None:
    expected = [x.requires_grad_(grad) for x in case.inputs("cuda", shape=(1 << 18,))]
    wanted = case.ours(*expected)
    grads = torch.autograd.grad(wanted, expected, torch.ones_like(wanted)) if grad else ()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for _ in range(5):
        torch.cuda._sleep(20_000_000)  # the default stream: a launch there would wait, and its reader would not
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            inputs = [torch.empty_like(x).copy_(x.detach()).requires_grad_(grad) for x in expected]
            y = case.ours(*inputs)
            got = torch.autograd.grad(y, inputs, torch.ones_like(y)) if grad else ()
            copies = [t.detach().clone() for t in (y, *got)]
        side.synchronize()
        assert all(agree(case, c, w.detach()) for c, w in zip(copies, (wanted, *grads), strict=True))


@EVERY_CASE
def test_several_threads_at_once(case: Case) -> None:
    inputs = [x.requires_grad_() for x in case.inputs("cuda", shape=(4097,))]
    wanted = case.ours(*inputs)
    grads = torch.autograd.grad(wanted, inputs, torch.ones_like(wanted))
    torch.cuda.synchronize()
    failures: list[str] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    mine = [x.detach().clone().requires_grad_() for x in inputs]
                    y = case.ours(*mine)
                    got = torch.autograd.grad(y, mine, torch.ones_like(y))
                    torch.cuda.current_stream().synchronize()
                    if not all(agree(case, g, w) for g, w in zip((y, *got), (wanted, *grads), strict=True)):
                        failures.append("wrong bits")
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[:3]


@pytest.mark.multi_gpu
@EVERY_CASE
def test_second_gpu_while_the_first_is_current(case: Case) -> None:
    assert torch.cuda.current_device() == 0
    wanted = case.ours(*case.inputs("cuda:0"))
    inputs = [x.requires_grad_() for x in case.inputs("cuda:1")]
    y = case.ours(*inputs)
    assert y.device == torch.device("cuda:1")
    y.sum().backward()
    assert agree(case, y.to("cuda:0"), wanted)
    assert all(x.grad is not None and x.grad.device == torch.device("cuda:1") for x in inputs)
    assert torch.cuda.current_device() == 0
    if case.tensors == 2:
        with pytest.raises(ValueError, match=r"`.*` must be on the device of `.*` .*cuda:1"):
            case.ours(*case.inputs("cuda:0")[:1], *case.inputs("cuda:1")[1:])


# CUDA graphs


@EVERY_CASE
def test_graph_replays_with_new_data(case: Case) -> None:
    static = [x.requires_grad_() for x in case.inputs("cuda")]
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        y = case.ours(*static)
        torch.autograd.grad(y, static, torch.ones_like(y))
    del y  # it would keep gradient accumulators of the other stream alive
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case.ours(*static)
        grads = torch.autograd.grad(y, static, torch.ones_like(y))
    for _ in range(3):
        fresh = [torch.randn_like(x) for x in static]
        with torch.no_grad():
            for s, f in zip(static, fresh, strict=True):
                s.copy_(f)
        graph.replay()
        again = [f.requires_grad_() for f in fresh]
        wanted = case.ours(*again)
        wanted_grads = torch.autograd.grad(wanted, again, torch.ones_like(wanted))
        assert agree(case, y, wanted)
        assert all(agree(case, g, w) for g, w in zip(grads, wanted_grads, strict=True))


def test_warmup_leaves_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = cupyops.warmup(("float32", "bfloat16"))
    assert ready >= 2 * 8

    def refuse(*args: object) -> None:
        raise AssertionError("compiled after warmup")

    monkeypatch.setattr("cupyops.launch.kernel.load", refuse)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(64, 8, device="cuda", dtype=dtype)
        gelu(add2(x, x[0]))


def test_training_step_in_a_graph_is_the_eager_step() -> None:
    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), GELU(), torch.nn.Linear(32, 4)).cuda()
        return net, torch.optim.SGD(net.parameters(), lr=0.1)

    x = torch.randn(8, 16, device="cuda")
    net, optimizer = build()
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        optimizer.step()
    twin, twin_optimizer = build()
    state = {k: v.clone() for k, v in twin.state_dict().items()}
    with torch.cuda.stream(torch.cuda.Stream()):
        twin(x).square().mean().backward()
    twin_optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        twin(x).square().mean().backward()
        twin_optimizer.step()
    twin.load_state_dict(state)
    for _ in range(3):
        graph.replay()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


# A stranger's kernels: policies, checks, errors

SCALE = """
// y = factor * x, row by row
extern "C" __global__ void scale_rows(
    const scalar_t* __restrict__ x,  // (M, N)
    scalar_t* __restrict__ y,        // (M, N)
    long long M, long long N, acc_t factor) {
    for (long long j = threadIdx.x; j < N; j += blockDim.x) {
        const long long i = blockIdx.x * N + j;
        y[i] = scalar_t(factor * acc_t(x[i]));
    }
}
extern "C" __global__ void scale_strided(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    acc_t factor, long long n) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step) y[i] = scalar_t(factor *
    acc_t(x[i]));
}
extern "C" __global__ void scale_2d(
    const scalar_t* x,  // (M, N)
    scalar_t* y,        // (M, N)
    int M, int N, acc_t factor) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i < M && j < N) y[(long long)i * N + j] = scalar_t(factor * acc_t(x[(long long)i * N + j]));
}
extern "C" __global__ void past_the_end(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i <= n) y[i] = i < n ? x[i] : scalar_t(1);
}
extern "C" __global__ void wild(
    scalar_t* y,  // (n)
    long long n) {
    y[(1ll << 42) + threadIdx.x] = scalar_t(1);
}
extern "C" __global__ void shared_sum(
    const float* x,  // (n)
    float* y,        // (1)
    long long n) {
    extern __shared__ float partial[];
    float sum = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    partial[threadIdx.x * 64] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0;
        for (int t = 0; t < blockDim.x; ++t) total += partial[t * 64];
        y[0] = total;
    }
}
"""
REALS = ("float16", "float32", "float64")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (70_000, 3), (0, 5)])
def test_policies(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device="cuda").to(dtype)
    M, N = shape
    wanted = (x.double() * 1.5).to(dtype)
    rows = torch.empty_like(x)
    Kernel(SCALE, "scale_rows", Rows("M"), dtypes=REALS)(x, rows, M, N, 1.5)
    strided = torch.empty_like(x)
    Kernel(SCALE, "scale_strided", GridStride("n"), dtypes=REALS)(x, strided, factor=1.5, n=M * N)
    flat = torch.empty_like(x)
    Kernel(SCALE, "scale_2d", Threads("N", "M", block=(32, 8, 1)), dtypes=REALS)(x, flat, M, N, 1.5)
    for got in (rows, strided, flat):
        torch.testing.assert_close(got, wanted)


def test_dynamic_shared_memory_beyond_48_kib() -> None:
    x = torch.ones(1000, device="cuda")
    y = torch.zeros(1, device="cuda")
    Kernel(SCALE, "shared_sum", Threads("n", block=(256, 1, 1)), dtypes=("float32",), shared=64 * 1024)(x, y, 1000)
    assert y.item() == 1000


def test_wrong_calls_never_reach_the_gpu() -> None:
    kernel = Kernel(SCALE, "scale_strided", GridStride("n"), dtypes=REALS)
    x = torch.ones(100, device="cuda")
    y = torch.zeros(100, device="cuda")
    kernel(x, y, 2.0, 100)  # opens the generated launch, which must refuse as the checked one does
    for _ in range(2):
        for args, error, words in [
            ((x, y, 2.0), TypeError, "missing `n`"),
            ((x, y, 2.0, 100, 1), TypeError, "takes 4 arguments"),
            ((x, y.double(), 2.0, 100), TypeError, "`y` must have dtype float32"),
            ((x, y, "2", 100), TypeError, "`factor` must be a number"),
            ((x, y, 2.0, 100.0), TypeError, "`n` must be an integer"),
            ((x, y, 2.0, 101), ValueError, "`x` must hold n = 101 elements, got 100"),
            ((x, y, 2.0, 2**63), ValueError, "`n` must fit int64"),
            ((x[::2], y[:50], 2.0, 50), ValueError, "`x` must be contiguous"),
            ((x, y.cpu(), 2.0, 100), ValueError, "`y` must be on the device of `x`"),
            ((x.cpu(), y.cpu(), 2.0, 100), ValueError, "must be on a CUDA device"),
            ((x.int(), y.int(), 2, 100), TypeError, "`x` must have dtype float16 or float32 or float64, got int32"),
            ((None, y, 2.0, 100), TypeError, "`x` must be a CuPy array or a PyTorch tensor, got NoneType"),
        ]:
            y.zero_()
            with pytest.raises(error, match=words):
                kernel(*args)
            assert not y.any(), words
    kernel(x, y, 2.0, 100)
    assert y.sum().item() == 200


def test_a_misread_declaration_is_refused() -> None:
    text = """
    #define COUNT int n
    extern "C" __global__ void k(float* y, /* (1) */ long long n) { y[0] = n; }
    """
    kernel = Kernel(text, "k", Threads("n"), dtypes=("float32",))
    assert kernel.signature
    # The compiled kernel differs from the declaration.
    kernel.source = replace(kernel.source, text=text.replace("long long n", "int n"))
    with pytest.raises(CompileError, match=r"`n`: the launch passes a int64, and the compiler says that it is `int`"):
        kernel(torch.zeros(1, device="cuda"), 1)
    kernel = Kernel(text, "k", Threads("n"), dtypes=("float32",))
    assert kernel.signature
    kernel.source = replace(kernel.source, text=text.replace("long long n", "long long n, int m"))
    with pytest.raises(CompileError, match=r"k: the launch passes 2 arguments, and the compiler sees 3 parameters"):
        kernel(torch.zeros(1, device="cuda"), 1)


def test_refused_launch_names_kernel_and_geometry() -> None:
    text = SCALE.replace("void scale_strided", "void __launch_bounds__(128) scale_strided")
    kernel = Kernel(text, "scale_strided", GridStride("n", block=1024), dtypes=REALS)
    x = torch.ones(10, device="cuda")
    with pytest.raises(
        LaunchError, match=r"scale_strided<float32> with grid \(1, 1, 1\), block \(1024, 1, 1\) was refused"
    ):
        kernel(x, torch.empty_like(x), 2.0, 10)
    gelu(x)  # and life goes on


def test_debug_mode_finds_a_write_past_the_end() -> None:
    kernel = Kernel(SCALE, "past_the_end", Threads("n"), dtypes=REALS)
    x = torch.randn(1000, device="cuda")
    y = torch.empty(1024, device="cuda")[:1000]
    kernel(x, y, 1000)  # unseen
    with cupyops.debug_mode(), pytest.raises(LaunchError, match=r"wrote outside its output `y`: element 1000 of 1000"):
        kernel(x, y, 1000)
    with cupyops.debug_mode():
        assert alike(gelu(x), gelu(x))
    for case in CASES:
        inputs = case.inputs("cuda", shape=(1001,))
        with cupyops.debug_mode():
            slow = case.ours(*(t[1:] for t in inputs))
        assert agree(case, slow, case.ours(*(t[1:] for t in inputs)))


def test_debug_mode_names_the_kernel_of_an_illegal_access() -> None:
    """Runs in another process, since such an access ends a process's use of the GPU."""
    script = f"""
import torch, cupyops
from cupyops import Kernel, Threads
kernel = Kernel({SCALE!r}, "wild", Threads("n"), dtypes=("float32",))
y = torch.zeros(8, device="cuda")
with cupyops.debug_mode():
    try:
        kernel(y, 8)
    except cupyops.LaunchError as error:
        print("CAUGHT", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG)
    assert "CAUGHT wild<float32> with grid" in done.stdout, done.stdout + done.stderr
    assert "illegal memory access" in done.stdout or "ILLEGAL_ADDRESS" in done.stdout
    assert "y: float32[8] on cuda:0" in done.stdout


def test_vectors_and_single_elements_give_the_same_bits() -> None:
    kernels = [
        Kernel(
            kernels_cu.source("gelu"),
            "gelu_forward",
            Elementwise("n", block, vectors),
            dtypes=("float16",),
            constants={"TANH": 0},
        )
        for block, vectors in ((32, 1), (128, 2), (256, 4))
    ]
    x = torch.randn(100_003, device="cuda").half()
    wanted = gelu(x)
    for kernel in kernels:
        y = torch.empty_like(x)
        kernel(x, y, x.numel())
        assert alike(y, wanted)


@pytest.mark.large
@pytest.mark.parametrize("extra", [0, 5])
def test_more_than_2_31_elements(extra: int) -> None:
    n = 2**31 + 1024 + extra
    x = torch.empty(n, device="cuda", dtype=torch.float16).uniform_(-3, 3)
    y = gelu(x)
    for part in (slice(0, 4096), slice(2**31 - 2048, 2**31 + 1029), slice(n - 3, n)):
        assert alike(y[part], gelu(x[part].clone()))
    total = add2(x, y)
    assert alike(total[-4096:], torch.add(x[-4096:], y[-4096:]))
    rows = x[: n // 8 * 8].view(-1, 8)
    out = add2(rows, x[:8])
    assert alike(out[-100:], torch.add(rows[-100:], x[:8]))
    odd = x[: n // 3 * 3].view(-1, 3)
    out = add2(odd, x[:3])
    assert alike(out[-100:], torch.add(odd[-100:], x[:3]))
