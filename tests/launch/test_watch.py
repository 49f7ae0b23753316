"""An edited file of a kernel is live at the next launch, and a bad edit leaves the last good text running."""

import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.compile import toolchain
from cupyops.launch import current, watch
from cupyops.launch.load import Variant
from cupyops.sharing import Setting
from tests.gpu.stub_gpu import TARGET, Driver, Stub

TEXT = """#include "factor.cuh"
extern "C" __global__ void scale(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(FACTOR) * x[i];  // one
}
"""
VARIANT = Kernel.variant


class Gpu:
    """A GPU that is not there. Texts with the word `nonsense` do not compile.

    Attributes:
        built: the text of each compilation.
        launched: the text of each launch.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built: list[str] = []
        self.capturing = False
        self.driver = Driver(monkeypatch)

        def build(kernel: Kernel, types: dict[str, str], device: int) -> Variant:
            text = kernel.final_text(types)
            if "nonsense" in text:
                raise CompileError("scale.cu(7): error: nonsense")
            self.built.append(text)
            raw = SimpleNamespace(ptr=len(self.built))
            packing = kernel.signature.packing(types, kernel.constants)
            return Variant("scale", raw, packing, kernel.geometry, TARGET, kernel.hardware)

        monkeypatch.setattr(Kernel, "variant", VARIANT)
        monkeypatch.setattr("cupyops.launch.kernel.load", build)
        monkeypatch.setattr(current, "LIBRARIES", {Stub: self.driver.library})
        runtime = SimpleNamespace(streamIsCapturing=lambda stream: self.capturing)
        monkeypatch.setattr(toolchain, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
        # Where the driver is asked for the handle of a function: of the variant's own number.
        monkeypatch.setattr("cupyops.launch.driver.handle", lambda raw: raw.ptr)

    def submit(self, *given: Any, **options: Any) -> None:
        self.driver.submit(*given, **options)

    @property
    def launched(self) -> list[str]:
        return [self.built[launch.function - 1] for launch in self.driver.launches]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(watch, "PERIOD", 0.0)
    monkeypatch.setattr(watch, "SETTLING", 0.0)
    monkeypatch.setattr(watch, "_all", Setting(False))
    monkeypatch.setattr(watch, "_always", weakref.WeakSet())
    return Gpu(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "factor.cuh").write_text("#define FACTOR 2\n")
    path = tmp_path / "scale.cu"
    path.write_text(TEXT)
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def call(kernel: Kernel, dtype: str = "float32") -> None:
    kernel(Stub(4, dtype=dtype), Stub(4, dtype=dtype), 4)


def test_the_next_launch_runs_the_saved_text(gpu: Gpu, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    call(kernel)
    assert len(gpu.built) == 1
    edit(file, "// one", "// two")
    call(kernel)
    assert ["// two" in text for text in gpu.launched] == [False, False, True]
    assert kernel.text == file.read_text()
    assert capsys.readouterr().err == "cupyops: scale.cu: the edit is live in scale\n"
    call(kernel)
    assert len(gpu.built) == 2


def test_every_way_to_launch_reads_the_edit(gpu: Gpu, file: Path) -> None:
    ways: list[Callable[[Kernel], None]] = [
        call,
        lambda k: k.launch(Stub(4), Stub(4), 4),
        lambda k: k.launch_vouched(Stub(4), Stub(4), 4),
        lambda k: k(Stub(4), y=Stub(4), n=4),
        lambda k: k.run(cupyops.launch.arguments.check(k, {"x": Stub(4), "y": Stub(4), "n": 4})),
    ]
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    for number, way in enumerate(ways):
        way(kernel)
        edit(file, ";  //", f";  // edit {number}")
        way(kernel)
        assert f"edit {number}" in gpu.launched[-1], number
    many = Kernel(file, "scale", watch=True)
    many[4](Stub(4), Stub(4), 4)
    edit(file, ";  //", ";  // of threads")
    many[4](Stub(4), Stub(4), 4)
    assert "of threads" in gpu.launched[-1]


def test_a_text_that_does_not_compile_is_told_once_and_the_last_good_runs(
    gpu: Gpu, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    edit(file, "// one", "nonsense")
    call(kernel)
    call(kernel)
    assert gpu.launched == gpu.built * 3
    told = capsys.readouterr().err
    assert told == (
        "cupyops: scale.cu: the edit does not compile, and scale runs the last good text. scale.cu(7): error: nonsense\n"
    )
    edit(file, "nonsense", "// mended")
    call(kernel)
    assert "// mended" in gpu.launched[-1]


def test_further_dtypes_run_the_last_good_text(gpu: Gpu, file: Path) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    edit(file, "// one", "nonsense")
    call(kernel, "float64")
    assert "nonsense" not in gpu.launched[-1]


def test_an_edit_before_the_first_launch_that_does_not_compile_raises_the_error(gpu: Gpu, file: Path) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    edit(file, "// one", "nonsense")
    with pytest.raises(CompileError, match="nonsense"):
        call(kernel)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("long long n) {", "long long n, int m) {", "the declaration of `m` has changed, and the callers pass"),
        ("scalar_t* y,        // (n)", "float* y,           // (n)", "the declaration of `y` has changed"),
        ("const scalar_t* x,  // (n)", "const scalar_t* x,  // (n, 2)", "the declaration of `x` has changed"),
        ("void scale(", "void scaled(", "no __global__ function 'scale'"),
        ("factor.cuh", "factors.cuh", "#include <factors.cuh>: give its text"),
        ("extern", "typedef Opaque scalar_t;\nextern", 'identifier "Opaque" is undefined'),
        ("#include", "\udcff#include", "must be UTF-8"),
    ],
)
def test_an_edit_that_cannot_be_used_is_told_and_the_last_good_runs(
    gpu: Gpu, file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    before = file.read_text()
    file.write_bytes(before.replace(old, new, 1).encode(errors="surrogateescape"))
    call(kernel)
    call(kernel)
    assert kernel.text == before
    told = capsys.readouterr().err
    assert told.startswith("cupyops: scale.cu: the edit is not used, and scale keeps the last good text: ")
    assert words in told
    assert told.count("cupyops: ") == 1
    file.write_text(before.replace("// one", "// good again"))
    call(kernel)
    assert "// good again" in gpu.launched[-1]


def test_an_edited_header_of_the_folder_is_an_edit(gpu: Gpu, file: Path) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    edit(file.with_name("factor.cuh"), "2", "3")
    call(kernel)
    assert "#define FACTOR 3" in gpu.launched[-1]
    # A header that the text did not include before, made after the text was saved.
    edit(file, '#include "factor.cuh"', '#include "other.cuh"')
    call(kernel)
    assert "#define FACTOR 3" in gpu.launched[-1]
    file.with_name("other.cuh").write_text("#define FACTOR 5\n")
    call(kernel)
    assert "#define FACTOR 5" in gpu.launched[-1]


@pytest.mark.parametrize("wrong", ["typedef float scalar_t;\n", "nonsense\n"])
def test_a_header_that_made_an_edit_bad_is_followed(
    gpu: Gpu, file: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last good text does not include the header."""
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    file.with_name("other.cuh").write_text(f"#define FACTOR 5\n{wrong}")
    edit(file, '#include "factor.cuh"', '#include "other.cuh"')
    monkeypatch.setattr(watch, "_TICK", 0)
    for _ in range(2):
        call(kernel)
        assert "#define FACTOR 2" in gpu.launched[-1]
    with monkeypatch.context() as patch:
        patch.setattr(watch, "read", lambda *_: pytest.fail("read again, though nothing has changed"))
        call(kernel)
    edit(file.with_name("other.cuh"), wrong, "")
    call(kernel)
    assert "#define FACTOR 5" in gpu.launched[-1]


def test_headers_given_in_python_hide_those_of_the_folder(gpu: Gpu, file: Path) -> None:
    kernel = Kernel(file, "scale", Threads("n"), headers={"factor.cuh": "#define FACTOR 7\n"}, watch=True)
    edit(file, "// one", "// two")
    call(kernel)
    assert "// two" in gpu.launched[-1]
    assert "#define FACTOR 7" in gpu.launched[-1]


def test_an_editor_that_writes_another_file_and_renames_it(gpu: Gpu, file: Path) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    about = file.stat()
    other = file.with_name(".scale.cu.swp")
    other.write_text(TEXT.replace("// one", "// 222"))  # of the same length
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    os.replace(other, file)
    call(kernel)
    assert "// 222" in gpu.launched[-1]


def test_a_second_edit_with_the_stamp_of_the_first_is_seen(gpu: Gpu, file: Path, monkeypatch: Any) -> None:
    """A file system's clock has ticks of some milliseconds."""
    monkeypatch.setattr(watch.TextFile, "stamp", lambda self: [(10**18, 0, 0, 0)])
    monkeypatch.setattr(watch.time, "time_ns", lambda: 10**18 + 10**6)
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    for word in ("// two", "// 222"):
        edit(file, ";  // ", f";  {word} ")
        call(kernel)
        assert word in gpu.launched[-1]


def test_a_half_written_text_is_read_again(
    gpu: Gpu, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    file.write_text(TEXT[:60])

    def rest(seconds: float) -> None:
        file.write_text(TEXT.replace("// one", "// whole"))

    monkeypatch.setattr(watch.time, "sleep", rest)
    call(kernel)
    assert "// whole" in gpu.launched[-1]
    assert "not used" not in capsys.readouterr().err


def test_a_removed_file_leaves_the_text_running(gpu: Gpu, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    file.unlink()
    call(kernel)
    call(kernel)
    assert gpu.launched == gpu.built * 3
    told = capsys.readouterr().err
    assert told.count("the edit is not used") == 1
    assert "No such file" in told
    file.write_text(TEXT.replace("// one", "// back"))
    call(kernel)
    assert "// back" in gpu.launched[-1]


def test_a_capture_keeps_the_kernel_that_it_began_with(gpu: Gpu, file: Path) -> None:
    """Loading a kernel would end the capture. The replaced kernel stays loaded for the graph's replays."""
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    loaded = next(iter(kernel._variants.values()))
    edit(file, "// one", "// two")
    gpu.capturing = True
    call(kernel)
    assert "// two" not in gpu.launched[-1]
    gpu.capturing = False
    call(kernel)
    assert "// two" in gpu.launched[-1]
    assert any(loaded in variants.values() for variants in watch._replaced)


def test_watch_is_for_every_kernel_of_a_path_and_ends(gpu: Gpu, file: Path) -> None:
    kernel = Kernel(file, "scale", Threads("n"))
    call(kernel)
    edit(file, "// one", "// two")
    call(kernel)
    assert "// two" not in gpu.launched[-1]
    cupyops.watch()
    call(kernel)
    assert "// two" in gpu.launched[-1]
    cupyops.watch(False)
    edit(file, "// two", "// three")
    call(kernel)
    assert "// three" not in gpu.launched[-1]


def test_a_relative_path_is_that_of_the_declaration(
    gpu: Gpu, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(file.parent)
    kernel = Kernel(Path("scale.cu"), "scale", Threads("n"), watch=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    edit(file, "// one", "// two")
    call(kernel)
    assert "// two" in gpu.launched[-1]


def test_a_text_that_is_no_file_cannot_be_watched() -> None:
    with pytest.raises(TypeError, match="scale: `watch` must be given with the Path of a text, got a text"):
        Kernel(TEXT.replace('#include "factor.cuh"', ""), "scale", Threads("n"), watch=True)


def test_a_launch_without_watching_asks_for_no_file(gpu: Gpu, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(file, "scale", Threads("n"))

    def refuse(*args: Any) -> None:
        raise AssertionError("looked at the file")

    monkeypatch.setattr(watch.TextFile, "stamp", refuse)
    call(kernel)


def test_the_files_are_looked_at_every_few_milliseconds_at_most(
    gpu: Gpu, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PERIOD", 0.005)
    now = 100.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    call(kernel)
    edit(file, "// one", "// two")
    now = 100.004
    call(kernel)
    assert "// two" not in gpu.launched[-1]
    now = 100.006
    call(kernel)
    assert "// two" in gpu.launched[-1]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(watch, "PERIOD", 0.0)
    monkeypatch.setattr(watch, "SETTLING", 0.0)
    monkeypatch.setattr(watch, "_always", weakref.WeakSet())
    with cupyops.simulate():
        yield


@pytest.mark.simulator
@pytest.mark.usefixtures("simulated")
def test_the_simulator_runs_the_saved_text(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = Kernel(file, "scale", Threads("n"), dtypes=("float32",), watch=True)
    x, y = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    kernel(x, y, 4)
    assert y.tolist() == [0, 2, 4, 6]
    edit(file.with_name("factor.cuh"), "2", "3")
    kernel(x, y, 4)
    assert y.tolist() == [0, 3, 6, 9]
    edit(file, "* x[i]", "* nothing[i]")
    y[:] = 0
    kernel(x, y, 4)
    assert y.tolist() == [0, 3, 6, 9]
    assert "nothing" in capsys.readouterr().err


def test_a_compiled_graph_calls_the_body_while_a_kernel_is_watched(gpu: Gpu, file: Path) -> None:
    """Repeated launches would not call the kernel, which looks for edits."""
    from cupyops.torch.compiled.repeats import Site

    scope: dict[str, Any] = {}
    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    assert Site("mylib::scale", lambda: "found", scope, "direct").begin() == "found"
    assert scope == {}
    del kernel


@pytest.mark.gpu
def test_on_a_gpu_a_graph_keeps_its_kernel_and_the_next_call_runs_the_edit(file: Path) -> None:
    import torch

    kernel = Kernel(file, "scale", Threads("n"), watch=True)
    x, y = torch.arange(4.0, device="cuda"), torch.empty(4, device="cuda")
    kernel(x, y, 4)
    assert y.tolist() == [0, 2, 4, 6]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, y, 4)
    edit(file.with_name("factor.cuh"), "2", "3")
    kernel.file.due = 0.0  # type: ignore[union-attr]
    kernel(x, y, 4)
    assert y.tolist() == [0, 3, 6, 9]
    graph.replay()
    assert y.tolist() == [0, 2, 4, 6]
    edit(file, "* x[i]", "* nothing[i]")
    kernel.file.due = 0.0  # type: ignore[union-attr]
    kernel(x, y, 4)
    assert y.tolist() == [0, 3, 6, 9]
