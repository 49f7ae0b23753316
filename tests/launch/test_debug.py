"""Debug mode without a GPU: host memory in place of the GPU's, a Python function in place of the kernel."""

import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cupyops import Kernel, LaunchError, Threads, debug_mode, set_debug
from cupyops.arrays import CupyLibrary, Info
from cupyops.launch import debug, driver
from cupyops.launch.arguments import Arguments
from cupyops.launch.geometry import Target
from cupyops.launch.load import Variant

# A tuple before the output: in memory it is two values.
TEXT = """extern "C" __global__ void fill(
    Int64s<2> pair,
    const float* x,
    float* y,      // (n)
    float* view,
    float* z,      // (n)
    int n) {}"""
KERNEL = Kernel(TEXT, "fill", Threads("n"), dtypes=("float32",))
N = 5


class Memory:
    """CuPy's runtime, allocator and streams, in host memory."""

    memcpyDeviceToDevice = memcpyDeviceToHost = 0  # noqa: N815

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.capturing = False
        self.failures: list[Exception | None] = []
        self.cuda = SimpleNamespace(runtime=self, alloc=self.alloc)

    def alloc(self, size: int) -> Any:
        memory = ctypes.create_string_buffer(size + 512)
        self.kept.append(memory)
        return SimpleNamespace(ptr=-(-ctypes.addressof(memory) // 512) * 512)

    def streamIsCapturing(self, stream: int) -> bool:  # noqa: N802
        return self.capturing

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802
        if self.failures and (failure := self.failures.pop(0)):
            raise failure

    def memsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        ctypes.memset(pointer, value, size)

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        ctypes.memmove(to, source, size)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    found = Memory()
    monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: found)
    return found


class Launch:
    """One launch of KERNEL in debug mode, on arrays of five numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., None], offset: int = 0) -> None:
        self.arrays = {name: (ctypes.c_float * (N + 2))(*[7.0] * (N + 2)) for name in ("x", "y", "view", "z")}
        pointers = {name: ctypes.addressof(a) + offset for name, a in self.arrays.items()}
        self.infos = {n: Info("float32", (N,), (1,), N, "cuda", 0, p) for n, p in pointers.items()}
        packing = KERNEL.signature.packing({}, {})
        self.variant = Variant("fill<float32>", SimpleNamespace(ptr=1), packing, KERNEL.geometry, Target(4, 1))
        values = dict(zip(KERNEL.signature.names, [(3, 4), *self.infos, N], strict=True))
        self.arguments = Arguments(values, CupyLibrary(), self.infos, {}, self.infos["x"])
        self.given: list[Any] = []

        def submit(
            function: int,
            grid: Any,
            block: Any,
            shared: int,
            stream: int,
            buffer: driver.ArgumentBuffer,
            *,
            cooperative: bool = False,
        ) -> None:
            table = (ctypes.c_void_p * 6).from_address(buffer.addresses)
            kinds = (ctypes.c_int64 * 2, *[ctypes.c_uint64] * 4, ctypes.c_int32)
            values = [kind.from_address(address) for kind, address in zip(kinds, table, strict=True)]
            self.given = [list(values[0]), *(v.value for v in values[1:])]
            kernel(*self.given)

        monkeypatch.setattr(driver, "submit", submit)

    def run(self) -> None:
        debug.launch(self.variant, KERNEL.signature, self.arguments, (1, 1, 1), 0)


def write(pointer: int, first: int, last: int, value: float = 1.0) -> None:
    """Elements [first, last) of the array at an address."""
    array = (ctypes.c_float * (last - first)).from_address(pointer + 4 * first)
    array[:] = [value] * (last - first)


def right(pair: list[int], x: int, y: int, view: int, z: int, n: int) -> None:
    write(y, 0, n, pair[0])
    write(z, 0, n - 1, pair[1])


@pytest.mark.parametrize("offset", [0, 4])
def test_a_right_kernel_gives_what_it_gives_without(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    launch = Launch(monkeypatch, right, offset)
    launch.run()
    first = offset // 4
    assert list(launch.arrays["y"])[first : first + N] == [3.0] * N
    assert list(launch.arrays["z"])[first : first + N] == [4.0] * (N - 1) + [7.0]
    assert list(launch.arrays["x"]) == list(launch.arrays["view"]) == [7.0] * (N + 2)


def test_only_outputs_with_a_shape_are_guarded_and_stay_as_aligned(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(monkeypatch, right, offset=4)
    launch.run()
    pair, x, y, view, z, n = launch.given
    given = [launch.infos[name].pointer for name in ("x", "y", "view", "z")]
    assert (pair, x, view, n) == ([3, 4], given[0], given[2], N)
    for pointer, guarded in ((given[1], y), (given[3], z)):
        assert pointer != guarded
        assert pointer % 256 == guarded % 256


@pytest.mark.parametrize(
    ("output", "first", "last", "found"),
    [
        ("y", 0, N + 1, "element 5 of 5"),
        ("y", N, N + 3, "element 5 of 5"),
        ("y", N + 2, N + 3, "element 7 of 5"),
        ("z", -1, N, r"element -1 \(before the first\)"),
        ("z", -3, -1, r"element -2 \(before the first\)"),
    ],
)
def test_a_write_outside_is_named(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, output: str, first: int, last: int, found: str
) -> None:
    def wrong(pair: list[int], x: int, y: int, view: int, z: int, n: int) -> None:
        write({"y": y, "z": z}[output], first, last)

    launch = Launch(monkeypatch, wrong)
    with pytest.raises(LaunchError) as caught:
        launch.run()
    assert caught.match(
        rf"fill<float32> with grid \(1, 1, 1\), block \(256, 1, 1\) wrote outside its output `{output}`: {found}\."
    )
    assert caught.match(r"pair: \(3, 4\), x: float32\[5\] on cuda:0, .*, n: 5")
    assert list(launch.arrays[output]) == [7.0] * (N + 2)


def test_a_single_byte_before_an_output_is_of_the_element_before(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(monkeypatch, lambda pair, x, y, view, z, n: ctypes.memset(y - 4, 0, 1))
    with pytest.raises(LaunchError, match=r"outside its output `y`: element -1 \(before the first\)"):
        launch.run()


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        (
            [RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")],
            "an earlier launch or copy on this stream failed before this launch: CUDA_ERROR_ILL",
        ),
        (
            [None, RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")],
            "failed: CUDA_ERROR_ILLEGAL_ADDRESS. .* restart the process. Arguments: pair: ",
        ),
    ],
)
def test_a_failure_is_told_from_an_earlier_one(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, failures: list[Exception | None], words: str
) -> None:
    memory.failures = failures
    with pytest.raises(LaunchError, match=rf"fill<float32> with grid .*{words}"):
        Launch(monkeypatch, right).run()


def test_a_capture_is_recorded_unguarded(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.capturing = True
    memory.failures = [AssertionError("waited for a capture")]
    launch = Launch(monkeypatch, right)
    launch.run()
    assert launch.given[2] == launch.infos["y"].pointer
    assert not memory.kept


@pytest.fixture
def _as_before() -> Iterator[None]:
    before = debug.enabled()
    yield
    set_debug(before)


@pytest.mark.usefixtures("_as_before")
def test_debug_mode_closes_every_generated_launch() -> None:
    set_debug(False)
    KERNEL.launch = lambda *args: None
    with debug_mode():
        assert debug.enabled()
        assert KERNEL.launch == KERNEL.checked_launch
        with debug_mode(False):
            assert not debug.enabled()
        assert debug.enabled()
    assert not debug.enabled()
