"""save_repro writes a file that repeats a failed launch: with the same error, layouts, overlaps and alignment."""

import ctypes
import pickle
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cupyops
from cupyops import CompileError, Kernel, LaunchError, Rows, Threads, debug_mode, save_repro
from cupyops.arrays import library_of
from cupyops.compile import toolchain
from cupyops.launch import repro
from cupyops.launch.saved_memory import SavedMemory, address, in_lines, restored
from cupyops.launch.tensor_map import tensor_map
from cupyops.simulator.numpy_arrays import NumpyLibrary
from tests.gpu.stub_gpu import Driver, Stub, scale
from tests.support import without_python_file

pytestmark = pytest.mark.filterwarnings("ignore:numpy.ndarray size changed")

TEXT = """#include "factor.cuh"
extern "C" __global__ void scale(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    acc_t factor, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i <= n) y[i] = scalar_t(factor * acc_t(FACTOR) * acc_t(SIGN) * acc_t(x[i]));
}
"""


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPYOPS_REPRO", raising=False)


def faulty(**options: Any) -> Kernel:
    given = {"headers": {"factor.cuh": '// a "header"\n#define FACTOR 2\n'}, "constants": {"SIGN": -1}, **options}
    return Kernel(TEXT, "scale", Threads("n", block=64), dtypes=("float32", "bfloat16"), **given)


def repeated(path: Path) -> Exception:
    with pytest.raises(Exception) as caught:
        runpy.run_path(str(path))
    return caught.value


def said(error: Exception) -> str:
    """The message, without the Python file that holds the text."""
    return without_python_file(str(error))


def failure(kernel: Kernel, *args: Any, **mode: Any) -> LaunchError:
    with pytest.raises(LaunchError) as caught, cupyops.simulate(**mode):
        kernel(*args)
    return caught.value


@pytest.mark.simulator
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_finding_of_the_simulator_is_repeated(library: str, tmp_path: Path) -> None:
    arrays: list[Any] = [np.arange(5, dtype=np.float32), np.zeros(5, np.float32)]
    if library == "torch":
        arrays = [torch.from_numpy(x) for x in arrays]
    error = failure(faulty(filename="mine.cu", options=["-lineinfo"]), *arrays, float("inf"), 5, sanitize=True)
    assert "out of bounds" in str(error)
    assert list(tmp_path.iterdir()) == [], "written without being asked"
    path = save_repro(error, tmp_path / "repro.py")
    assert list(tmp_path.iterdir()) == [path]
    again = repeated(path)
    assert (type(again), said(again)) == (LaunchError, said(error))
    text = path.read_text()
    assert TEXT in text, "a user edits the text"
    assert ("import torch" in text) == (library == "torch")


@pytest.mark.simulator
def test_sixteen_bits_at_an_odd_address(tmp_path: Path) -> None:
    """Tensors of which NumPy has no dtype, beside an address that is not a multiple of 16."""
    x = torch.arange(6, dtype=torch.bfloat16)[1:]
    error = failure(faulty(), x, torch.zeros(5, dtype=torch.bfloat16), 1.0, 5, sanitize=True)
    assert said(repeated(save_repro(error, tmp_path / "repro.py"))) == said(error)
    call: repro.Call = error._cupyops_repro  # type: ignore[attr-defined]
    assert call.arguments.infos["x"].pointer % 16 == 2


@pytest.mark.simulator
def test_a_text_that_does_not_compile_is_repeated(tmp_path: Path) -> None:
    text = """extern "C" __global__ void k(float* y) { nonsense; }"""
    with pytest.raises(CompileError, match="nonsense") as caught, cupyops.simulate():
        Kernel(text, "k", 32)[32](np.zeros(3, np.float32))
    again = repeated(save_repro(caught.value, tmp_path / "repro.py"))
    assert type(again) is CompileError
    assert str(again).splitlines()[0] == str(caught.value).splitlines()[0]


@pytest.mark.simulator
def test_a_failure_in_a_backward_keeps_its_call(tmp_path: Path) -> None:
    """The exception comes by way of PyTorch's C++, and in one of its threads on a GPU."""
    kernel = faulty()

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            grad = grad.contiguous()
            kernel(grad, y := torch.empty_like(grad), 1.0, grad.numel())
            return y

    x = torch.ones(5, requires_grad=True)
    with pytest.raises(LaunchError) as caught, cupyops.simulate(sanitize=True):
        Twice.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert said(repeated(save_repro(caught.value, tmp_path / "repro.py"))) == said(caught.value)


@pytest.mark.simulator
@pytest.mark.parametrize("vouched", [False, True])
def test_a_refused_geometry_is_repeated(vouched: bool, tmp_path: Path) -> None:
    text = """extern "C" __global__ void __launch_bounds__(32) k(float* y, // (n)
        long long n) {}"""
    kernel = Kernel(text, "k", Rows("n", 64))
    y = np.zeros(3, np.float32)
    with pytest.raises(LaunchError, match="was refused: its __launch_bounds__ allow 32") as caught, cupyops.simulate():
        (kernel.launch_vouched if vouched else kernel)(y, 3)
    path = save_repro(caught.value, tmp_path / "repro.py")
    assert said(repeated(path)) == said(caught.value)
    assert (".launch_vouched(" in path.read_text()) == vouched


@pytest.mark.simulator
def test_a_cooperative_launch_is_repeated_as_one(tmp_path: Path) -> None:
    text = """extern "C" __global__ void k(float* y) { y[7] = 1; }"""
    kernel = Kernel(text, "k", 32, cooperative=True)
    with pytest.raises(LaunchError) as caught, cupyops.simulate(sanitize=True):
        kernel[32](np.zeros(3, np.float32))
    again = repeated(save_repro(caught.value, tmp_path / "repro.py"))
    assert said(again) == said(caught.value)
    cooperative = again._cupyops_repro.kernel.hardware.cooperative  # type: ignore[attr-defined]
    assert cooperative is True


@pytest.mark.simulator
def test_threads_of_a_call_and_blocks_of_a_simulation(tmp_path: Path) -> None:
    text = """extern "C" __global__ void k(float* y) { if (blockIdx.x == 2) y[7] = 1; }"""
    kernel = Kernel(text, "k", 32)
    with pytest.raises(LaunchError) as caught, cupyops.simulate(sanitize=True, blocks=slice(2, None)):
        kernel[96](np.zeros(3, np.float32))
    path = save_repro(caught.value, tmp_path / "repro.py")
    assert "kernel.forall(96, 1, 1)(" in path.read_text()
    assert "blocks=slice(2, None, None)" in path.read_text()
    assert said(repeated(path)) == said(caught.value)


@pytest.mark.simulator
def test_the_folder_of_the_variable_gets_the_arrays_from_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without checks, the launch writes into the array before it fails."""
    text = """extern "C" __global__ void k(int* y) { y[0] += 1; assert(y[0] == 0); }"""
    kernel = Kernel(text, "k", 32)
    monkeypatch.setenv("CUPYOPS_REPRO", str(tmp_path / "new" / "folder"))
    y = np.array([4], np.int32)
    with pytest.raises(LaunchError) as caught, cupyops.simulate(sanitize=False):
        kernel[1](y)
    (path,) = (tmp_path / "new" / "folder").iterdir()
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == [f"{path} repeats this failure."]
    assert y.tolist() == [5]
    monkeypatch.delenv("CUPYOPS_REPRO")
    again: Any = repeated(path)
    assert said(again) == said(caught.value)
    assert again._cupyops_repro.arguments.values["y"].tolist() == [5]


def test_a_folder_that_cannot_be_written_hides_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Driver(monkeypatch)
    gpu.failure = RuntimeError("CUDA_ERROR_INVALID_VALUE")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUPYOPS_REPRO", str(tmp_path / "file"))
    with pytest.raises(LaunchError, match="was refused: CUDA_ERROR_INVALID_VALUE") as caught:
        scale()(Stub(2, 2), Stub(2, 2), 1.0, 2, 2)
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__[0].startswith("CUPYOPS_REPRO: no file was written: ")


class Memory:
    """CuPy's runtime, with host memory in place of a GPU's."""

    memcpyDeviceToHost = 2  # noqa: N815

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = False
        device = lambda index: repro.suppress()  # noqa: E731 - a context manager that does nothing
        cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=self, Device=device))
        monkeypatch.setattr(toolchain, "cupy", lambda: cupy)

    def deviceSynchronize(self) -> None:  # noqa: N802
        if self.lost:
            raise RuntimeError("cudaErrorIllegalAddress")

    def memcpy(self, to: int, source: int, count: int, kind: int) -> None:
        assert kind == 2
        ctypes.memmove(to, source, count)


def test_a_launch_that_a_driver_refuses_is_written_for_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, memory = Driver(monkeypatch), Memory(monkeypatch)
    gpu.failure = RuntimeError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
    values = np.arange(4, dtype=np.float32)
    x, y = Stub(2, 2), Stub(2, 2)
    for stub in (x, y):
        stub.info = repro_info(stub, values.ctypes.data)
    with pytest.raises(LaunchError) as caught:
        scale(shared=256, since=90)(x, y, 1.5, 2, 2)
    text = save_repro(caught.value, tmp_path / "repro.py").read_text()
    for piece in ("with cupyops.simulate(sanitize=True):", "    shared=256,", "    since=90,", ", 1.5, 2, 2)"):
        assert piece in text
    scope: dict[str, Any] = {}
    exec(text.partition("with cupyops.simulate")[0].replace("__file__", repr(str(tmp_path / "repro.py"))), scope)
    assert scope["arrays"]["x"].tolist() == [[0, 1], [2, 3]]
    memory.lost = True
    with pytest.raises(RuntimeError, match=r"whose context has ended .* CUPYOPS_REPRO=FOLDER and CUPYOPS_DEBUG=1"):
        save_repro(caught.value, tmp_path / "other.py")
    assert not (tmp_path / "other.py").exists()


def repro_info(stub: Stub, pointer: int) -> Any:
    return replace(stub.info, pointer=pointer)


def test_debug_mode_copies_the_arrays_before_a_launch_that_ends_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Driver(monkeypatch)
    memory = Memory(monkeypatch)
    monkeypatch.setenv("CUPYOPS_REPRO", str(tmp_path))

    def lost(*args: Any) -> None:
        memory.lost = True
        raise LaunchError("scale failed: an illegal memory access")

    monkeypatch.setattr("cupyops.launch.debug.enabled", lambda: True)
    monkeypatch.setattr("cupyops.launch.debug.launch", lost)
    values = np.arange(4, dtype=np.float32)
    x, y = Stub(2, 2), Stub(2, 2)
    x.info, y.info = repro_info(x, values.ctypes.data), repro_info(y, values.ctypes.data)
    with pytest.raises(LaunchError), debug_mode(False):
        scale()(x, y, 1.0, 2, 2)
    (path,) = tmp_path.iterdir()
    assert "arrays = restored(" in path.read_text()


def test_large_arrays_are_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Driver(monkeypatch)
    Memory(monkeypatch)
    gpu.failure = RuntimeError("refused")
    values = np.random.default_rng(0).random(8192).astype(np.float32)
    x, y = Stub(64, 128), Stub(64, 128)
    x.info, y.info = repro_info(x, values.ctypes.data), repro_info(y, values.ctypes.data)
    with pytest.raises(LaunchError) as caught:
        scale()(x, y, 1.0, 64, 128)
    path = save_repro(caught.value, tmp_path / "repro.py")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["repro.npz", "repro.py"]
    assert len(path.read_bytes()) < 4096
    found = restored(tmp_path / "repro.npz", {"x": (0, 0, "float32", (64, 128), (128, 1))})
    assert np.array_equal(found["x"].ravel(), values)


# The arrays


def copies(**arrays: Any) -> tuple[SavedMemory, dict[str, Any]]:
    library = NumpyLibrary()
    blocks = SavedMemory.copied({name: library.info(x) for name, x in arrays.items()})
    return blocks, restored(in_lines(blocks.packed()), blocks.views)


def test_layouts_overlaps_and_alignment_are_those_of_the_arrays() -> None:
    memory = np.arange(64, dtype=np.float64)
    given = {
        "one": memory[3:20:2],
        "backwards": memory[19:2:-1],
        "other": np.arange(12, dtype=np.int16).reshape(3, 4).T,
        "expanded": np.broadcast_to(np.float32(2), (3, 4)),
        "empty": np.empty((0, 3), np.float32),
        "scalar": np.array(5, np.int64),
    }
    blocks, found = copies(**given)
    assert len(blocks.memory) == 5
    for name, x in given.items():
        assert (found[name].dtype, found[name].shape) == (x.dtype, x.shape), name
        assert np.array_equal(found[name], x), name
        if x.size:
            assert found[name].strides == x.strides, name
            assert address(found[name]) % 256 == address(x) % 256, name
    found["one"][0] = -1
    assert found["backwards"][-1] == -1, "the two overlap"


def test_tensors_have_the_layout_of_the_tensors() -> None:
    memory = torch.arange(64, dtype=torch.bfloat16)
    given = {"x": memory[3:51].view(6, 8).t()[1:3], "y": memory[40:], "flags": torch.tensor([True, False])}
    given |= {"one": torch.ones(1).expand(3, 2), "none": torch.empty(2, 0)}
    infos = {name: replace(library_of(x).info(x), pointer=x.data_ptr()) for name, x in given.items()}
    blocks = SavedMemory.copied(infos)
    found = restored(in_lines(blocks.packed()), blocks.views, torch)
    for name, x in given.items():
        assert torch.equal(found[name], x), name
        assert (found[name].dtype, found[name].stride()) == (x.dtype, x.stride()), name
        assert not x.numel() or address(found[name]) % 256 == address(x) % 256, name
    found["y"][0] = -1
    assert found["x"].min() == -1 or memory[40] not in given["x"], "the two overlap"


@pytest.mark.simulator
def test_a_tensor_map_is_of_the_restored_array(tmp_path: Path) -> None:
    text = """#include "wgmma.cuh"
    extern "C" __global__ void k(
        const scalar_t* x,  // (M, N)
        const __grid_constant__ TensorMap x_map,
        float* y, int M, int N) { y[3] = 1; }"""
    kernel = Kernel(text, "k", Threads("M"), dtypes=("float16",), since=90)
    x, y = torch.zeros(8, 64, dtype=torch.float16), torch.zeros(2)
    of_x = tensor_map(x.data_ptr(), 8, 64, "float16", 8, simulated=True)
    error = failure(kernel, x, of_x, y, 8, 64, sanitize=True)
    again = repeated(save_repro(error, tmp_path / "repro.py"))
    assert (type(again), said(again)) == (LaunchError, said(error))


# Refusals


def test_what_is_no_failure_of_a_launch_is_refused(tmp_path: Path) -> None:
    for other in (ValueError("something else"), 3, None):
        with pytest.raises(ValueError, match="save_repro: `failure` must be an exception of a launch, a CheckFailed"):
            save_repro(other, tmp_path / "repro.py")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Exception:
    gpu = Driver(monkeypatch)
    Memory(monkeypatch)
    gpu.failure = RuntimeError("refused")
    values = np.zeros(4, np.float32)
    monkeypatch.setattr(np, "kept", values, raising=False)
    x, y = Stub(2, 2), Stub(2, 2)
    x.info, y.info = repro_info(x, values.ctypes.data), repro_info(y, values.ctypes.data)
    with pytest.raises(LaunchError) as caught:
        scale()(x, y, 1.0, 2, 2)
    return caught.value


def test_a_file_of_the_users_is_not_replaced(refused: Exception, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("work = 1\n")
    with pytest.raises(FileExistsError, match=r"mine.py exists and was not written by save_repro"):
        save_repro(refused, path)
    assert path.read_text() == "work = 1\n"
    save_repro(refused, tmp_path / "repro.py")
    save_repro(refused, tmp_path / "repro.py")


def test_the_check_of_a_launch_is_refused(refused: Exception, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`check` must be None for the failure of a launch, got 'values'"):
        save_repro(refused, tmp_path / "repro.py", check="values")


def test_an_exception_can_still_go_to_another_process(refused: Exception) -> None:
    refused.__cause__ = None
    found = pickle.loads(pickle.dumps(refused))
    assert str(found) == str(refused)
    assert found._cupyops_repro is None


def test_the_failure_behind_an_exception_is_found(refused: Exception, tmp_path: Path) -> None:
    try:
        try:
            raise refused
        except LaunchError as error:
            raise KeyError("handled badly") from error
    except KeyError:
        path = save_repro(path=tmp_path / "repro.py")
    assert path.read_text().startswith('"""Repeats a failure: LaunchError: scale<float32> with grid')


def test_a_message_says_how(refused: Exception) -> None:
    if not hasattr(refused, "add_note"):
        pytest.skip("notes are from Python 3.11 on")
    assert refused.__notes__ == ["cupyops.save_repro(error) writes a file that repeats this failure."]


@pytest.mark.parametrize("text", ["a", 'ends with "', "ends with \\", 'has """ inside', "has \r\n", "has \0", 'r"""'])
def test_every_text_is_written_as_it_is(text: str) -> None:
    assert eval(repro.source_literal(text)) == text


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -2.5, float("inf"), float("-inf"), "x", (1,), (1, 2), [1], {"a": 1}, slice(1, None), np.int64(3)],
)
def test_every_value_is_written_as_it_is(value: Any) -> None:
    assert eval(repro.literal(value)) == value


def test_a_value_that_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="save_repro: `a value of the call` must be a number or a string, got object"):
        repro.literal(object())


@pytest.mark.gpu
def test_on_a_gpu_a_finding_of_debug_mode_is_repeated_by_the_simulator(tmp_path: Path) -> None:
    x, y = torch.arange(5.0, device="cuda"), torch.zeros(5, device="cuda")
    with pytest.raises(LaunchError, match="wrote outside its output `y`: element 5 of 5") as caught, debug_mode():
        faulty()(x, y, 1.0, 5)
    again = repeated(save_repro(caught.value, tmp_path / "repro.py"))
    assert type(again) is LaunchError
    assert "out of bounds" in str(again)
    assert again._cupyops_repro.arguments.values["x"].tolist() == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
