"""The report of cupyops.explain: its numbers, the order of the advice, the HTML file, and its errors."""

import math
import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, Threads, explain
from cupyops.profiling.gpus import GPUS, occupancy
from cupyops.profiling.launch_report import KernelReport
from cupyops.profiling.report import Report
from cupyops.simulator import machine_code

pytestmark = pytest.mark.simulator

TEXT = """extern "C" __global__ void transpose(
    const float* x,  // (n)
    float* y,        // (n)
    int* count,      // (1)
    long long n) {
    __shared__ float tile[32][32];  // <script> & "quotes" stay text
    const int t = threadIdx.x, row = t / 32, column = t % 32;
    const long long i = blockIdx.x * 1024LL + t;
    tile[row][column] = x[i];
    __syncthreads();
    y[i] = tile[column][row];
    if (t % 4 == 0) atomicAdd(&count[0], 1);
}"""
N = 4 * 1024


@pytest.fixture(scope="module")
def transpose() -> Kernel:
    return Kernel(TEXT, "transpose", Threads("n", block=1024), dtypes=("float32",))


def arrays() -> tuple[Any, ...]:
    return np.arange(N, dtype=np.float32), np.zeros(N, np.float32), np.zeros(1, np.int32), N


@pytest.fixture(scope="module")
def report(transpose: Kernel) -> Report:
    return explain(transpose, *arrays(), gpu="h100", flops=3 * N)


@pytest.fixture(scope="module")
def kernel(report: Report) -> KernelReport:
    assert len(report.kernels) == 1
    return report.kernels[0]


def test_the_totals_of_a_kernel(kernel: KernelReport) -> None:
    warps = N // 32
    assert (kernel.name, kernel.grid, kernel.block) == ("transpose", (4, 1, 1), (1024, 1, 1))
    assert kernel.needed_bytes == 2 * 4 * N + 2 * 4  # the counter is loaded and stored
    assert kernel.moved_bytes == 32 * (2 * 4 + 1) * warps
    assert kernel.total("shared", "load").conflicts == 31 * warps
    assert kernel.total("global", "atomic").collisions == 8 * warps


def test_bounds_follow_from_the_peaks(kernel: KernelReport) -> None:
    h100 = GPUS["H100"]
    bounds = {b.name: b.microseconds for b in kernel.bounds}
    assert bounds["memory"] == pytest.approx((8 * N + 8) / 3350e9 * 1e6)
    assert bounds["shared memory"] == pytest.approx(33 * N / 32 / (132 * 1980e6) * 1e6)
    assert bounds["arithmetic"] == pytest.approx(3 * N / 66.9e12 * 1e6, rel=1e-2)
    assert [b.microseconds for b in kernel.bounds] == sorted(bounds.values(), reverse=True)
    assert h100.flops == pytest.approx(66.9e12, rel=1e-2)  # NVIDIA's data sheet: 67 Tflop/s


def test_advice_begins_with_the_most_valuable(kernel: KernelReport) -> None:
    worth = [a.microseconds for a in kernel.advice]
    assert worth == sorted(worth, reverse=True)
    words = {a.line: a.words for a in kernel.advice}
    assert "31.0 bank conflicts" in words["transpose.cu:11"]
    assert "8.0 lanes at one address" in words["transpose.cu:12"]
    assert "H100 has 132 multiprocessors, and blocks of the grid for 4 of them" in words[""]


def test_a_kernel_with_nothing_to_change_gets_no_advice() -> None:
    """GELU is coalesced by 16 bytes, and its grid fills the GPU."""
    kernel = explain(cupyops.gelu, np.ones(132 * 512, np.float32)).kernels[0]
    assert kernel.advice == ()
    assert kernel.moved_bytes == kernel.needed_bytes == 2 * 4 * 132 * 512
    assert "Nothing to change" in str(kernel)


def test_the_table_has_the_numbers_of_each_line(report: Report) -> None:
    rows = {m[1]: m[2].split() for m in re.finditer(r"^transpose\.cu:(\d+)((?: +[\d.]+)+)", str(report), re.MULTILINE)}
    assert rows["9"] == ["128", "32.0", "4.0", "0.0"]
    assert rows["11"] == ["128", "32.0", "4.0", "31.0"]
    assert rows["12"][-1] == "8.0"
    assert "31.0 bank conflicts" in str(report)


class Tags(HTMLParser):
    """Collects tags and attributes, and fails on a tag that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_file_that_loads_nothing(transpose: Kernel, tmp_path: Path) -> None:
    explain(transpose, *arrays(), flops=1e6, path=tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not re.search(r"https?:|//cdn|@import|url\(", page)
    assert not {tag for tag, _, _ in tags.attributes} & {"script", "link", "img", "iframe"}
    assert "&lt;script&gt; &amp; &quot;quotes&quot;" in page
    assert "<script" not in page
    places = {value for _, name, value in tags.attributes if name == "id"}
    links = {value for tag, name, value in tags.attributes if (tag, name) == ("a", "href")}
    assert links
    assert {link for link in links if link and link[1:] not in places} == set()
    for number, text in enumerate(TEXT.split("\n"), 1):
        assert f'id="k0-transpose.cu-{number}"' in page, text


def test_a_notebook_shows_the_page_in_a_frame(transpose: Kernel, tmp_path: Path) -> None:
    report = explain(transpose, *arrays(), path=tmp_path / "r.html")
    frame = report._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"]*" style="[^"]*"></iframe>', frame, re.DOTALL)
    assert unescape(frame.split('"')[1]) == (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_roofline_holds_any_intensity(transpose: Kernel, tmp_path: Path) -> None:
    """Points far to the left and far to the right lie inside the picture."""
    for flops in (0, 1, 1e15):
        page = tmp_path / "r.html"
        explain(transpose, *arrays(), flops=flops, path=page)
        found = [float(x) for x in re.findall(r'cx="([-\d.]+)"', page.read_text(encoding="utf-8"))]
        assert len(found) == (2 if flops else 0)
        assert all(0 < x < 620 for x in found)


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared", "blocks", "limit"),
    [
        # CUDA's occupancy calculator gives these.
        ("H100", 256, 32, 0, 8, "threads"),
        ("H100", 256, 64, 0, 4, "registers"),
        ("H100", 128, 48, 64, 10, "registers"),
        ("H100", 32, 16, 0, 32, "blocks"),
        ("H100", 128, 32, 100 * 1024, 2, "shared memory"),
        ("A100", 1024, 64, 0, 1, "registers"),
        ("A100", 96, 168, 0, 4, "registers"),  # a warp takes 5376 registers, and 12 warps fit: 4 blocks of 3
        ("A100", 32, 200, 0, 8, "registers"),  # registers for 10 warps, and a quarter of them holds 2 warps
        ("RTX 4090", 1024, 32, 0, 1, "threads"),
        ("T4", 64, 32, 32 * 1024, 2, "shared memory"),
        ("H100", 1024, 255, 0, 0, "registers"),
    ],
)
def test_occupancy(gpu: str, threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    found = occupancy(GPUS[gpu], threads, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * math.ceil(threads / 32)


def test_resources_are_those_of_the_gpus_architecture(transpose: Kernel, kernel: KernelReport) -> None:
    pytest.importorskip("cupy")
    assert kernel.resources
    assert kernel.resources.target == "sm_90"
    assert kernel.resources.shared == 4096
    assert kernel.resources.spills == 0
    assert 0 < kernel.resources.registers <= 64
    other = explain(transpose, *arrays(), gpu="A100").kernels[0].resources
    assert other
    assert other.target == "sm_80"


AGAIN = """extern "C" __global__ void again(
    const float* x,  // (n)
    float* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    float s = 0;
    for (int j = 0; j < 3; ++j) s += x[(i + j * (n / 4)) % n];
    y[i] = s;
}"""


@pytest.mark.parametrize(("n", "advised"), [(1 << 16, True), (1 << 15, False)])  # 256 and 128 KiB
def test_repeated_loads_are_named_unless_a_cache_holds_the_array(n: int, advised: bool) -> None:
    kernel = Kernel(AGAIN, "again", Threads("n", block=256), dtypes=("float32",))
    found = explain(kernel, np.ones(n, np.float32), np.zeros(n, np.float32), n).kernels[0]
    assert found.moved_bytes == 4 * 4 * n
    assert any("`x` is loaded 3.0 times over" in a.words for a in found.advice) == advised


APART = """extern "C" __global__ void apart(
    const float* x,  // (n, 2)
    float* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[2 * i];
}"""


def test_an_access_is_worth_the_time_of_what_it_wastes() -> None:
    n = 132 * 256
    kernel = Kernel(APART, "apart", Threads("n", block=256), dtypes=("float32",))
    found = explain(kernel, np.ones((n, 2), np.float32), np.zeros(n, np.float32), n).kernels[0]
    (advice,) = (a for a in found.advice if "sectors of 32 bytes" in a.words)
    assert "A warp loads 8.0 sectors of 32 bytes where 4.0 hold the bytes" in advice.words
    wasted = n // 32 * 4 * 32  # bytes
    assert advice.microseconds == pytest.approx(wasted / found.gpu.bandwidth / 1e3)


ARITHMETIC = """extern "C" __global__ void arithmetic(
    const float* x,  // (n)
    float* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = x[i] * 2.5f + 1.25f;
    s = fmaf(s, s, 3.0f);
    s = sqrtf(s) / 3.0f - s;
    for (int j = 0; j < i % 4; ++j) s *= 1.5f;
    if (i < 10) s = float(fma(double(s), 2.0, 7.0));
    y[i] = expf(s);
}"""


def test_floating_point_operations_are_counted_as_they_run() -> None:
    kernel = Kernel(ARITHMETIC, "arithmetic", Threads("n", block=32), dtypes=("float32",))
    found = explain(kernel, np.ones(100, np.float32), np.zeros(100, np.float32), 100).kernels[0]
    assert found.flops == 100 * (2 + 2 + 3) + 25 * (0 + 1 + 2 + 3) + 10 * 2
    given = explain(kernel, np.ones(100, np.float32), np.zeros(100, np.float32), 100, flops=5).kernels[0]
    assert given.flops == 5


def test_operations_of_both_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """addss, mulsd and sqrtss with and without a REX prefix, and a call; then fadd, fmul, fsqrt, fmadd and fmov."""
    monkeypatch.setattr(machine_code, "ARM", False)
    code = bytes.fromhex("f30f58c1 f2440f59c1 f30f51c0 0f28c1 e8f0ffffff 90")
    scalar = [(0x1000, 1), (0x1004, 1), (0x1009, 1)]
    assert machine_code.operations(code, 0x1000, {}) == scalar
    assert machine_code.operations(code, 0x1000, {0x1000 + 21 - 16: "fmaf"}) == [*scalar, (0x1010, 2)]
    assert machine_code.operations(code, 0x1000, {0x1000 + 21 - 16: "expf"}) == scalar
    monkeypatch.setattr(machine_code, "ARM", True)
    words = [0x1E222820, 0x1E620820, 0x1E21C020, 0x1F020C20, 0x1E204020]
    code = b"".join(w.to_bytes(4, "little") for w in words)
    assert machine_code.operations(code, 0x1000, {}) == [(0x1000, 1), (0x1004, 1), (0x1008, 1), (0x100C, 2)]


def test_every_launch_of_a_call_is_reported() -> None:
    import torch

    import autograd_bridge

    def step() -> None:
        x = torch.ones(512, requires_grad=True)
        autograd_bridge.gelu(x).sum().backward()

    names = [k.name for k in explain(step).kernels]
    assert [name.partition("<")[0] for name in names] == ["gelu_forward", "gelu_backward"]


@pytest.mark.parametrize(
    ("call", "options", "error", "words"),
    [
        (None, {}, TypeError, "explain: `call` must be a kernel or a function, got None"),
        (lambda: None, {}, ValueError, "launched no kernel in the simulator"),
        (lambda: None, {"gpu": "H1000"}, ValueError, "explain: `gpu` must be one of V100, .*, got H1000"),
        (lambda: None, {"flops": -1}, ValueError, "explain: `flops` must be at least 0, got -1"),
        (lambda: None, {"flops": math.nan}, ValueError, "explain: `flops` must be at least 0, got nan"),
    ],
)
def test_refusals(call: Callable[..., Any], options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        explain(call, **options)


def test_a_failing_launch_ends_the_counting(transpose: Kernel) -> None:
    """After an error, kernels run as before: neither simulated nor counted."""
    x, y, count, n = arrays()
    with pytest.raises(ValueError, match="x"):
        explain(transpose, x[:5], y, count, n)
    assert not cupyops.simulator.enabled()
    assert explain(transpose, x, y, count, n).kernels[0].grid == (4, 1, 1)


def test_a_kernel_for_a_newer_gpu_says_so() -> None:
    text = TEXT.replace("transpose", "newer")
    kernel = Kernel(text, "newer", Threads("n", block=1024), dtypes=("float32",), since=90)
    found = explain(kernel, *arrays(), gpu="A100").kernels[0]
    assert found.resources is None
    assert found.occupancy is None
    assert "needs sm_90 or later, and A100 is sm_80" in str(found)
