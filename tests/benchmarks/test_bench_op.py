"""bench_op: its counts and comparisons without a GPU, and a run on a GPU."""

import builtins
import re
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cupyops.compile import toolchain
from cupyops.compile.cache import Binary
from cupyops.errors import MissingDependencyError
from cupyops.launch import recording as launches
from cupyops.torch import bench_op
from cupyops.torch.bench import timing
from cupyops.torch.bench.report import BenchReport, BenchRow, KernelFacts
from cupyops.torch.bench.roofline import attainable
from cupyops.torch.bench.timing import Spread
from cupyops.torch.check.subject import Subject
from cupyops.torch.core import repeated
from tests.torch import faulty_ops as faulty
from tests.torch.faulty_ops import Mix

bench = import_module("cupyops.torch.bench.run")

N = 24


class Clock:
    """A timer whose samples are set; it runs each call once, as a capture would."""

    name = "graph"

    def __init__(self, calls: Any) -> None:
        self.results = [call() for call in calls]
        self.microseconds = 2.0 * len(calls)

    def calibrate(self) -> None:
        pass

    def sample(self) -> float:
        return self.microseconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[Clock]:
    """In place of a GPU's, with a cache of 1 KiB and 64 KiB of memory."""
    made: list[Clock] = []

    def timer(calls: Any, *_: Any) -> Clock:
        made.append(Clock(calls))
        return made[-1]

    monkeypatch.setattr(bench, "_timer", timer)
    monkeypatch.setattr(bench, "l2_bytes", lambda device: 1024)
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 1024)
    monkeypatch.setattr(timing, "memory_bandwidth", lambda device: 1.0)
    monkeypatch.setattr(bench, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (65536, 65536))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    return made


def measured(
    direction: str, peers: dict[str, Any], dtype: torch.dtype = torch.float32
) -> tuple[list[Any], dict[Any, None]]:
    op = Mix().operator()
    args = (torch.randn(N, dtype=dtype), torch.randn(N, dtype=dtype), 0.5)
    skipped: dict[tuple[str, str], None] = {}
    subject = Subject(op, [args], "reference")
    functions = {bench.OURS: op.call, **peers}
    found = bench._measure(subject, args, direction, functions, 3, torch.device("cpu"), skipped)
    return found, skipped


def test_bytes_of_a_forward_are_inputs_and_outputs_once(clocks: list[Clock]) -> None:
    (found,), skipped = measured("forward", {})
    assert found.nbytes == 3 * N * 4
    # Four times the cache, in sets of 288 bytes.
    assert found.sets == -(-4 * 1024 // found.nbytes)
    assert found.microseconds == Spread(2.0 * found.sets, 2.0 * found.sets, 2.0 * found.sets, 3)
    assert not skipped
    (wide,), _ = measured("forward", {}, torch.float64)
    assert wide.nbytes == 2 * found.nbytes


def test_bytes_of_a_backward_are_inputs_and_gradients_once(clocks: list[Clock]) -> None:
    (found,), _ = measured("backward", {})
    assert found.nbytes == (2 + 1 + 2) * N * 4
    grad_x, grad_w = clocks[0].results[0]
    assert grad_x.shape == grad_w.shape == (N,)


def test_sets_leave_room_in_memory(clocks: list[Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 * 288 * 5 + 1, 65536))
    (found,), _ = measured("forward", {})
    assert found.sets == 5


def test_a_peer_that_computes_something_else_is_named_and_not_timed(clocks: list[Clock]) -> None:
    def broken(x: Tensor, w: Tensor, factor: float) -> Tensor:
        raise RuntimeError("no such kernel\nand more")

    peers = {
        "right": faulty.reference,
        "wrong": lambda x, w, factor: faulty.reference(x, w, factor * 1.01),
        "short": lambda x, w, factor: faulty.reference(x, w, factor)[1:],
        "broken": broken,
    }
    found, skipped = measured("forward", peers)
    assert [f.implementation for f in found] == [bench.OURS, "right"]
    told = dict(skipped)
    assert list(told)[1:] == [
        ("short, forward", "OtherResults: it gives shape (23,)"),
        ("broken, forward", "RuntimeError: no such kernel"),
    ]
    name, words = next(iter(told))
    assert name == "wrong, forward"
    assert re.fullmatch(r"OtherResults: it gives results that are off by \S+ eps", words)
    detached = {"detached": lambda x, w, factor: faulty.reference(x.detach(), w.detach(), factor)}
    found, skipped = measured("backward", detached)
    assert [f.implementation for f in found] == [bench.OURS]
    assert dict(skipped) == {("detached, backward", "OtherResults: it gives no gradient of x"): None}


def test_what_is_faster_than_the_memory_is_an_error_and_no_record(
    clocks: list[Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """288 bytes at 1 MB/s take 288 µs; the clocks say 30, or 300 of the second call."""
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 0)
    monkeypatch.setattr(timing, "memory_bandwidth", lambda device: 1e-3)
    found, _ = measured("forward", {})
    assert [f.implementation for f in found] == [bench.OURS], "it may read a part of its arguments"
    slow = bench._timer

    def later(calls: Any, *others: Any) -> Clock:
        made = slow(calls, *others)
        made.microseconds *= 10 if len(clocks) % 2 == 0 else 1
        return made

    monkeypatch.setattr(bench, "_timer", later)
    clocks.clear()
    with pytest.raises(
        RuntimeError, match=r"faulty::mix\d+, forward, takes 30.0 µs, and the memory .* needs at least 288.0 µs"
    ):
        measured("forward", {"peer": faulty.reference})
    clocks.append(Clock([]))
    found, skipped = measured("forward", {"peer": faulty.reference})
    assert [f.implementation for f in found] == [bench.OURS]
    (said,) = skipped
    assert said[0] == "peer, forward"
    assert said[1].startswith("FasterThanMemory: it takes 30.0 µs")


def test_the_memory_is_as_fast_as_its_clock_and_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(memory_clock_rate=3_201_000, memory_bus_width=6144)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    assert timing.memory_bandwidth(torch.device("cuda")) == pytest.approx(4916.7, rel=1e-4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    assert timing.memory_bandwidth(torch.device("cuda")) == float("inf")


def test_a_fault_of_the_operator_itself_is_raised(clocks: list[Clock]) -> None:
    op = Mix(reference=lambda x, w, factor: x / 0 if factor > 1 else [][0]).operator()
    args = (torch.randn(N), torch.randn(N), 0.5)
    with pytest.raises(IndexError):
        bench._measure(
            Subject(op, [args], "reference"), args, "forward", {bench.OURS: op.call}, 3, torch.device("cpu"), {}
        )


def test_without_a_gpu_nothing_is_timed_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    op = Mix().operator()
    found = bench_op(op, (torch.ones(3), torch.ones(3), 1.0))
    assert found.rows == ()
    assert capsys.readouterr().out == (
        f"{op.op._schema}\nnot timed: this operator: PyTorch sees no GPU here, and times in the simulator do not "
        "predict times on a GPU\n"
    )
    with pytest.raises(ValueError, match="roofline: not timed: this operator: PyTorch sees no GPU"):
        found.roofline(tmp_path / "a.svg")


def test_wrong_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Mix().operator()
    with pytest.raises(
        ValueError, match=r"bench_op: `inputs` must hold the 3 arguments of faulty::mix\d+ \(x, w, factor\), got 1"
    ):
        bench_op(op, (torch.ones(3),))
    with pytest.raises(TypeError, match="bench_op: `op` must be a cupyops.torch.Operator"):
        bench_op(torch.add, (torch.ones(3),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="bench_op: `inputs` must be on one CUDA device, got cpu"):
        bench_op(op, (torch.ones(3), torch.ones(3), 1.0))


def test_registers_spills_and_occupancy_are_of_the_kernel_that_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(
        compute_capability="90", attributes={"MultiProcessorCount": 4, "MaxThreadsPerMultiProcessor": 2048}
    )
    monkeypatch.setattr(toolchain, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: gpu)))
    monkeypatch.setattr(bench, "target_for", lambda capability: f"sm_{capability}")
    asked: list[tuple[str, str]] = []

    def binary(text: str, what: str, target: str, options: Any) -> Binary:
        asked.append((what, target))
        return Binary(b"", "", {"mix": (40, 8)}, 0.0)

    monkeypatch.setattr(bench, "binary_for", binary)
    variant = SimpleNamespace(threads=(256, 1, 1), resident_blocks=lambda device: 24)
    monkeypatch.setattr(type(faulty.FORWARD), "variant", lambda kernel, types, device: variant)
    launch = launches.Launch(faulty.FORWARD, {"scalar_t": "float32"}, 0, (7, 1, 1))
    found = bench._facts("mix<float32>", 2, launch, torch.device("cuda", 0))
    assert found == KernelFacts("mix<float32>", 2, (7, 1, 1), (256, 1, 1), 40, 8, 24 * 256 / (4 * 2048))
    assert asked == [("mix<float32>", "sm_90")]
    other = bench._facts(
        "mix_backward", 1, launches.Launch(faulty.BACKWARD, launch.types, 0, (1, 1, 1)), torch.device("cuda", 0)
    )
    assert (other.registers, other.spilled) == (None, None)


def test_the_operator_is_never_skipped(clocks: list[Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(calls: Any, *_: Any) -> Clock:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(bench, "_timer", refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        measured("forward", {"eager": faulty.reference})


# The report


def report() -> BenchReport:
    rows = (
        BenchRow("float32[1024]", "forward", "this operator", Spread(4.0, 3.9, 4.25, 15), 12_288, 0.000768, "graph", 512),
        BenchRow("float32[2^28]", "forward", "this operator", Spread(1000.0, 990.0, 1010.0, 15), 4_000_000_000, 1.0, "graph", 2),
        BenchRow("float32[2^28]", "backward", "eager & <co>", Spread(2000.0, 990.0, 1010.0, 15), 4_000_000_000, 0.5, "events", 2),
    )  # fmt: skip
    kernels = (
        KernelFacts("mix<float32>", 1, (7, 1, 1), (256, 1, 1), 40, 0, 0.75),
        KernelFacts("new<float32>", 2, (7, 1, 1), (256, 1, 1), None, None, 1.0),
    )
    return BenchReport(
        "lib::mix(Tensor x) -> Tensor",
        "NVIDIA H200",
        4000.0,
        2.0,
        rows,
        kernels,
        (("broken, forward", "RuntimeError: no"),),
    )


def test_a_notebook_shows_a_bar_for_each_time() -> None:
    found = report()._repr_html_()
    assert found.startswith("<p><b>lib::mix(Tensor x) -&gt; Tensor</b></p><table><tr><th>inputs</th>")
    assert found.count("linear-gradient(to right, #9cc4f2 100.0%") == 3, (
        "each is the slowest of its inputs and direction"
    )
    assert "eager &amp; &lt;co&gt;" in found
    assert "not timed: broken, forward: RuntimeError: no</pre>" in found
    half = replace(report(), rows=(report().rows[0], replace(report().rows[0], microseconds=Spread(2.0, 2.0, 2.0, 15))))
    assert "#9cc4f2 50.0%" in half._repr_html_()
    nothing = replace(report(), rows=(), kernels=())._repr_html_()
    assert "<pre>not timed: broken, forward: RuntimeError: no</pre>" in nothing


def test_the_report_shows_time_bandwidth_shares_kernels_and_what_is_missing() -> None:
    lines = str(report()).splitlines()
    assert lines[0] == "lib::mix(Tensor x) -> Tensor"
    assert lines[1] == "NVIDIA H200: a copy 4000 GB/s (100 %), a launch 2.00 µs"
    assert lines[2].split("  ")[0] == "inputs"
    # 12288 bytes in 4 µs are 3.1 GB/s; a launch alone allows 6.1.
    assert re.fullmatch(
        r"float32\[1024\] +forward +this operator +4\.00 \(3\.90 to 4\.25\) +0\.01 +3 +0\.1% +50\.0% +graph", lines[3]
    )
    assert re.fullmatch(
        r"float32\[2\^28\] +forward +this operator +1000\.00 .* +4000\.00 +4000 +100\.0% +100\.0% +graph", lines[4]
    )
    assert re.fullmatch(
        r"float32\[2\^28\] +backward +eager & <co> +2000\.00 .* +2000 +50\.0% +50\.0% +events", lines[5]
    )
    assert (
        lines[6] == "mix<float32>: 1 × grid (7, 1, 1), block (256, 1, 1): 40 registers, 0 bytes spilled, occupancy 75%"
    )
    assert lines[7].endswith("registers unknown, spills unknown, occupancy 100%")
    assert lines[8:] == ["not timed: broken, forward: RuntimeError: no"]


def test_the_roof_is_the_copy_or_the_launch() -> None:
    assert attainable(10**9, 4000.0, 2.0) == 4000.0
    assert attainable(2000, 4000.0, 2.0) == 1.0
    assert attainable(8_000_000, 4000.0, 2.0) == pytest.approx(4000.0)


@pytest.mark.thorough
def test_the_picture_is_the_same_whenever_it_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first, second = (report().roofline(tmp_path / name) for name in ("a.svg", "b.svg"))
    text = first.read_text()
    assert text == second.read_text()
    for words in ("copy: 4000 GB/s", "a launch: 2.00 µs", "this operator, forward", "eager &amp; &lt;co&gt;, backward",
                  "lib::mix, NVIDIA H200", "bytes read and written"):  # fmt: skip
        assert words in text, words


def test_without_matplotlib_the_picture_says_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match="pip install 'matplotlib>=3.8'"):
        report().roofline(tmp_path / "a.svg")


@pytest.mark.gpu
def test_an_operator_is_timed_beside_its_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    op = Mix().operator()
    given = [(*(torch.randn(n, device="cuda") for _ in range(2)), 0.5) for n in (2**10, 2**22)]
    peers = {"eager": faulty.reference, "wrong": lambda x, w, factor: x}
    found = bench_op(op, given, peers, rounds=3)
    assert capsys.readouterr().out == f"{found}\n"
    assert [(r.direction, r.implementation, r.timer) for r in found.rows] == 2 * [
        ("forward", "this operator", "graph"),
        ("forward", "eager", "graph"),
        ("backward", "this operator", "events"),
        ("backward", "eager", "events"),
    ]
    assert found.rows[4].nbytes == 3 * 4 * 2**22
    assert {k.what for k in found.kernels} == {"mix<float32>", "mix_backward<float32>"}
    assert all(k.registers and k.spilled == 0 and 0 < k.occupancy <= 1 for k in found.kernels)
    assert found.copy_gb_per_s > 100
    assert 0 < found.launch_microseconds < 100
    assert {name for name, _ in found.skipped} == {"wrong, forward", "wrong, backward"}
    pytest.importorskip("matplotlib")
    assert found.roofline(tmp_path / "roof.svg").stat().st_size > 1000


def test_calls_are_timed_after_an_operator_has_recorded_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    assert timing.settle(lambda: made.append(1)) == len(made) > repeated.AFTER
    monkeypatch.setattr(timing, "SETTLED_SECONDS", 0.01)
    assert timing.settle(lambda: time.sleep(0.02)) == 1, "a slow call is not made forty times"
