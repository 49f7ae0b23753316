"""Messages of the simulator: what is missing, what is not covered, the line of an error, and the remaining time."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, LaunchError, MissingDependencyError, Threads
from cupyops.simulator import host
from cupyops.simulator.report import Locator
from cupyops.simulator.simulated import Simulated
from tests.simulator.test_simulator_use import TEXT, twice
from tests.support import give_runtime

pytestmark = pytest.mark.simulator


def test_without_a_compiler_three_ways_to_get_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "candidates", list)
    with pytest.raises(MissingDependencyError) as caught, cupyops.simulate():
        pass
    message = str(caught.value)
    for way in ("apt install g++", "apt install clang", "pip install 'ziglang>=0.15'"):
        assert way in message
    assert host.missing() == message
    monkeypatch.setattr(host, "candidates", lambda: [("/nowhere/g++",)])
    assert "and /nowhere/g++ does not run. Get one" in host.missing()
    monkeypatch.setattr(sys, "platform", "win32")
    assert "the simulator runs on Linux (on Windows inside WSL" in host.missing()


def test_a_chosen_compiler_is_asked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CXX", "ccache 'my g++'")
    assert list(host.candidates()) == [("ccache", "my g++")]


def compile_error(text: str, name: str = "twice") -> str:
    with cupyops.simulate(), pytest.raises(CompileError) as caught:
        Kernel(text, name, Threads("n"), dtypes=("float32",))(np.zeros(3, np.float32), np.zeros(3, np.float32), 3)
    return str(caught.value)


def nvrtc_says(words: str) -> str:
    return words if cupyops.compile.toolchain.has_nvrtc() else "NVRTC was not tried on the text"


def test_a_text_that_does_not_compile_shows_its_line() -> None:
    message = compile_error(TEXT.replace("x[i] + x[i]", "x[i] + undeclared"))
    assert message.startswith("twice<float32> does not compile for the simulator, by ")
    assert re.search(
        r"^twice.cu:6: error: .*undeclared.*\(the text declares no `undeclared`, and neither does the simulator\)$",
        message,
        re.M,
    )
    assert ">    6 |     if (i < n) y[i] = x[i] + undeclared;" in message
    assert nvrtc_says("NVRTC rejects the text, too.") in message


def test_what_is_not_covered_in_a_function_that_nothing_calls_is_no_error() -> None:
    asm = 'asm volatile("wgmma.fence.sync.aligned;");'
    unused = f"struct Unused {{ __device__ void fence() {{ {asm} }} }};\n__device__ inline void fence() {{ {asm} }}\n"
    y = np.zeros(3, np.float32)
    with cupyops.simulate():
        Kernel(unused + TEXT, "twice", Threads("n"), dtypes=("float32",))(np.ones(3, np.float32), y, 3)
    assert y.tolist() == [2.0] * 3
    called = unused + TEXT.replace("y[i] = x[i] + x[i];", "fence(); y[i] = x[i];")
    assert "twice.cu:2: error: the simulator does not cover the instruction `wgmma.fence" in compile_error(called)


def test_what_is_not_covered_is_named_with_its_line() -> None:
    message = compile_error(
        TEXT.replace("y[i] = x[i] + x[i];", 'asm volatile("wgmma.fence.sync.aligned;"); y[i] = x[i];')
    )
    assert (
        "twice.cu:6: error: the simulator does not cover the instruction `wgmma.fence.sync.aligned` in inline PTX; "
        "give the function a twin in C++ under #ifdef CUPYOPS_SIMULATOR" in message
    )
    assert (
        nvrtc_says("NVRTC accepts the text (for sm_90a): it uses something that the simulator does not cover.")
        in message
    )
    message = compile_error(TEXT.replace("x[i] + x[i]", "x[i] + __pm0()"))
    assert "neither does the simulator" in message
    assert nvrtc_says("NVRTC accepts the text") in message


def test_an_error_in_a_template_of_the_author_shows_where_it_is_used() -> None:
    text = "template <typename T> __device__ T bad(T v) {\n    return v.nothing;\n}\n" + TEXT.replace(
        "x[i] + x[i]", "bad(x[i])"
    )
    message = compile_error(text)
    assert "twice.cu:2: error: " in message
    assert ">    9 |     if (i < n) y[i] = bad(x[i]);" in message


def test_lines_are_read_for_a_fault_alone_and_known_when_the_library_has_left_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_runtime(tmp_path / "simulator")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    kernel = twice(TEXT.replace("y[i] = x[i] + x[i];", "y[i + (long long)x[0]] = 1;"))
    x, y = np.zeros((2, 3), np.float32)
    with cupyops.simulate(sanitize=True):
        kernel(x, y, 3)
        (simulated,) = kernel.__dict__["_simulated"].values()
        assert "table" not in simulated.locator.__dict__
        simulated.path.unlink()
        x[:] = 1
        with pytest.raises(LaunchError, match=r"out of bounds: .* at twice\.cu:6"):
            kernel(x, y, 3)


def test_geometry_that_a_gpu_refuses() -> None:
    x = np.zeros(3, np.float32)
    for kernel, words in (
        (
            twice(TEXT.replace("void twice", "void __launch_bounds__(128) twice")),
            "its __launch_bounds__ allow 128 threads a block",
        ),
        (twice(shared=300_000), "at most 227 KiB of shared memory"),
        (
            twice(TEXT.replace("void twice", "void __cluster_dims__(2, 1, 1) twice")),
            r"its grid must be whole clusters of \(2, 1, 1\) blocks",
        ),
    ):
        with (
            cupyops.simulate(),
            pytest.raises(LaunchError, match=r"twice<float32> with grid .* was refused: .*" + words),
        ):
            kernel(x, x.copy(), 3)


def test_a_declaration_that_was_misread_is_refused() -> None:
    text = "#define number double\n" + TEXT.replace("long long n)", "float number_, long long n)").replace(
        "float number_", "float number /**/ f"
    )
    with cupyops.simulate(), pytest.raises(CompileError, match=r"twice.cu:5: error"):
        twice(text)(np.zeros(3, np.float32), np.zeros(3, np.float32), 1.0, 3)


LONG = """extern "C" __global__ void twice(const scalar_t* x, // (n)
    scalar_t* y, // (n)
    long long n) { {} }"""


def test_a_long_launch_prints_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from cupyops.simulator import simulated

    monkeypatch.setattr(simulated, "_PATIENCE", 0.0)
    text = LONG.replace(
        "{}", "__syncthreads(); const long long start = clock64(); while (clock64() - start < 200000) {} y[0] = 1;"
    )
    x = np.zeros(256 * 25, np.float32)  # the runtime looks at the clock's seconds, and these take more than one
    with cupyops.simulate():
        twice(text)(x, x.copy(), x.size)
    assert re.search(
        r"^twice<float32>: \d+ of 25 blocks simulated after \d+ s; Ctrl-C ends it$", capsys.readouterr().err, re.M
    )


@pytest.fixture
def listening() -> Iterator[None]:
    """Python listens to Ctrl-C, as it does not where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(
    "body",
    [
        "volatile long long i = 0; while (i >= 0) i = (i + 1) % 1000;",  # a thread that never gives way
        "while (atomicAdd(&y[0], 0.f) == 0.f) y[1] += 1;",  # a thread that waits for ever
        "for (;;) __syncthreads();",
    ],
)
def test_ctrl_c_ends_a_launch(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = twice(LONG.replace("{}", body))
    x, y = np.zeros(300, np.float32), np.zeros(300, np.float32)
    launch, timers = Simulated.run, list[threading.Timer]()

    def launch_and_interrupt(*arguments: Any, **options: Any) -> None:
        timers.append(threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)))
        timers[0].start()
        launch(*arguments, **options)

    with cupyops.simulate():
        with monkeypatch.context() as patch:
            patch.setattr(Simulated, "run", launch_and_interrupt)  # the kernel is compiled by then
            with pytest.raises(KeyboardInterrupt):
                kernel(x, y, 300)
        timers[0].cancel()
        x[:] = 1
        twice()(x, y, 300)
    assert (y == 2).all()


@pytest.mark.usefixtures("listening")
def test_python_catches_ctrl_c_again_behind_a_launch() -> None:
    before = signal.getsignal(signal.SIGINT)
    with cupyops.simulate():
        twice()(np.zeros(3, np.float32), np.zeros(3, np.float32), 3)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_a_return_address_is_of_the_line_before_it() -> None:
    """The instruction after a call may be of another line."""
    locator = object.__new__(Locator)
    locator.base, locator._files = 1000, {"k.cu"}
    locator.__dict__["table"] = SimpleNamespace(at=lambda address: ("k.cu", address))
    assert locator.place(1010) == "k.cu:9"
    assert locator.place(1000) == ""
