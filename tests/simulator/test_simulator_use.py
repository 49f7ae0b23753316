"""The simulator for users: how to turn it on, and which arrays it takes. ``test_simulator_cache.py``
tests its cache, and ``test_simulator_messages.py`` its messages."""

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cupyops
from autograd_bridge import add2, gelu
from cupyops import Kernel, Threads, simulator
from cupyops.environment import switched
from cupyops.ops.add2 import ALIKE, SCALAR, strided
from cupyops.ops.gelu import BACKWARD, FORWARD
from cupyops.sharing import Setting
from tests.conftest import NO_COMPILER
from tests.support import give_runtime

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
