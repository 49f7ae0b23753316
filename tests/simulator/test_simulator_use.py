"""The simulator for users: how to turn it on, which arrays it takes, and its cache. ``test_simulator_messages.py``
tests its messages."""

import ctypes
import importlib.util
import mmap
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cupyops
from autograd_bridge import add2, gelu
from cupyops import CompileError, Kernel, Threads, simulator
from cupyops.environment import switched
from cupyops.ops.add2 import ALIKE, SCALAR, strided
from cupyops.ops.gelu import BACKWARD, FORWARD
from cupyops.sharing import Setting
from cupyops.simulator import build, host
from cupyops.simulator.host import Compiler
from cupyops.simulator.lines import line_program, line_table
from tests.conftest import NO_COMPILER
from tests.support import HANG, give_runtime

# The header that stands before every text.
DEVICE = str(build.HERE / "cuda" / "device.h")

pytestmark = pytest.mark.simulator
assert NO_COMPILER is not None

TEXT = """extern "C" __global__ void twice(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + x[i];
}
"""


def twice(text: str = TEXT, **options: object) -> Kernel:
    return Kernel(text, "twice", Threads("n"), dtypes=("float32", "float64"), **options)  # type: ignore[arg-type]


# What turns it on


def test_it_is_off_until_asked_for_and_off_again_behind_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_setting", Setting(simulator._Mode(False, False, True)))
    x, y = torch.ones(3), torch.zeros(3)
    with pytest.raises(ValueError, match=r"twice: `x` must be on a CUDA device, got float32\[3\] on cpu"):
        twice()(x, y, 3)
    with cupyops.simulate():
        assert simulator.enabled()
        twice()(x, y, 3)
        with cupyops.simulate(False):
            assert not simulator.enabled()
        assert simulator.enabled()
    assert y.tolist() == [2, 2, 2]
    assert not simulator.enabled()
    with pytest.raises(TypeError, match="must be a CuPy array or a PyTorch tensor, got ndarray"):
        twice()(np.ones(3), np.zeros(3), 3)


@pytest.mark.parametrize(
    ("value", "told"),
    [("no", "False None"), ("yes", "True None"), (" Sanitize ", "True True"), ("unchecked", "True False")],
)
def test_the_environment_turns_it_on(value: str, told: str) -> None:
    script = "from cupyops import simulator; mode = simulator._setting.now; print(mode.on, mode.sanitize)"
    environment = {**os.environ, "CUPYOPS_SIMULATE": value}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told


def test_a_word_for_off_turns_something_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(value: str, *others: str) -> str:
        monkeypatch.setenv("CUPYOPS_SIMULATE", value)
        return switched("CUPYOPS_SIMULATE", "unset", others)

    assert {read(v) for v in ("0", "false", "No", " off ")} == {"off"}
    assert {read(v) for v in ("1", "true", "YES", "on\n")} == {"on"}
    assert {read(v) for v in ("", "  ")} == {"unset"}
    assert read("Sanitize ", "sanitize") == "sanitize"
    for wrong in ("2", "sanitise", "-", "none"):
        with pytest.raises(ValueError, match=f"CUPYOPS_SIMULATE must be one of 1, .*, off, sanitize, got '{wrong}'"):
            read(wrong, "sanitize")


@pytest.mark.parametrize("name", ["CUPYOPS_CACHE_SHARED", "CUPYOPS_REQUIRE_SIGNED", "CUPYOPS_TUNE"])
def test_a_variable_has_words_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cupyops import trust
    from cupyops.compile import signing
    from cupyops.tuning import records

    asked = {"CUPYOPS_CACHE_SHARED": trust.shared, "CUPYOPS_REQUIRE_SIGNED": signing.required}.get(
        name, records.enabled
    )
    for value, told in (("off", False), ("False", False), ("TRUE", True)):
        monkeypatch.setenv(name, value)
        assert asked() is told
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(ValueError, match=f"{name} must be one of 1, true, yes, on, 0, false, no, off, got 'maybe'"):
        asked()


def test_an_exception_turns_it_off_again() -> None:
    before = simulator.enabled()
    with pytest.raises(KeyError), cupyops.simulate():
        raise KeyError
    assert simulator.enabled() == before


# Which arrays run


def test_numpy_arrays_run_operators_and_kernels() -> None:
    x = np.linspace(-3, 3, 50, dtype=np.float32).reshape(5, 10)
    with cupyops.simulate():
        for view in (x, x.T, x[:, ::2], x[1:]):
            y = cupyops.gelu(view, "tanh")
            assert isinstance(y, np.ndarray)
            np.testing.assert_allclose(y, F.gelu(torch.tensor(view), approximate="tanh"), rtol=1e-5, atol=1e-6)
        assert (cupyops.add2(x, x[0], alpha=2) == x + 2 * x[0]).all()
        assert (cupyops.add2(x.astype(np.int8), x.astype(np.int64)) == x.astype(np.int8) + x.astype(np.int64)).all()
        grad = cupyops.gelu_backward(np.ones_like(x), x)
        np.testing.assert_allclose(
            grad, torch.ops.aten.gelu_backward(torch.ones(5, 10), torch.tensor(x)), rtol=1e-5, atol=1e-6
        )
        assert isinstance(cupyops.gelu(torch.ones(3)), np.ndarray)


def test_a_wrong_call_is_refused_in_the_words_of_a_gpu() -> None:
    x = np.ones(4, np.float32)
    with cupyops.simulate():
        with pytest.raises(TypeError, match="twice: `y` must have dtype float32 "):
            twice()(x, x.astype(np.float64), 4)
        with pytest.raises(ValueError, match="twice: `x` must hold n = 5 elements, got 4"):
            twice()(x, x, 5)
        with pytest.raises(TypeError, match="arrays of one library, got arrays of numpy and torch"):
            twice()(x, torch.ones(4), 4)
        with pytest.raises(ValueError, match="`y` must be contiguous"):
            twice()(x, np.zeros(8, np.float32)[::2], 4)


def test_gradients_and_compiled_graphs_run_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    launch = simulator.Simulator.launch

    def noted(self: Any, kernel: Kernel, *rest: Any) -> None:
        launched.append(kernel.name)
        launch(self, kernel, *rest)

    monkeypatch.setattr(simulator.Simulator, "launch", noted)
    x = torch.randn(4, 5, requires_grad=True)
    with cupyops.simulate():
        gelu(add2(x, x, alpha=0.5)).sum().backward()
        assert launched == ["add2", "gelu_forward", "gelu_backward"]
        torch.compiler.reset()
        torch.compile(lambda x: gelu(x) + 1, fullgraph=True, backend="aot_eager")(x).sum().backward()
        assert launched[3:] == ["gelu_forward", "gelu_backward"]
        torch.func.vmap(gelu)(x.detach())
        assert launched[5:] == ["gelu_forward"]
    gelu(x)
    assert len(launched) == 6


def test_several_threads_at_once() -> None:
    kernel, failures = twice(), []

    def work(seed: int) -> None:
        for n in range(1, 60):
            x, y = np.full(n, seed, np.float32), np.zeros(n, np.float32)
            kernel(x, y, n)
            if (y != 2 * seed).any():
                failures.append((seed, n))

    with cupyops.simulate(sanitize=True):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_only_some_blocks() -> None:
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    for blocks, wanted in ((slice(1, 2), (256, 512)), (slice(-1, None), (768, 1000)), (slice(2, 2), (0, 0))):
        y[:] = 0
        with cupyops.simulate(sanitize=True, blocks=blocks):
            twice()(x, y, 1000)
        assert np.flatnonzero(y).tolist() == list(range(*wanted))
    with (
        pytest.raises(ValueError, match="simulate: `blocks` must be a slice without a step"),
        cupyops.simulate(blocks=slice(0, 9, 2)),
    ):
        pass


def test_a_relative_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler runs in another directory."""
    monkeypatch.chdir(tmp_path)
    give_runtime(tmp_path / f"relative-{tmp_path.name}" / "simulator")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", f"relative-{tmp_path.name}")
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    with cupyops.simulate():
        twice("// relative\n" + TEXT)(x, y, 3)
    assert (y == 2).all()
    assert list(tmp_path.glob("relative-*/simulator/*/kernel.so"))


def test_another_cache_folder_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one runtime, wherever the kernel lies that asks for it."""
    give_runtime(tmp_path / "simulator")
    for folder in (None, tmp_path, None):
        with monkeypatch.context() as patch, cupyops.simulate():
            if folder:
                patch.setenv("CUPYOPS_CACHE_DIR", str(folder))
            x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
            twice(TEXT.replace("if (i", "__syncthreads();\n    if (i"))(x, y, 3)
            assert (y == 2).all()


# More elements than 32 bits count: memory that is only touched where the last blocks are


def sparse(count: int, dtype: str) -> np.ndarray:
    """An array whose pages exist when they are touched."""
    size = count * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype)


HUGE = 2**32 + 4095


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("name", ["gelu", "gelu_backward", "add2", "add2_scalar"])
def test_more_than_two_to_the_32_elements(name: str, sanitize: bool) -> None:
    x, y = sparse(HUGE, "float16"), sparse(HUGE, "float16")
    x[-5000:] = np.linspace(-3, 3, 5000)
    with cupyops.simulate(sanitize=sanitize, blocks=slice(-3, None)):
        if name == "gelu":
            FORWARD["none"](x, y, HUGE)
        elif name == "gelu_backward":
            BACKWARD["none"](x, x, y, HUGE)
        elif name == "add2":
            ALIKE(x, x, y, 2.0, HUGE)
        else:
            SCALAR[False](x, y, 1.0, 2.0, HUGE)
    last = torch.tensor(x[-2048:])
    wanted = {
        "gelu": lambda: F.gelu(last),
        "gelu_backward": lambda: torch.ops.aten.gelu_backward(last, last),
        "add2": lambda: 3 * last,
        "add2_scalar": lambda: last + 2,
    }[name]()
    torch.testing.assert_close(torch.tensor(y[-2048:]), wanted)
    assert not y[: 2**20].any(), "the last blocks wrote to the front"


@pytest.mark.parametrize("sanitize", [False, True])
def test_strides_of_more_than_32_bits(sanitize: bool) -> None:
    memory = sparse(2**33 + 64, "int8")
    a = np.lib.stride_tricks.as_strided(memory, (3, 7), (2**32 + 3, 5))
    a[:] = np.arange(21).reshape(3, 7)
    with cupyops.simulate(sanitize=sanitize):
        assert (cupyops.add2(a, a[0], alpha=2) == a + 2 * a[0]).all()


# Many rows, and rows that are themselves longer than 32 bits count.
@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("vector_width", [16, 1])
@pytest.mark.parametrize(("rows", "columns"), [(2**20 + 1, 2**12 + 16), (2, 2**31 + 2**12)])
def test_more_elements_than_32_bits_count_in_a_broadcast(
    rows: int, columns: int, vector_width: int, sanitize: bool
) -> None:
    row, column, out = (sparse(n, "int8") for n in (columns, rows, rows * columns))
    row[-(2**12) :] = np.arange(2**12, dtype=np.int64).astype(np.int8)
    column[-1] = 5
    kernel = strided(2, vector_width, True)
    groups = rows * columns // vector_width
    last = 2**12 // vector_width // 128  # whole blocks at the end of the last row
    with cupyops.simulate(sanitize=sanitize, blocks=slice(-last, None)):
        # Sizes innermost first, in groups of vector_width; no dividers, which count to 2^31.
        kernel(row, column, out, 3, groups, (columns // vector_width, rows), (0, 0), (1, 0), (0, 1))
    written = vector_width * (groups - (-(-groups // 128) - last) * 128)
    assert written >= 2**11
    assert (out[-written:] == row[-written:] + np.int8(15)).all()
    assert not out[: 2**20].any()


# The cache, and what a debugger finds


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Records further commands of the compiler. The cache is empty but for the runtime."""
    runtime = build.runtime_path()
    monkeypatch.setattr(build, "runtime_path", lambda: runtime)
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(folder))
    asked: list[Sequence[str]] = []
    run = build.run
    monkeypatch.setattr(
        build, "run", lambda tool, arguments, folder: asked.append(arguments) or run(tool, arguments, folder)
    )
    return asked


def test_a_library_is_compiled_once_for_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = recorded(tmp_path, monkeypatch)
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)

    def compilations() -> int:
        count = len([a for a in compiled if "kernel.cpp" in a])
        compiled.clear()
        return count

    with cupyops.simulate():
        twice()(x, y, 3)
        assert compilations() == 1
        twice()(x, y, 3)
        assert compilations() == 0
        twice(TEXT.replace("x[i] + x[i]", "x[i] * 2"))(x, y, 3)
        assert compilations() == 1
        with cupyops.simulate(sanitize=True):
            twice()(x, y, 3)
        assert compilations() == 0, "the default and all checks have one library"
        with cupyops.simulate(sanitize=False):
            twice()(x, y, 3)
        assert compilations() == 1
        for library in tmp_path.rglob("kernel.so"):
            half = library.read_bytes()[:1000]  # as a full disk would leave it
            library.unlink()  # a loaded library stays as it is
            library.write_bytes(half)
        twice()(x, y, 3)
        assert compilations() == 1
    assert y.tolist() == [2, 2, 2]
    assert not [p for p in (tmp_path / "simulator").iterdir() if p.name.startswith(".")], "something half made is left"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "command", ["g++", "clang++", f"{sys.executable} -m ziglang c++"], ids=lambda c: c.split()[-2:]
)
def test_headers_are_precompiled_for_the_second_kernel(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (importlib.util.find_spec("ziglang") if "ziglang" in command else shutil.which(command)) is None:
        pytest.skip(f"{command} is not here")
    monkeypatch.setenv("CUPYOPS_CXX", command)
    compiled = recorded(tmp_path, monkeypatch)
    x, y = np.ones(3, np.float16), np.zeros(3, np.float16)

    def run(factor: str) -> float:
        compiled.clear()
        text = TEXT.replace("x[i] + x[i]", f"__hmul(x[i], __float2half({factor}))")
        with cupyops.simulate(sanitize=True):
            Kernel(text, "twice", Threads("n"), dtypes=("float16",))(x, y, 3)
        return float(y[1])

    def asked() -> list[str]:
        return [a[a.index("-c" if "-c" in a else "-x") + 1] for a in compiled if "-shared" not in a and "-E" not in a]

    def as_text() -> list[bool]:
        return [DEVICE in a for a in compiled if "kernel.cpp" in a]

    assert run("2.f") == 2
    assert (asked(), as_text()) == (["kernel.cpp"], [True])
    assert run("3.f") == 3
    assert (asked(), as_text()) == (["c++-header", "kernel.cpp"], [False])
    assert run("4.f") == 4
    assert (asked(), as_text()) == (["kernel.cpp"], [False])
    with pytest.raises(CompileError, match=r"twice\.cu\D+6\b.*nothing"):
        run("nothing")
    assert as_text() == [False, True]  # so the message is that of a compilation without precompiled headers
    (headers,) = (p for p in tmp_path.rglob("headers.*") if p.suffix in (".gch", ".pch"))
    assert "<cuda_fp16.h>" in headers.with_name("headers.h").read_text(), "they are not the text's"
    headers.write_bytes(headers.read_bytes()[:1000])
    assert run("5.f") == 5


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "fault", [CompileError("no"), OSError("no space left"), None], ids=["refused", "full", "useless"]
)
def test_headers_that_cannot_be_precompiled_are_compiled_with_each_kernel(
    fault: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = recorded(tmp_path, monkeypatch)
    run = build.run

    def refuse(tool: Compiler, arguments: Sequence[str], folder: Path) -> str:
        said = run(tool, arguments, folder)
        if fault is None and "kernel.cpp" in arguments and DEVICE not in arguments:
            raise CompileError("cannot be used")
        if fault is not None and "c++-header" in arguments:
            raise fault
        return said

    monkeypatch.setattr(build, "run", refuse)
    for factor in (2, 3, 4):
        y = np.zeros(3, np.float32)
        with cupyops.simulate():
            twice(TEXT.replace("x[i] + x[i]", f"x[i] * {factor}"))(np.ones(3, np.float32), y, 3)
        assert y.tolist() == [factor] * 3
    assert len([a for a in compiled if "c++-header" in a]) == 1
    assert len([a for a in compiled if "kernel.cpp" in a]) == (3 if fault else 4), "what was refused is tried again"


def test_a_cache_folder_that_cannot_be_written_costs_a_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    runtime = build.runtime_path()
    monkeypatch.setattr(build, "runtime_path", lambda: runtime)
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "file"))
    y = np.zeros(3, np.float32)
    with cupyops.simulate():
        twice()(np.ones(3, np.float32), y, 3)
    assert y.tolist() == [2, 2, 2]


def test_the_headers_leave_out_what_takes_long_and_cuda_lacks() -> None:
    """Without the special functions of the C++ library, a compilation loads the precompiled headers in half of the time."""
    command = [*host.compiler().command, "-E", "-std=c++17", f"-I{build.HERE / 'cuda'}", f"-I{build.HERE / 'runtime'}"]
    done = subprocess.run(
        [*command, "-x", "c++", "-include", "device.h", os.devnull], capture_output=True, text=True, check=True
    )
    assert "cupyops_exp10" in done.stdout
    assert "riemann_zeta" not in done.stdout


def test_lines_of_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"not a library")
    (tmp_path / "cut").write_bytes(b"\x7fELF\x02\x01" + bytes(40))
    for name in ("text", "cut", "absent"):
        assert line_table(line_program(tmp_path / name)).at(0) is None
    assert line_table(b"\x04\x00\x00\x00\x04\x00").at(0) is None, "a program that ends too early"


@pytest.mark.sample(1)
@pytest.mark.skipif(not shutil.which("gdb"), reason="needs gdb")
@pytest.mark.parametrize("optimize", [True, False])
def test_gdb_stops_at_a_line_of_the_text(tmp_path: Path, optimize: bool) -> None:
    script = tmp_path / "debug.py"
    script.write_text(
        f"import numpy as np, cupyops\ntext = {TEXT!r}\n"
        "kernel = cupyops.Kernel(text, 'twice', cupyops.Threads('n'), dtypes=('float32',))\n"
        f"with cupyops.simulate(optimize={optimize}, sanitize={False if optimize else None}):\n"
        f"    kernel(np.arange(9, dtype='f4'), np.zeros(9, 'f4'), 9)\n"
    )
    commands = [
        "set breakpoint pending on",
        "break twice.cu:6 if threadIdx.x == 7",
        "run",
        "print threadIdx.x",
        "print n",
        "backtrace",
        "info source",
    ]
    arguments = [a for c in commands for a in ("-ex", c)]
    command = ["gdb", "-q", "-batch", "-nx", *arguments, "--args", sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(Path(cupyops.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, env=environment)
    if "ptrace" in done.stderr:
        pytest.skip("gdb may not trace here")
    assert "$1 = 7" in done.stdout, done.stdout + done.stderr
    assert "$2 = 9" in done.stdout
    assert re.search(r"^6\s+if \(i < n\) y\[i\] = x\[i\] \+ x\[i\];", done.stdout, re.M), "the source is not found"
    assert re.search(r"#0 .*twice \(.*at .*twice.cu:6", done.stdout)


def test_structures_are_as_large_as_the_runtimes() -> None:
    from cupyops.simulator.abi import Fault

    runtime = build.runtime()
    runtime.cupyops_fault_bytes.restype = ctypes.c_size_t
    assert runtime.cupyops_fault_bytes() == ctypes.sizeof(Fault)
