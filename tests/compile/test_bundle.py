"""Bundles: kernels compiled ahead are found by their content, whole, and loaded with no NVRTC and no folder to write to."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cupyops.torch  # noqa: F401  (makes tensors known)
from cupyops import Kernel, MissingDependencyError, Threads, load_bundle
from cupyops.__main__ import main
from cupyops.compile import bundle
from cupyops.compile.bundle import Entry, find, write_bundle
from cupyops.compile.cache import Binary
from tests import preloaded
from tests.commands.test_compile_command import needs_nvrtc

ROOT = Path(__file__).parents[2]
VERSIONS = {"cupyops": "0.1.0", "nvrtc": "12.9"}


def entry(text: str, architecture: int = 80, *options: str, code: bytes = b"") -> Entry:
    made = code or f"{text} {architecture} {options}".encode()
    return Entry(f"{text}<float32>", text, options, architecture, Binary(made, "", {"k": (32, 0)}, 1.5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    entries = [entry(t, a, *o) for t in ("one", "two") for a in (80, 86, 90) for o in ((), ("-lineinfo",))]
    write_bundle(tmp_path / "kernels", entries, VERSIONS)
    return tmp_path / "kernels"


def code(text: str, capability: int, *options: str) -> bytes | None:
    found = find(text, capability, options)
    return found and found.code


# Lookups


@needs_nvrtc
def test_a_bundle_tells_the_types_of_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "typedef float real; struct Pair { real a; int b[2]; };\n"
        "__global__ void of_bundled_types(const real* x, Pair p, int n) {}"
    )
    kernel = Kernel(text, "of_bundled_types", Threads("n"))
    file = tmp_path / "types.bundle"
    assert main(["bundle", "-o", str(file), "--kernels", "of_bundled_types", "--arch", "80"]) == 0

    def missing(*given: object) -> None:
        raise MissingDependencyError("no NVRTC")

    monkeypatch.setattr("cupyops.launch.asked.nvrtc", missing)
    monkeypatch.setattr("cupyops.simulator.host.candidates", lambda: iter(()))
    with pytest.raises(MissingDependencyError, match="neither NVRTC"):
        Kernel(text, "of_bundled_types", Threads("n")).signature  # noqa: B018 - raises
    loaded = load_bundle(file)
    found = Kernel(text, "of_bundled_types", Threads("n"))
    assert found.signature == kernel.signature
    binary = find(found.final_text({}), 80, ())
    assert binary is not None
    found.compare(binary.types, {})
    assert binary.types == ("void (*)(float const*, Pair, int)",)
    loaded.about["answers"]["0" * 40] = [3]
    with pytest.raises(ValueError, match="an answer of the compiler is no text"):
        bundle._check(loaded.about, loaded._archive)


def test_a_kernel_is_found_by_text_options_and_architecture(path: Path) -> None:
    assert find("one", 80, ()) is None
    loaded = load_bundle(path)
    for text in ("one", "two"):
        for capability in (80, 86, 90):
            for options in ((), ("-lineinfo",)):
                assert code(text, capability, *options) == f"{text} {capability} {options}".encode()
    assert find("one ", 80, ()) is None
    assert find("one", 80, ("-G",)) is None
    found = find("one", 80, ())
    assert found is not None
    assert (found.resources, found.path) == ({"k": (32, 0)}, None)
    assert repr(loaded) == f"<Bundle {path} of cupyops 0.1.0: 12 kernels for sm_80, sm_86, sm_90>"


@pytest.mark.parametrize(
    ("capability", "of"), [(80, 80), (86, 86), (87, 86), (89, 86), (90, 90), (75, None), (100, None), (120, None)]
)
def test_a_gpu_runs_what_is_of_its_generation_and_not_newer(path: Path, capability: int, of: int | None) -> None:
    load_bundle(path)
    assert code("one", capability) == (None if of is None else f"one {of} ()".encode())


def test_the_last_file_that_was_loaded_comes_first(path: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "newer", [entry("one", 80, code=b"newer")], VERSIONS)
    load_bundle(path)
    load_bundle(tmp_path / "newer")
    assert (code("one", 80), code("two", 80)) == (b"newer", b"two 80 ()")


def test_other_compiler_options_are_another_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_bundle(path)
    monkeypatch.setattr(bundle, "OPTIONS", ("--std=c++20",))
    assert find("one", 80, ()) is None


def test_the_environment_names_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_BUNDLE", str(path))
    assert code("one", 80) == b"one 80 ()"
    path.unlink()  # it has been read, once
    assert code("two", 90) == b"two 90 ()"
    monkeypatch.setenv("CUPYOPS_BUNDLE", str(path.with_name("absent")))
    with pytest.raises(FileNotFoundError, match="absent"):
        find("one", 80, ())


# The file


def test_the_same_kernels_give_the_same_bytes(path: Path, tmp_path: Path) -> None:
    entries = [entry(t, a, *o) for t in ("two", "one") for o in (("-lineinfo",), ()) for a in (90, 80, 86)]
    write_bundle(tmp_path / "again", entries, VERSIONS)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any], **files: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["cupyops-bundle.json"])
    contents["cupyops-bundle.json"] = json.dumps(change(manifest) or manifest).encode()
    first = next(n for n in contents if n.endswith(".cubin"))
    if "cubin" in files:
        contents[first] = files["cubin"]
    if "lost" in files:
        del contents[first]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def flip(path: Path) -> None:
    """Flips one bit of a kernel in the file."""
    data = bytearray(path.read_bytes())
    data[data.index(b".cubin") + 8] ^= 4
    path.write_bytes(data)


NO_BUNDLE = "is not a bundle of kernels, or is incomplete"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.write_bytes(b""), NO_BUNDLE),
    "text": (lambda p: p.write_text("hello"), NO_BUNDLE),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-30]), NO_BUNDLE),
    "another archive": (lambda p: zipfile.ZipFile(p, "w").close(), NO_BUNDLE),
    "a manifest that is a list": (lambda p: rewritten(p, lambda m: [1]), NO_BUNDLE),
    "a manifest without a format": (lambda p: rewritten(p, lambda m: m.pop("format") and None), NO_BUNDLE),
    "older": (
        lambda p: rewritten(p, lambda m: m.update(format=0)),
        "is of format 0, and this cupyops reads format 1; write it again: python -m cupyops bundle",
    ),
    "no kernels": (lambda p: rewritten(p, lambda m: m.pop("kernels") and None), "is damaged: 'kernels'"),
    "another kernel": (lambda p: rewritten(p, lambda m: None, cubin=b"?"), r"is damaged: the checksum of .* differs"),
    "a lost kernel": (
        lambda p: rewritten(p, lambda m: None, lost=b""),
        "is damaged: the archive has other files than the manifest names",
    ),
    "a flipped bit": (flip, "is damaged: "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_whole_bundle_is_refused_and_not_used(path: Path, damage: str) -> None:
    change, words = DAMAGE[damage]
    change(path)
    with pytest.raises(ValueError, match=rf"load_bundle: {path} {words}"):
        load_bundle(path)
    assert find("one", 80, ()) is None


def test_a_file_that_cannot_be_written_leaves_the_one_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_bundle(path, [entry("three")], VERSIONS)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


# The command

OPS = """
import torch
from cupyops import Kernel, Threads
import cupyops.torch

TEXT = '''
extern "C" __global__ void halve(
    const scalar_t* x,  // (n)
    half_t* y,          // (n)
    int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = half_t(x[i]) / half_t(2);
}'''
halve = Kernel(TEXT, "halve", Threads("n"), dtypes=("float32", "float64", "int32"))
# Arrays without memory are enough to tell which types calls use.
halve(torch.empty(4, device="meta"), torch.empty(4, dtype=torch.float64, device="meta"), 4)
"""


def command(folder: Path, *arguments: object, status: int = 0) -> str:
    """Runs it in a process of its own, where no test has declared a kernel."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = preloaded.run(["-m", "cupyops", "bundle", *map(str, arguments)], cwd=folder, env=environment)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module of kernels, and the bundle of them."""
    pytest.importorskip("cupy")
    folder = tmp_path_factory.mktemp("made")
    (folder / "ops.py").write_text(OPS)
    said = command(folder, "--arch", "80,90", "-o", "ops.bundle", "--module", "ops", "--kernels", "halve")
    assert said.startswith("ops.bundle: 4 kernels for sm_80, sm_90, 0.0 MB, by NVRTC ")
    return folder


@needs_nvrtc
def test_the_command_takes_a_modules_kernels_and_the_types_of_its_calls(made: Path) -> None:
    loaded = load_bundle(made / "ops.bundle")
    assert sorted((k["what"], k["architecture"]) for k in loaded.about["kernels"].values()) == [
        (f"halve<{types}>", architecture)
        for types in ("float32, float64", "float32", "float64", "int32")
        for architecture in (80, 90)
    ]


@needs_nvrtc
def test_the_same_kernels_and_nvrtc_give_the_same_bytes(made: Path) -> None:
    """The order in which processes finish does not matter."""
    names = ["--arch", "90,80", "--module", "ops", "--kernels", "halve"]
    command(made, *names, "-o", "again.bundle", "--jobs", "1")
    again = (made / "again.bundle").read_bytes()
    (made / "again.bundle").unlink()
    assert again == (made / "ops.bundle").read_bytes()


@needs_nvrtc
def test_a_kernel_that_does_not_compile_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(OPS.replace("half_t(2)", "two"))
    said = command(tmp_path, "--arch", "80", "-o", "ops.bundle", "--module", "ops", "--kernels", "halve", status=1)
    assert "halve<int32> for sm_80: FAILED\nhalve<int32> does not compile for sm_80" in said
    assert 'halve.cu:7: error: identifier "two" is undefined' in said
    assert said.endswith("4 of 4 kernels do not compile; nothing is written\n")
    assert not (tmp_path / "ops.bundle").exists()


@needs_nvrtc
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "80"], "the following arguments are required: -o/--output"),
        (["--arch", "71", "-o", "x"], "--arch 71: there is no such architecture here; NVRTC"),
        (["--arch", "80", "-o", "x", "--module", "no_such_module"], "--module no_such_module: No module named"),
        (
            ["--arch", "80", "-o", "x", "--kernels", "gelu_forwrad"],
            "--kernels gelu_forwrad: there is no such kernel; did you mean 'gelu_forward'?",
        ),
        (["--arch", "80", "-o", "x", "--kernels", "gelu_*", "--dtypes", "int8"], "none of these kernels takes these"),
        (
            ["--arch", "80", "-o", "absent/x", "--kernels", "gelu_forward", "--dtypes", "float32"],
            "--output absent/x: No such file or directory",
        ),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as status:
        main(["bundle", *arguments])
    assert status.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith("python -m cupyops bundle: error: ")
    assert words in output.err
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@needs_nvrtc
def test_an_architecture_that_was_asked_for_is_never_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cupyops.commands.bundle.supported_architectures", lambda: (80, 90))
    with pytest.raises(SystemExit):
        main(["bundle", "--arch", "80,120", "-o", str(tmp_path / "x"), "--kernels", "gelu_forward"])
    assert "--arch 120: NVRTC" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# A machine without NVRTC, and without a folder that can be written

NO_NVRTC = """
import sys
sys.dont_write_bytecode = True
import cupy, cupy.cuda
del cupy.cuda.nvrtc
sys.modules["cupy.cuda.nvrtc"] = None
try:
    from cupy.cuda import nvrtc
except ImportError:
    pass
else:
    raise AssertionError("NVRTC is still there")
import cupyops
from cupyops.compile import toolchain
"""
STUB_GPU = """
from tests.launch.test_loading import Gpus
from cupyops.launch import driver
gpus = Gpus()
gpus.compute_capability = sys.argv[1]
toolchain.cupy = lambda: gpus
loaded = []
driver.load = lambda binary, name: loaded.append(binary) or gpus
from ops import halve
try:
    halve.variant({"scalar_t": "float32", "half_t": "float64"}, 0)
    print("LOADED", loaded[0].code[:4], loaded[0].path)
except cupyops.MissingDependencyError as error:
    print("MISSING", error)
"""
REAL_GPU = """
import numpy
from ops import halve
x = cupy.asarray(numpy.arange(1000, dtype=numpy.float32))
y = cupy.asarray(numpy.zeros(1000, numpy.float64))
halve(x, y, 1000)
assert (y.get() == numpy.arange(1000) / 2).all()
print("LAUNCHED")
try:
    halve(cupy.asarray(numpy.zeros(4)), cupy.asarray(numpy.zeros(4, numpy.float32)), 4)
except cupyops.MissingDependencyError as error:
    print("MISSING", error)
"""


def without_nvrtc(made: Path, script: str, *arguments: str, **environment: str) -> str:
    (made / "in_the_way").write_text("no folder")
    path = os.pathsep.join([str(ROOT), str(made), os.environ.get("PYTHONPATH", "")])
    full = {**os.environ, "PYTHONPATH": path, "CUPYOPS_CACHE_DIR": str(made / "in_the_way" / "cache"), **environment}
    before = sorted(made.iterdir())
    result = preloaded.run(["-c", NO_NVRTC + script, *arguments], cwd=made, env=full)
    assert result.returncode == 0, result.stderr
    assert sorted(made.iterdir()) == before
    return result.stdout


@pytest.mark.sample(1)
@needs_nvrtc
@pytest.mark.parametrize("capability", ["80", "86", "90"])
def test_a_bundle_loads_without_nvrtc_and_without_a_folder(made: Path, capability: str) -> None:
    said = without_nvrtc(made, STUB_GPU, capability, CUPYOPS_BUNDLE=str(made / "ops.bundle"))
    assert said == "LOADED b'\\x7fELF' None\n"


@needs_nvrtc
def test_what_is_in_no_bundle_is_told_with_what_is(made: Path) -> None:
    said = without_nvrtc(made, STUB_GPU, "100", CUPYOPS_BUNDLE=str(made / "ops.bundle"))
    assert said.startswith(
        f"MISSING halve<float32, float64> for sm_100 is not in <Bundle {made / 'ops.bundle'} of cupyops 0.1.0: 8 kernels for "
        f"sm_80, sm_90>. CUDA kernels are compiled by NVRTC, and its library does not load ("
    )
    assert without_nvrtc(made, STUB_GPU, "90", CUPYOPS_BUNDLE="").startswith(
        "MISSING CUDA kernels are compiled by NVRTC"
    )


@pytest.mark.gpu
def test_a_bundle_launches_without_nvrtc_and_without_a_folder(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    (tmp_path / "ops.py").write_text(OPS)
    command(tmp_path, "--arch", f"{major}{minor}", "-o", "ops.bundle", "--module", "ops", "--kernels", "halve")
    said = without_nvrtc(tmp_path, REAL_GPU, CUPYOPS_BUNDLE=str(tmp_path / "ops.bundle"))
    assert said.startswith("LAUNCHED\nMISSING halve<float64, float32> for sm_")
