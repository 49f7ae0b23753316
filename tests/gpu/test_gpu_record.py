"""Nothing is launched that has not run on a GPU: the committed record knows the compiled code of each kernel and what each operator
asks the driver for, and everything passed."""

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.commands.test_compile_command import SPILLS

from . import fingerprints as fingerprints_module
from . import gpu_record
from .fingerprints import (
    ROOT,
    Binary,
    Compiled,
    Fingerprints,
    Seen,
    Source,
    changes,
    code_of,
    compile_source,
    compiled,
    fingerprints,
    installed_nvrtc,
    look_at,
    pinned_nvrtc,
    tokens,
)

RECORD = gpu_record.read()
RUNS = RECORD["runs"]
RAN = {tree: Fingerprints(**found) for tree, found in RECORD["fingerprints"].items()}
AGAIN = (
    "Run the suite again on a machine with a GPU (python -m tests.gpu.gpu_record), then take its fingerprints "
    "(python -m tests.gpu.gpu_record --fingerprint), and commit the record"
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cupy") is None, reason="what NVRTC would be asked for is asked by way of CuPy"
)


def need_pinned_nvrtc(what: str) -> None:
    """Another NVRTC makes other code of one text."""
    if installed_nvrtc() != pinned_nvrtc():
        pytest.skip(f"{what}: hashes are of NVRTC {pinned_nvrtc()}, and CuPy has loaded {installed_nvrtc()}")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """What a function makes, which JSON can hold, once for all processes of pytest-xdist."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / f"{name}.json"
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


def seen_and_code(factory: pytest.TempPathFactory, *operators: str) -> tuple[Seen, Compiled]:
    """What the tree at hand launches, and hashes of its code. What has the tokens of a text that has run is not compiled."""
    name = "_".join(("launches", *operators))
    seen = Seen.of(once(factory, name, lambda: look_at(ROOT, operators)._asdict()))
    known = gpu_record.known_code(RECORD, pinned_nvrtc())
    if new := sum(source.key not in known for source in seen.sources):
        need_pinned_nvrtc(f"{new} texts have other tokens than what has run")
    return seen, Compiled(*once(factory, f"code_{name}", lambda: compiled(seen.sources, known)))


@pytest.fixture(scope="module")
def at_hand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Compiled]:
    """Of the tree at hand."""
    return seen_and_code(tmp_path_factory)


@pytest.fixture(scope="module")
def now(at_hand: tuple[Seen, Compiled]) -> tuple[Seen, Fingerprints]:
    seen, found = at_hand
    return seen, fingerprints(seen, found.code, pinned_nvrtc())


def told(found: list[str]) -> str:
    """The first few."""
    return "; ".join(found[:6]) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")


def test_there_is_a_record() -> None:
    assert RUNS, AGAIN


def test_all_code_and_launches_have_run_on_a_gpu(now: tuple[Seen, Fingerprints]) -> None:
    seen, found = now
    assert RAN, (
        "the record's runs have no fingerprints: python -m tests.gpu.gpu_record --fingerprint, in the tree that ran"
    )
    changed = min((changes(ran, found, seen) for ran in RAN.values()), key=len)
    assert not changed, f"changed since the GPU suite ran: {told(changed)}. {AGAIN}"


def test_no_kernel_is_warned_of(at_hand: tuple[Seen, Compiled]) -> None:
    """Of the kernels that have run, ``gpu_record --fingerprint`` has held it; `make compile` asks for every architecture."""
    assert not at_hand[1].faults, told(at_hand[1].faults)


def test_the_record_knows_what_edited_texts_compile_to(now: tuple[Seen, Fingerprints]) -> None:
    """Three of them: the tests take the record's word for the others."""
    known = RECORD.get("texts", {}).get(pinned_nvrtc(), {})
    edited = sorted((s for s in now[0].sources if s.key in known), key=lambda s: s.key)
    if edited:
        need_pinned_nvrtc("compiled code")
    for one in edited[:: -(-len(edited) // 3)] if edited else ():
        assert code_of(one) == known[one.key], one.what


@pytest.mark.parametrize("run", list(RUNS))
def test_each_run_was_made_on_what_is_here(run: str, now: tuple[Seen, Fingerprints]) -> None:
    """Told, not refused: one run may be behind another; the next takes it in."""
    seen, found = now
    ran = RAN.get(RUNS[run]["tree"])
    changed = ["that tree's fingerprints, which were not taken"] if ran is None else changes(ran, found, seen)
    if changed:
        pytest.skip(f"behind the run '{run}': {told(changed)}")


def test_every_kernel_is_launched_by_a_case(now: tuple[Seen, Fingerprints]) -> None:
    """Else its arguments and its geometry could change unseen."""
    seen, _ = now
    launched = {
        seen.sources[i].what.partition("<")[0]
        for of in seen.cases.values()
        for es in of.values()
        for i, *_ in es
        if i >= 0
    }
    assert {source.what.partition("<")[0] for source in seen.sources} == launched


# What could not run beside a CuPy for CUDA 12 on a machine whose libraries are CUDA 13's. The notebooks' extra was not installed.
LACKING = {
    "12": {"CuPy has no cuBLAS here": 3, "needs nvJitLink of CuPy's CUDA version": 2, "collection skipped": 1},
    "13": {"collection skipped": 1},
}


def test_both_cuda_majors_and_two_gpus_have_run() -> None:
    assert {major(r) for r in RUNS} >= {"12", "13"}
    assert any(RUNS[r]["machine"]["gpus"] >= 2 for r in RUNS)


def major(run: str) -> str:
    return str(RUNS[run]["machine"]["nvrtc"]).partition(".")[0]


@pytest.mark.parametrize("run", list(RUNS))
def test_nothing_failed_and_nothing_was_skipped_but_what_a_machine_lacked(run: str) -> None:
    tests = RUNS[run]["tests"]
    assert tests["passed"] > 1000
    assert not tests["failed"]
    assert tests["exit_code"] == 0
    skipped = {re.split("[:=]", why)[0]: n for why, n in tests["skipped"].items()}
    if RUNS[run]["machine"]["gpus"] == 1:
        assert skipped.pop("needs two GPUs") > 0
    assert skipped == LACKING[major(run)]


def test_sanitizers_found_nothing() -> None:
    found = [RUNS[r]["sanitizer"] for r in RUNS if RUNS[r]["sanitizer"]]
    assert found
    for sanitizer in found:
        assert sanitizer == dict.fromkeys(("memcheck", "racecheck", "initcheck", "synccheck"), "clean")


# Texts

TEXT = """
__device__ float twice(float value) { return 2.0f * value; }
extern "C" __global__ void __launch_bounds__(128) scale(const float* x, float* y, float factor, long long n) {
    __shared__ float part[128];
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = twice(part[threadIdx.x ^ 1]) * factor;
}
"""
OPTIONS = ("-arch=sm_90", "--std=c++17")


def source(text: str) -> Source:
    return Source("scale<>", text, OPTIONS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    __syncthreads();", "    __syncthreads(); // all of the block\n"),
        ("2.0f * value", "2.0f /* two */\n    * value"),
        ("float* x, float* y,", "float * x,\n    float *y,"),
        ("extern", '#line 7 "elsewhere.cu"\nextern'),
    ],
    ids=["comment", "comment within", "layout", "place"],
)
def test_what_no_compiler_sees_is_not_compiled(old: str, new: str) -> None:
    assert old in TEXT
    assert source(TEXT.replace(old, new)).key == source(TEXT).key


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"\bpart\b", "kept"),
        (r"\bi\b", "index"),
        (r"\btwice\b", "doubled"),
        (r"\bfactor\b", "by"),
        ("__device__ float", "constexpr double UNUSED = 0.5;\\g<0>"),
        (r"2\.0f \* value", "value + value"),
    ],
    ids=["shared variable", "local", "function", "parameter", "constant that nothing uses", "same instructions"],
)
def test_names_are_no_part_of_compiled_code(old: str, new: str) -> None:
    need_pinned_nvrtc("compiled code")
    renamed = source(re.sub(old, new, TEXT))
    assert renamed.key != source(TEXT).key
    assert code_of(renamed) == code_of(source(TEXT))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.0f", "2.5f"),
        ("2.0f * value", "LATER"),
        ("part[128]", "part[256]"),
        ("__launch_bounds__(128)", "__launch_bounds__(256)"),
        ("    __syncthreads();\n", ""),
        ("float factor, long long n", "long long n, float factor"),
        ("__global__ void", "__global__ void __cluster_dims__(2)"),
        ("twice(part[threadIdx.x ^ 1])", "TABLE[threadIdx.x]"),
    ],
    ids=["constant", "use of a constant", "shared memory", "bounds", "instruction", "parameters", "cluster", "table"],
)
def test_what_a_gpu_would_do_otherwise_changes_the_code(old: str, new: str) -> None:
    need_pinned_nvrtc("compiled code")
    assert old in TEXT
    head = "__device__ float LATER_VALUE = 3.0f;\n#define LATER (LATER_VALUE * value)\n__constant__ float TABLE[128] = {1, 2};\n"
    assert code_of(source(head + TEXT.replace(old, new))) != code_of(source(head + TEXT))


def test_warnings_and_spills_of_a_source_are_told() -> None:
    assert compile_source(source(TEXT))[1:] == ([], 0)
    unused = compile_source(source(TEXT.replace("    __shared__", "    int unused;\n    __shared__")))
    assert '"unused" was declared but never referenced' in unused.warnings[0]
    assert compile_source(Source("spills<>", SPILLS, (*OPTIONS, "--maxrregcount=32"))).spilled > 0
    assert compile_source(Source("spills<>", SPILLS, OPTIONS)).spilled == 0


@pytest.mark.parametrize("kernel", ["gelu_forward", "scale"])
def test_spills_are_told_of_the_kernels_of_the_folder(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spills = "ptxas warning : Registers are spilled"
    made = Binary("code", ["warning: of this", spills], 8)
    monkeypatch.setattr(fingerprints_module, "compile_source", lambda source: made)
    what = f"{kernel}<float32>"
    found = compiled([Source(what, TEXT, OPTIONS)], {}, 1)
    assert found.faults == [f"{what}: warning: of this"]
    assert found.spills == ([f"{what} spills 8 bytes"] if kernel == "gelu_forward" else [])
    assert [*found.code.values()] == ["code"]


def test_the_value_of_a_table_is_part_of_the_code() -> None:
    need_pinned_nvrtc("compiled code")
    for space in ("__constant__", "__device__"):
        text = f"{space} float TABLE[4] = {{1, 2, 3, 4}};\n" + TEXT.replace("2.0f", "TABLE[threadIdx.x & 3]")
        assert code_of(source(text)) != code_of(source(text.replace("3, 4", "3, 5")))


def test_a_text_that_speaks_of_its_lines_keeps_them() -> None:
    text = TEXT.replace("* factor", "* __LINE__")
    assert source("\n" + text).key != source(text).key


def test_options_are_part_of_a_source() -> None:
    assert source(TEXT).key != Source("scale<>", TEXT, (*OPTIONS, "--use_fast_math")).key


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("a + +b", "a ++ b"),
        ("#define F (x)", "#define F(x)"),
        ("'a' 'b'", "'ab'"),
        ("1.f", "1 .f"),
        ("a\n#if X\n", "a #if X"),
    ],
)
def test_other_tokens_stay_apart(a: str, b: str) -> None:
    assert tokens(a) != tokens(b)


# Trees

OPERATORS = ("add2", "gelu", "layer_norm_inference")


def planted(tmp_path: Path, *edits: tuple[str, str, str]) -> Path:
    """A copy of the tree with words of files replaced: (glob, pattern, replacement)."""
    for name in (
        "autograd_bridge.py",
        "constraints.txt",
        "cupyops",
        "examples",
        "kernels_cu",
        "tests",
    ):
        made = tmp_path / name
        made.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, made, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, made)
    for glob, pattern, replacement in edits:
        files = [p for p in tmp_path.glob(glob) if re.search(pattern, p.read_text(encoding="utf-8"))]
        assert files, f"nowhere in {glob}: {pattern}"
        for path in files:
            path.write_text(re.sub(pattern, replacement, path.read_text(encoding="utf-8")), encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, dict[str, str]]:
    """Launches of a few operators, and hashes of their code."""
    need_pinned_nvrtc("what is planted is compiled")
    seen, found = seen_and_code(tmp_path_factory, *OPERATORS)
    return seen, found.code


def changed(before: tuple[Seen, dict[str, str]], tree: Path) -> list[str]:
    seen, code = before
    after = look_at(tree, OPERATORS)
    ran = fingerprints(seen, code, pinned_nvrtc())
    return changes(ran, fingerprints(after, compiled(after.sources, code, 1).code, pinned_nvrtc()), after)


def test_words_and_places_need_no_gpu(before: tuple[Seen, dict[str, str]], tmp_path: Path) -> None:
    """Comments, docstrings, names and layout, of texts and of Python; a macro's name, too."""
    tree = planted(
        tmp_path,
        ("kernels_cu/**/*.cu*", r"(?m)^(?=\S)(?!#)(?=extern)", "// A comment.\n\n"),
        ("kernels_cu/**/gelu.cu", r"long long n\) \{", "long long n)\n{"),
        ("kernels_cu/**/gelu.cuh", r"\bKAPPA\b", "CUBIC"),
        ("cupyops/ops/gelu.py", r'(?s)\A""".*?"""', '"""Another docstring."""'),
        ("cupyops/**/gelu.py", r"\bgeometry\b(?= =|,)", "policy"),
        ("cupyops/**/add2.py", r"\balike\b", "of_one_shape"),
        ("cupyops/**/add2.py", r"\A", "# A comment.\n"),
    )
    assert changed(before, tree) == []


def test_code_geometry_and_arguments_need_a_gpu(before: tuple[Seen, dict[str, str]], tmp_path: Path) -> None:
    """Each is told by the operator's name and by what changed."""
    tree = planted(
        tmp_path,
        ("kernels_cu/**/gelu.cuh", r"0\.044715", "0.044716"),
        ("cupyops/**/add2.py", r"launch_vouched\(a=a, b=b,", "launch_vouched(a=b, b=a,"),
        ("cupyops/**/layer_norm/*.py", r"aligned_apart\": True", 'aligned_apart": False'),
    )
    found = changed(before, tree)
    words = "\n".join(found)
    assert re.search(r"^the code of gelu_forward<float32> \[.*TANH=1", words, re.MULTILINE), words
    assert not re.search(r"^the code of gelu_forward<float32> \[.*TANH=0", words, re.MULTILINE), words
    assert "the kernels of gelu's launches (tanh float32 (37, 19))" in found
    assert "the arguments of add2's launches (alike float32)" in found
    assert "the code of layer_norm_forward<" in words


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r'"-\(-\{self\.n\} // unit\)"', '"-(-{self.n} // unit) + 1"'),
        (r"variant\.function, gx,", "variant.function, gx + 1,"),
    ],
    ids=["policy", "generated function"],
)
def test_a_changed_grid_needs_a_gpu(
    pattern: str, replacement: str, before: tuple[Seen, dict[str, str]], tmp_path: Path
) -> None:
    found = changed(before, planted(tmp_path, ("cupyops/**/*.py", pattern, replacement)))
    assert "the geometry of gelu's launches (none float32 (37, 19))" in found
    assert not any(f.startswith("the code of") or "kernels" in f for f in found)
