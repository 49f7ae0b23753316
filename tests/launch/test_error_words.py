"""Error messages for users' mistakes: kernel, parameter, expected value, given value, and the fix."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import cupyops
from cupyops import CompileError, Elementwise, GridStride, Kernel, LaunchError, Rows, Threads
from cupyops.compile.cache import Binary
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.launch import debug, driver
from tests.gpu.stub_gpu import Driver, Stub

TEXT = """\
// y = limit * x / (limit + |x|)
extern "C" __global__ void softclip(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    float limit, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(limit * float(x[i]) / (limit + fabsf(float(x[i]))));
}
"""
DTYPES = ("float16", "float32")


def softclip(text: str = TEXT, geometry: Any = None, **options: Any) -> Kernel:
    return Kernel(text, "softclip", geometry or Threads("n"), **{"dtypes": DTYPES, **options})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


class Wrong(Stub):
    """An array whose elements do not lie one after another."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.info = cupyops.arrays.Info("float32", (2, 2), (1, 2), 4, "cuda", 0, 4096)

    def is_contiguous(self) -> bool:
        return False


X, Y = Stub(4), Stub(4)
CALLS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "parameter missing": (
        lambda: softclip()(X, Y, 1.0),
        TypeError,
        "softclip: missing `n`; it takes x, y, limit, n",
    ),
    "parameter extra": (
        lambda: softclip()(X, Y, 1.0, 4, 5),
        TypeError,
        "softclip takes 4 arguments (x, y, limit, n), got 5",
    ),
    "parameter unknown": (
        lambda: softclip()(X, Y, limti=1.0, n=4),
        TypeError,
        "softclip has no parameter `limti`; did you mean 'limit'?; it takes x, y, limit, n",
    ),
    "dtype that the kernel does not take": (
        lambda: softclip()(Stub(4, dtype="float64"), Y, 1.0, 4),
        TypeError,
        "softclip: `x` must have dtype float16 or float32, got float64",
    ),
    "dtype other than the arrays before": (
        lambda: softclip()(X, Stub(4, dtype="float16"), 1.0, 4),
        TypeError,
        "softclip: `y` must have dtype float32 (scalar_t, as the arrays before it), got float16",
    ),
    "number that is too wide": (
        lambda: softclip()(X, Y, 1.0, 2**31),
        ValueError,
        "softclip: `n` must fit int32, got 2147483648",
    ),
    "number of another kind": (
        lambda: softclip()(X, Y, 1.0, 4.0),
        TypeError,
        "softclip: `n` must be an integer (int32), got 4.0",
    ),
    "array of another size": (
        lambda: softclip()(X, Stub(3), 1.0, 4),
        ValueError,
        "softclip: `y` must hold n = 4 elements, got 3",
    ),
    "device of the host": (
        lambda: softclip()(torch.ones(4), torch.ones(4), 1.0, 4),
        ValueError,
        "softclip: `x` must be on a CUDA device, got float32[4] on cpu. On a CPU, kernels run within "
        "`with cupyops.simulate():`",
    ),
    "device other than the first array's": (
        lambda: softclip()(X, Stub(4, device=1), 1.0, 4),
        ValueError,
        "softclip: `y` must be on the device of `x` (float32[4] on cuda:0), got float32[4] on cuda:1",
    ),
    "layout with holes": (
        lambda: softclip()(X, Wrong(), 1.0, 4),
        ValueError,
        "softclip: `y` must be contiguous, got strides (1, 2) for shape (2, 2). Pass a contiguous array, or declare `y` "
        "without a shape and give its strides to the text",
    ),
    "kernel that the text does not have": (
        lambda: Kernel(TEXT, "softclp", Threads("n")),
        ValueError,
        "no __global__ function 'softclp' in the text; it has softclip; did you mean 'softclip'?",
    ),
    "text of several kernels and no name": (
        lambda: Kernel(TEXT + TEXT.replace("softclip", "hardclip")),
        ValueError,
        "name the kernel: the text has softclip, hardclip",
    ),
    "text without a kernel": (lambda: Kernel("int n;"), ValueError, "name the kernel: the text has none"),
    "size that is no parameter": (
        lambda: softclip(geometry=GridStride("nn")),
        ValueError,
        "softclip: `nn` counts threads or elements, but the kernel has no integer parameter of this name; did you mean 'n'?",
    ),
    "block that is too large": (
        lambda: softclip(geometry=Rows("n", block=2048)),
        ValueError,
        "softclip: a block of 2048 x 1 x 1 threads: CUDA has at most 1024, and 64 in z",
    ),
    "block that is too deep": (
        lambda: softclip(geometry=Threads("n", block=(1, 1, 65))),
        ValueError,
        "softclip: a block of 1 x 1 x 65 threads: CUDA has at most 1024, and 64 in z",
    ),
    "grid that is too large in x": (
        lambda: softclip(TEXT.replace("int n", "long long n"), Rows("n"))(Stub(2**31), Stub(2**31), 1.0, 2**31),
        ValueError,
        "softclip: a grid of 2147483648 blocks in x: CUDA has at most 2147483647. Use larger blocks or a GridStride",
    ),
    "grid that is too large in y": (
        lambda: Kernel(TEXT, "softclip", Threads(block=(1, 1, 1))).forall(1, 65536)(X, Y, 1.0, 4),
        ValueError,
        "softclip: a grid of 1 x 65536 x 1 blocks: CUDA has at most 65535 blocks in y and z. Put the longest dimension in "
        "x, or use larger blocks than (1, 1, 1)",
    ),
    "no number of threads": (
        lambda: Kernel(TEXT)(X, Y, 1.0, 4),
        TypeError,
        "softclip: say how many threads: softclip[n](...), softclip.forall(N, M)(...), softclip[grid, block](...); or declare "
        "a policy such as Threads('n')",
    ),
    "number of threads for a kernel that counts them": (
        lambda: softclip()[4](X, Y, 1.0, 4),
        TypeError,
        "softclip counts its blocks by Threads(x='n', y=None, z=None, block=(256, 1, 1)); call it without [...], or make the "
        "Kernel without a policy for softclip[grid, block]",
    ),
    "threads in four dimensions": (
        lambda: Kernel(TEXT).forall(1, 2, 3, 4)(X, Y, 1.0, 4),
        TypeError,
        "softclip.forall: `threads` must be one to three numbers, got (1, 2, 3, 4)",
    ),
    "half a thread": (
        lambda: Kernel(TEXT)[0.5](X, Y, 1.0, 4),  # type: ignore[index]
        TypeError,
        "softclip[...]: the launch configuration must be [n] for n threads, [grid, block] or [grid, block, shared], got 0.5; "
        "softclip.forall(N, M) has N x M threads",
    ),
    "less than no thread": (
        lambda: Kernel(TEXT)[-4](X, Y, 1.0, 4),
        ValueError,
        "softclip[...]: `threads` must be at least 0, got -4",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_in_these_words(gpu: Driver, name: str) -> None:
    call, error, words = CALLS[name]
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == words
    assert not gpu.launches
    softclip()(X, Y, 1.0, 4)  # and life goes on
    assert len(gpu.launches) == 1


# What the driver says

LAUNCHES = {
    "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered": "did not run, since an earlier kernel failed "
    "on this GPU: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered. The process "
    "has lost the GPU: restart the process. CUPYOPS_DEBUG=1 names the kernel",
    "CUDA_ERROR_ASSERT: device-side assert triggered": "did not run, since an earlier kernel failed on this GPU: "
    "CUDA_ERROR_ASSERT: device-side assert triggered. The GPU has printed the failed assert to stderr. The process "
    "has lost the GPU: restart the process. CUPYOPS_DEBUG=1 names the kernel",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch": "was refused: "
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch. A block needs more registers than a "
    "multiprocessor has: use smaller blocks, or declare __launch_bounds__(threads) in the text",
    "CUDA_ERROR_INVALID_VALUE: invalid argument": "was refused: CUDA_ERROR_INVALID_VALUE: invalid argument",
}


@pytest.mark.parametrize("said", LAUNCHES)
def test_a_launch_that_fails_is_told_from_one_that_is_refused(gpu: Driver, said: str) -> None:
    """The fault of a kernel is reported at a later launch, which is not at fault."""
    gpu.failure = RuntimeError(said)
    with pytest.raises(LaunchError) as caught:
        softclip()(X, Y, 1.0, 4)
    assert str(caught.value) == (
        f"softclip<float32> with grid (1, 1, 1), block (256, 1, 1) {LAUNCHES[said]}. "
        f"Arguments: x: float32[4] on cuda:0, y: float32[4] on cuda:0"
    )


def test_debug_mode_names_the_kernel_that_failed_and_its_arguments(
    gpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    answers = iter((None, RuntimeError(said)))

    class Runtime:
        memcpyDeviceToDevice = 0  # noqa: N815

        def streamSynchronize(self, stream: int) -> None:  # noqa: N802
            if error := next(answers):
                raise error

        def __getattr__(self, name: str) -> Any:
            return lambda *args: 0

    class Cupy:
        class cuda:  # noqa: N801
            runtime = Runtime()
            alloc = staticmethod(lambda size: ctypes.c_int())

    monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: Cupy)
    monkeypatch.setattr(debug, "_Guarded", lambda p, info, stream: type("Band", (), {"pointer": info.pointer}))
    with cupyops.debug_mode(), pytest.raises(LaunchError) as caught:
        softclip()(X, Y, 1.5, 4)
    assert str(caught.value) == (
        f"softclip<float32> with grid (1, 1, 1), block (256, 1, 1) failed: {said}. The process has lost "
        f"the GPU: restart the process. Arguments: x: float32[4] on cuda:0, y: float32[4] on cuda:0, limit: 1.5, n: 4"
    )


def test_shared_memory_that_a_gpu_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(raw: object, size: int) -> None:
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")

    from tests.launch.test_loading import Gpus

    gpus = Gpus()
    monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: gpus)
    monkeypatch.setattr("cupyops.launch.load.target_for", "sm_{}".format)
    monkeypatch.setattr("cupyops.launch.load.binary_for", lambda *args: Binary(b"", "", {}, 0.0))
    monkeypatch.setattr(driver, "load", lambda binary, name: gpus)
    monkeypatch.setattr(driver, "allow_shared_memory", refused)
    with pytest.raises(LaunchError) as caught:
        softclip(shared=300_000).variant({"scalar_t": "float32"}, 0)
    assert str(caught.value) == (
        "softclip<float32> needs 300000 bytes of dynamic shared memory per block, which GPU 0 (sm_90) does not have: "
        "CUDA_ERROR_INVALID_VALUE: invalid argument"
    )


# What the compiler says


def compile_error(kernel: Kernel) -> list[str]:
    pytest.importorskip("cupy")
    types = {"scalar_t": "float16"}
    with pytest.raises(CompileError) as caught:
        compile_text(kernel.final_text(types), kernel.describe(types), "sm_90", OPTIONS)
    return str(caught.value).split("\n")


def test_a_compile_error_is_at_the_line_of_the_file(tmp_path: Path) -> None:
    """Also after an include, and in a header beside the file."""
    (tmp_path / "clip.cuh").write_text("// clips\n__device__ float clip(float v) { return v / nothing; }\n")
    text = '#include "scalar.cuh"\n#include "clip.cuh"\n' + TEXT.replace("limit * ", "clip(limt) * ")
    (tmp_path / "mine.cu").write_text(text)
    kernel = Kernel(tmp_path / "mine.cu", "softclip", Elementwise("n"), dtypes=DTYPES)
    head, *rest = compile_error(kernel)
    assert head.startswith("softclip<float16> does not compile for sm_90 (NVRTC ")
    assert 'clip.cuh:2: error: identifier "nothing" is undefined' in rest
    assert 'mine.cu:9: error: identifier "limt" is undefined' in rest
    assert "  " + text.split("\n")[8].strip() in [line.rstrip()[:2] + line.strip() for line in rest]


def test_a_write_to_const_is_a_compile_error_at_its_line() -> None:
    _, *rest = compile_error(softclip(TEXT.replace("y[i] = ", "x[i] = ")))
    assert rest[0].startswith('softclip.cu:7: error: no operator "=" matches these operands')
    assert "\n      if (i < n) x[i] = scalar_t(" in "\n".join(rest)
    plain = TEXT.replace("scalar_t*", "float*").replace("y[i] = ", "x[i] = ")
    kernel = Kernel(plain, "softclip", dtypes=DTYPES)
    with pytest.raises(CompileError, match="softclip.cu:7: error: expression must be a modifiable lvalue"):
        compile_text(kernel.final_text({"scalar_t": "float32"}), "softclip", "sm_90", OPTIONS)


@pytest.mark.simulator
def test_a_write_behind_the_back_of_const_is_found_by_the_sanitizer() -> None:
    sly = softclip(TEXT.replace("y[i] = ", "const_cast<scalar_t*>(x)[i] = "))
    x, y = torch.ones(4), torch.empty(4)
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError) as caught:
        sly(x, y, 1.0, 4)
    assert str(caught.value).startswith(
        "softclip<float32>: writes to an array that is const: element 0 of `x` (float32[4] on cpu) at softclip.cu:7, by block "
    )


OPS = """\
import cupyops
from cupyops import Kernel

LIMIT = 2
hardclip = Kernel(
    r\"\"\"
extern "C" __global__ void hardclip(
    const float* x,  // (n)
    float* y,        // (n)
    int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fminf(x[i], limit);
}\"\"\"
)
"""


def declared(folder: Path, text: str = OPS) -> Kernel:
    """The kernel of a module in a file."""
    (folder / "ops.py").write_text(text)
    scope: dict[str, Any] = {"__name__": "ops"}
    exec(compile(text, str(folder / "ops.py"), "exec"), scope)
    found: Kernel = scope["hardclip"]
    return found


def test_a_compile_error_is_at_the_line_of_the_python_file_that_holds_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy")
    from tests.launch.test_loading import Gpus

    monkeypatch.setattr("cupyops.compile.toolchain.cupy", Gpus)
    message = compile_error_of(lambda: declared(tmp_path).variant({}, 0))
    assert OPS.split("\n")[11].startswith("    if (i < n)")
    assert message[1] == f'{tmp_path}/ops.py:12 (hardclip.cu:7): error: identifier "limit" is undefined'
    assert message[2].strip() == "if (i < n) y[i] = fminf(x[i], limit);"
    # Where the text does not stand so in the file, or twice, its own lines are all there is.
    for name, other in (("escaped", OPS.replace('r"', '"').replace("/", "\\x2f")), ("twice", OPS + OPS)):
        folder = tmp_path / name
        folder.mkdir()
        message = compile_error_of(lambda folder=folder, other=other: declared(folder, other).variant({}, 0))  # type: ignore[misc]
        assert message[1].startswith("hardclip.cu:7: error: ")


@pytest.mark.simulator
def test_so_it_is_in_the_simulator(tmp_path: Path) -> None:
    with cupyops.simulate():
        message = compile_error_of(lambda: declared(tmp_path)[4](torch.ones(4), torch.ones(4), 4))
    assert any(re.match(rf"{tmp_path}/ops.py:12 \(hardclip.cu:7\): error: .*limit", line) for line in message), message


@pytest.mark.simulator
@pytest.mark.parametrize("explained", [False, True])
def test_so_is_a_fault_in_the_simulator_and_under_explain(tmp_path: Path, explained: bool) -> None:
    kernel = declared(tmp_path, OPS.replace("y[i] = fminf(x[i], limit)", "y[i + 1] = x[i]"))
    with pytest.raises(LaunchError) as caught:
        if explained:
            cupyops.explain(kernel[4], torch.ones(4), torch.ones(4), 4)
        else:
            with cupyops.simulate():
                kernel[4](torch.ones(4), torch.ones(4), 4)
    assert f"element 4 of `y` (float32[4] on cpu) at {tmp_path}/ops.py:12 (hardclip.cu:7), by block" in str(
        caught.value
    )


def test_numpy_arrays_point_to_the_simulator() -> None:
    with pytest.raises(TypeError, match=r"got ndarray\. NumPy arrays are taken within `with cupyops\.simulate\(\):`"):
        softclip()(numpy.ones(4, numpy.float32), Y, 1.0, 4)
    with pytest.raises(TypeError, match="a PyTorch tensor, got list$"):
        softclip()([1.0], Y, 1.0, 4)
    with pytest.raises(ValueError, match=r"host memory\. On a CPU, kernels run within `with cupyops\.simulate\(\):`"):
        cupyops.gelu(numpy.ones(4, numpy.float32))


@pytest.mark.parametrize(("comment", "size"), [("N", "n"), ("n", "N"), ("N, M", "m, int n"), ("Rows", "rows")])
def test_a_shape_in_other_letters_than_the_size_is_refused(comment: str, size: str) -> None:
    text = f"__global__ void f(const float* x, // ({comment})\n float* y, // (1)\n int {size}) {{ y[0] = x[0]; }}"
    with pytest.raises(ValueError, match="has no integer parameter of this name; did you mean '"):
        Kernel(text)


def compile_error_of(call: Callable[[], object]) -> list[str]:
    with pytest.raises(CompileError) as caught:
        call()
    return str(caught.value).split("\n")


# Files


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.cu"):
        Kernel(tmp_path / "absent.cu", "softclip")
    (tmp_path / "binary.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"binary\.cu: it and what it includes must be UTF-8"):
        Kernel(tmp_path / "binary.cu", "softclip")
