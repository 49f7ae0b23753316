"""All launched code has run on a GPU: the committed record has the compiled code of each kernel and the launches of
each operator, and all tests passed."""

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded

from . import gpu_record
from .fingerprints import PARTS, ROOT, changes, code_of, look_at, recorded, tokens

RECORD = gpu_record.read()
RUNS = RECORD["runs"]

needs_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy has NVRTC")


@needs_cupy
def test_all_code_and_launches_have_run_on_a_gpu() -> None:
    # The first changes are enough to know that the suite has to run again. To find all of them takes minutes.
    found = [*islice(changes(RECORD, look_at()), 6)]
    assert not found, (
        f"changed since the GPU suite ran, among others: {'; '.join(found)}. Run it again on a machine with a GPU "
        "(python -m tests.gpu.gpu_record), and commit the record"
    )


def test_the_pinned_compiler_has_run() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = re.search(r"^nvidia-cuda-nvrtc-cu12==(\S+)$", pins, re.MULTILINE)
    assert pinned
    assert all(pinned[1] in kernel for kernel in RECORD["kernels"].values())


# What could not run beside a CuPy for CUDA 12 on a machine whose libraries are CUDA 13's.
LACKING = {"12": {"CuPy has no cuBLAS here": 3, "needs nvJitLink of CuPy's CUDA version": 2}, "13": {}}
# Files of tests for packages that were not installed: kernels, torchtitan, z3 four times, and the notebooks' extra.
EXTRAS = 7


def test_both_cuda_majors_and_two_gpus_have_run() -> None:
    assert {major(r) for r in RUNS} >= {"12", "13"}
    assert any(RUNS[r]["machine"]["gpus"] >= 2 for r in RUNS)


def major(run: str) -> str:
    return str(RUNS[run]["machine"]["nvrtc"]).partition(".")[0]


@pytest.mark.parametrize("run", list(RUNS))
def test_nothing_failed_and_nothing_was_skipped_but_what_a_machine_lacked(run: str) -> None:
    tests = RUNS[run]["tests"]
    assert tests["passed"] > 1000
    assert tests["failed"] == []
    part = RUNS[run].get("part")  # which tests, if the time ended before all had run
    assert tests["exit_code"] == (124 if part else 0)
    skipped = {re.split("[:=]", why)[0]: n for why, n in tests["skipped"].items()}
    if RUNS[run]["machine"]["gpus"] == 1:
        assert skipped.pop("needs two GPUs") > 0
    assert skipped.pop("collection skipped", 0) <= EXTRAS
    assert skipped == LACKING[major(run)] or (part and skipped.items() <= LACKING[major(run)].items())


def test_sanitizers_found_nothing() -> None:
    found = [RUNS[r]["sanitizer"] for r in RUNS if RUNS[r]["sanitizer"]]
    assert found
    for sanitizer in found:
        assert sanitizer == dict.fromkeys(("memcheck", "racecheck", "initcheck", "synccheck"), "clean")


# Texts

TEXT = """
__constant__ float TABLE[4] = {1, 2, 3, 4};
__device__ float OFFSET = 5.0f;
__device__ float twice(float value) { return 2.0f * value; }
extern "C" __global__ void __launch_bounds__(128) scale(const float* x, float* y, float factor, long long n) {
    __shared__ float part[128];
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = twice(part[threadIdx.x ^ 1]) * factor + TABLE[threadIdx.x & 3] + OFFSET;
}
"""


def source(text: str) -> Any:
    return "scale", text, ()


@needs_cupy
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"__syncthreads\(\);", "\n__syncthreads(); // all of the block\n"),
        ("extern", '#line 7 "elsewhere.cu"\nextern'),
        (r"\bpart\b", "kept"),
        (r"\bi\b", "index"),
        (r"\bTABLE\b", "VALUES"),
        (r"\btwice\b", "doubled"),
        (r"\bscale\b", "scaled"),
        (r"\bfactor\b", "by"),
        ("__device__ float t", "__constant__ double UNUSED = 0.5;\\g<0>"),
        (r"2\.0f \* value", "value\n+ value"),
    ],
    ids=str.split("comment place shared local table function kernel parameter unused same"),
)
def test_comments_places_and_names_are_no_part_of_compiled_code(old: str, new: str) -> None:
    edited = re.sub(old, new, TEXT)
    assert edited != TEXT
    assert (tokens(edited) == tokens(TEXT)) == ("// all" in new or "#line" in new)
    assert code_of(source(edited)) == code_of(source(TEXT))


@needs_cupy
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.0f", "2.5f"),
        ("3, 4", "3, 5"),
        ("5.0f", "6.0f"),
        ("+ OFFSET", "+ TABLE[0]"),
        ("part[128]", "part[256]"),
        ("__launch_bounds__(128)", "__launch_bounds__(256)"),
        ("    __syncthreads();\n", ""),
        ("float factor, long long n", "long long n, float factor"),
        ("__global__ void", "__global__ void __cluster_dims__(2)"),
        ("y[i] =", "y[n] ="),
    ],
    ids=str.split("constant table variable use shared bounds instruction parameters cluster parameter"),
)
def test_what_a_gpu_would_do_otherwise_changes_the_code(old: str, new: str) -> None:
    edited = TEXT.replace(old, new)
    assert tokens(edited) != tokens(TEXT)
    assert code_of(source(edited)) != code_of(source(TEXT))


@needs_cupy
def test_options_are_part_of_the_code() -> None:
    assert code_of(source(TEXT)) != code_of(("scale", TEXT, ("--maxrregcount=32",)))


@needs_cupy
def test_no_kernel_may_be_warned_of() -> None:
    unused = TEXT.replace("    __shared__", "    int unused;\n    __shared__")
    with pytest.raises(SystemExit, match='no kernel may be warned of: scale: .*"unused" was declared but never'):
        code_of(source(unused))


# Launches

# The number's bytes and those of the gap after it are an address in x, which lies in the lowest 4 GiB.
BETWEEN_NUMBERS = """
import mmap, struct
from tests.gpu import stub_h200
machine = stub_h200.install()
import torch
from cupyops import Kernel, Threads
text = "__global__ void scale(const float* x, float by, float* y) { y[threadIdx.x] = by * x[threadIdx.x]; }"
scale = Kernel(f'extern "C" {text}', "scale")
memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # MAP_32BIT
x = torch.frombuffer(memory, dtype=torch.float32)
machine.watch([x])
number = struct.pack("<I", x.data_ptr() + 4)
scale[1, 1024](x, struct.unpack("<f", number)[0], torch.empty_like(x))
[launch] = machine.events
assert launch.arguments == ("input 0 + 0", number.hex(), "new 1 + 0"), launch.arguments
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mmap's flag is Linux's")
def test_a_number_that_looks_like_an_address_is_a_number(tmp_path: Path) -> None:
    done = preloaded.run(["-c", BETWEEN_NUMBERS], cwd=ROOT, env={**os.environ, "CUPYOPS_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr


# Trees

OPERATORS = ("add2", "gelu")
# Edits of files, each a pattern and its replacement, and what changes then.
EDITS: dict[str, tuple[list[tuple[str, str, str]], set[str]]] = {
    "words": (
        [
            ("kernels_cu/gelu.cu", r"(?m)^(?=extern)", "// A comment.\n\n"),
            ("kernels_cu/gelu.cuh", r"\bKAPPA\b", "CUBIC"),
            ("cupyops/ops/gelu.py", r'(?s)\A""".*?"""', '"""Another docstring."""'),
            ("cupyops/**/gelu.py", r"\bgeometry\b(?= =|,)", "policy"),
            ("cupyops/**/add2.py", r"\balike\b", "of_one_shape"),
        ],
        set(),
    ),
    "code, arguments, and the grid of a policy": (
        [
            ("kernels_cu/gelu.cuh", r"0\.044715", "0.044716"),
            ("cupyops/ops/add2.py", r"alpha=alpha, n=", "alpha=alpha + 1, n="),
            ("cupyops/**/*.py", r'"-\(-\{self\.n\} // unit\)"', '"-(-{self.n} // unit) + 1"'),
        ],
        {"the code of gelu_forward", "the code of gelu_backward", "the launches of add2", "the launches of gelu"},
    ),
    "the grid of generated functions": (
        [("cupyops/**/*.py", r"variant\.function, gx,", "variant.function, gx + 1,")],
        {"the launches of add2", "the launches of gelu"},
    ),
}


@pytest.mark.thorough
@needs_cupy
def test_words_need_no_gpu_and_code_arguments_and_geometry_do(tmp_path: Path) -> None:
    record = recorded(look_at(ROOT, OPERATORS))
    for name, (edits, changed) in EDITS.items():
        tree = tmp_path / name
        for copied in PARTS:
            (tree / copied).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / copied).is_dir() else shutil.copy)(ROOT / copied, tree / copied)
        for glob, pattern, replacement in edits:
            files = {path: path.read_text(encoding="utf-8") for path in tree.glob(glob)}
            edited = {path: re.sub(pattern, replacement, text) for path, text in files.items()}
            assert edited != files, pattern
            for path, text in edited.items():
                path.write_text(text, encoding="utf-8")
        assert {found.partition(" (")[0] for found in changes(record, look_at(tree, OPERATORS))} == changed, name


# The file


def test_a_run_of_the_same_tree_adds_to_the_record_and_another_replaces_it() -> None:
    def tree(name: str, text: str, nvrtc: str) -> dict[str, Any]:
        return {"tree": name, "kernels": {"k": {"text": text, nvrtc: f"{text} by {nvrtc}"}}, "launches": {}}

    first = gpu_record.renewed({"runs": {}}, tree("one", "a", "12"), "a run", {"tests": 1})
    second = gpu_record.renewed(first, tree("one", "a", "13"), "another", {"tests": 2})
    assert second["kernels"] == {"k": {"text": "a", "12": "a by 12", "13": "a by 13"}}
    assert second["runs"] == {"a run": {"tests": 1, "tree": "one"}, "another": {"tests": 2, "tree": "one"}}
    third = gpu_record.renewed(second, tree("two", "b", "13"), "another", {"tests": 3})
    assert (third["tree"], third["kernels"]) == ("two", {"k": {"text": "b", "13": "b by 13"}})
    assert third["runs"] == {"a run": {"tests": 1, "tree": "one"}, "another": {"tests": 3, "tree": "two"}}


@pytest.mark.parametrize("same", [True, False])
def test_the_failed_tests_of_the_same_tree_alone_run_again(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    tests: dict[str, Any] = {"passed": 8, "failed": ["test_a.py::test_x[1]", "test_a.py::test_y"], "exit_code": 1}
    run = {"tests": tests, "tree": "one" if same else "another", "sanitizer": {"memcheck": "clean"}}
    tree = {"tree": "one", "kernels": {}, "launches": {}}
    path.write_text(json.dumps({**tree, "runs": {"cupy for CUDA 12, 1 GPU": run}}))
    asked: list[Any] = []

    def run_suite(jobs: int, only: Sequence[str] = ()) -> dict[str, Any]:
        asked.append((jobs, only))
        return (
            {"passed": 1, "failed": only[1:], "exit_code": 1} if only else {"passed": 10, "failed": [], "exit_code": 0}
        )

    monkeypatch.setattr(gpu_record, "machine", lambda: {"nvrtc": "12.9.86", "gpus": 1})
    monkeypatch.setattr(gpu_record, "look_at", lambda: "seen")
    monkeypatch.setattr(gpu_record, "recorded", lambda seen: tree)
    monkeypatch.setattr(gpu_record, "sanitize", lambda: {"synccheck": "clean"})
    monkeypatch.setattr(gpu_record, "run_suite", run_suite)
    monkeypatch.setattr(sys, "argv", ["gpu_record", "--jobs", "3", "--out", str(path)])
    with monkeypatch.context() as changing:
        changing.setattr(gpu_record, "contents", iter(("before", "after")).__next__)
        with pytest.raises(SystemExit, match="files of the tree changed while it ran"):
            gpu_record.main()
    asked.clear()
    assert gpu_record.main() == int(same)
    found = gpu_record.read(path)["runs"]["cupy for CUDA 12, 1 GPU"]
    assert asked == [(3, tests["failed"] if same else ())]
    assert found["tests"]["failed"] == (tests["failed"][1:] if same else [])
    assert found["tests"]["passed"] == (9 if same else 10)
    assert found["sanitizer"] == {"memcheck" if same else "synccheck": "clean"}


def test_a_failed_test_that_is_gone_has_not_passed() -> None:
    with pytest.raises(SystemExit, match="2 of the failed tests had to pass, and 1 did"):
        gpu_record.both({"passed": 8, "failed": ["a", "b"]}, {"passed": 1, "failed": [], "exit_code": 4})


@pytest.mark.thorough
def test_the_suite_is_counted_and_what_failed_can_be_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.gpu\n@pytest.mark.parametrize('n', [1, 2])\ndef test_x(n):\n    assert n == 1\n\n"
        "@pytest.mark.gpu\n@pytest.mark.skip(reason='needs two GPUs')\ndef test_y():\n    pass\n\n"
        "def test_without_a_gpu():\n    assert False\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    found = gpu_record.run_suite(1)
    failed = ["tests/test_a.py::test_x[2]"]
    assert found == {"passed": 1, "failed": failed, "skipped": {"needs two GPUs": 1}, "exit_code": 1}
    assert gpu_record.run_suite(1, failed) == {"passed": 0, "failed": failed, "skipped": {}, "exit_code": 1}
