"""`python -m cupyops ide`: clangd has no complaint about a correct text, and gdb stops where the page says."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import kernels_cu
from cupyops import Kernel, Rows
from cupyops.__main__ import main
from cupyops.commands.ide import definitions, guessed, write
from cupyops.compile import toolchain
from tests.support import HANG

ROOT = Path(__file__).parents[2]
SHIPPED = Path(kernels_cu.__file__).parent
CLANGD = shutil.which("clangd", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
needs_clangd = pytest.mark.skipif(CLANGD is None, reason="needs clangd")
# Checking every text and header takes a minute; these have the most features that clangd does not know.
SAMPLE = ("gelu.cu", "linear_gelu_sm90.cu", "column_sums.cu", "shared/rows.cuh")
EVERY = os.environ.get("CUPYOPS_TEST_CLANGD") == "1"

OWN = """// y = factor * x
#include "mine.cuh"
#include "scalar.cuh"
#include <cuda_fp16.h>
#ifdef FAST
#define STEP 2
#else
#define STEP 1
#endif
enum Mode { ADD, MUL };
constexpr int TILE = 32;
template <int WIDTH, typename TYPE> __device__ TYPE twice(TYPE v) { return v * TYPE(WIDTH); }
extern __shared__ float dynamic[];
__device__ __half2 pair;
extern "C" __global__ void __launch_bounds__(256) own(
    const scalar_t* __restrict__ x,  // (n)
    const index_t* index,            // (n)
    scalar_t* __restrict__ y,        // (n)
    Int64s<3> size, acc_t factor, long long n) {
    __shared__ acc_t part[BLOCK_THREADS];
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x * STEP * UNROLL;
    part[threadIdx.x] = i < n ? acc_t(x[i]) : acc_t(0);
    __syncthreads();
    dynamic[threadIdx.x] = __shfl_xor_sync(0xffffffffu, part[threadIdx.x], 1);
    if (i < n) y[i] = scalar_t(twice<2>(factor) * part[threadIdx.x] + square(size[1]) + index[i] + fabs(factor));
    if (i == 0) { atomicAdd(&y[0], scalar_t(1)); printf("%d", TILE); assert(n > 0); }
    float s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(2.0f));
    unsigned long long address;
    asm volatile("mov.u64 %0, %1;" : "=l"(address) : "l"(x) : "memory");
    const dim3 cluster = __clusterDim();
    y[cluster.x] = __ldg(x) + min(1, 2) + rsqrtf(s) + clock64() + convert<float>(__float2half(1.0f)) + __popc(3);
    pair = __halves2half2(__half(1.0f), __half(2.0f));
    float4 v = make_float4(1, 2, 3, 4);
    memcpy(&v, &v, 4);
    __threadfence();
}
"""
MINE = "#pragma once\n#define MINE 3\n__device__ inline scalar_t square(scalar_t v) { return v * MINE * COUNT; }\n"
TYPED = """typedef double scalar_t;
#define BLOCK_THREADS 64
extern "C" __global__ void typed(double* y, long long n) { const scalar_t v = BLOCK_THREADS; y[0] = v; }
"""


def fragments(folder: Path) -> dict[str, list[str]]:
    """The added flags of each fragment of .clangd, by its pattern."""
    text = (folder / ".clangd").read_text()
    found = re.findall(r"If: \{PathMatch: (.*)\}\nCompileFlags: \{Add: (.*)\}\n", text)
    return {json.loads(pattern): json.loads(flags) for pattern, flags in found}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    for name, text in {"own.cu": OWN, "mine.cuh": MINE, "sub-folder/my text.cu": TYPED}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def complaints(folder: Path, file: str) -> list[str]:
    assert CLANGD is not None
    command = [CLANGD, f"--check={folder / file}", "--check-locations=0", "--check-warnings=1", "--log=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG, check=False)
    found = [line for line in done.stderr.splitlines() if re.match(r"[EW]\[", line)]
    assert bool(done.returncode) <= bool(found), done.stderr
    return found


# What is written


def test_a_text_that_no_kernel_declares_gets_float_and_1(own: Path) -> None:
    assert write(own) == (0, 3)
    found = fragments(own)
    assert found[r"own\.cu"] == ["-Dindex_t=float", "-DUNROLL=1", "-DCOUNT=1"]
    assert found[r"mine\.cuh"] == ["-DCOUNT=1"]
    assert next(flags for pattern, flags in found.items() if "my" in pattern) == ["-Uscalar_t", "-UBLOCK_THREADS"], (
        "the text defines both itself"
    )
    assert {"-Dscalar_t=float", "-Dacc_t=float", "-DBLOCK_THREADS=256"} <= set(found[r".*\.cuh?"])
    assert re.fullmatch(r".*\.cuh?", "sub/own.cu")
    assert (own / ".cupyops" / "nv" / "target").is_file()
    assert (own / ".cupyops" / ".gitignore").read_text() == "*\n"


def test_a_text_of_a_declared_kernel_gets_its_types_and_constants(own: Path) -> None:
    kernel = Kernel(
        own / "own.cu",
        "own",
        Rows("n", 512),
        dtypes=("float16",),
        constants={"UNROLL": 4, "COUNT": 2},
        choices=[{"scalar_t": "float16", "index_t": "int64"}],
    )
    found, before = definitions(own / "own.cu", OWN, [kernel])
    wanted = {"scalar_t": "__half", "acc_t": "float", "index_t": "long long", "BLOCK_THREADS": "512"}
    assert (found, before) == (wanted | {"UNROLL": "4", "COUNT": "2"}, [])
    assert write(own) == (2, 3), "the header has the definitions of the text"
    flags = fragments(own)[r"mine\.cuh"]
    assert {"-Uscalar_t", "-Dscalar_t=__half", "-UBLOCK_THREADS", "-DBLOCK_THREADS=512", "-DCOUNT=2"} <= set(flags)


def test_a_header_gets_the_headers_that_its_text_includes_before_it(tmp_path: Path) -> None:
    text = '#include "scalar.cuh"\n#include "one.cuh"\nextern "C" __global__ void k(float* y) {}\n'
    files = {
        "k.cu": text,
        "one.cuh": '#include "two.cuh"\n#include "three.cuh"\n',
        "two.cuh": "",
        "three.cuh": "// 3\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    kernel = Kernel(tmp_path / "k.cu", "k", 32, headers={"two.cuh": "", "three.cuh": "// 3\n"}, constants={"N": 2})
    assert definitions(tmp_path / "three.cuh", "// 3\n", [kernel]) == (
        {"N": "2"},
        ["scalar.cuh", "two.cuh"],
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("int a = 3 * WIDTH;", {"WIDTH": "1"}),
        ("constexpr int WIDTH = 3; int a = WIDTH;", {}),
        ("template <typename TYPE, int N> void f() { TYPE a; }", {}),
        ("#ifndef WIDTH\n#define WIDTH 3\n#endif\nint a = WIDTH;", {}),
        ("#if defined(FAST)\n#endif\nint a;", {}),
        ("enum Kind { ONE, TWO = 2 }; int a = ONE;", {}),
        ("struct A { static constexpr int BYTES = 4, WORDS = BYTES / 4; }; int a = A::WORDS;", {}),
        ("void f(A a) { a.WORDS; a.WORDS == WIDTH; }", {"WIDTH": "1"}),
        ("// WIDTH in a comment\nint a;", {}),
        ("void f(const row_t* x, size_t* n, uint8_t* b) {}", {"row_t": "float"}),
        ("typedef float row_t; void f(row_t* x) {}", {}),
        ("using row_t = float; void f(row_t* x) {}", {}),
        ("float a = INT_MAX + CUDART_INF_F;", {}),
        ("float* a = nullptr; float b[BLOCK_THREADS];", {"BLOCK_THREADS": "256"}),
    ],
)
def test_only_names_that_nothing_defines_are_guessed(text: str, wanted: Mapping[str, str]) -> None:
    assert guessed(text, {}) == wanted


def test_a_config_of_the_users_is_kept(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / ".clangd").write_text("CompileFlags: {Add: [-DMINE]}\n")
    with pytest.raises(SystemExit) as ended:
        main(["ide", str(own)])
    assert ended.value.code == 2
    assert "was not written by this command" in capsys.readouterr().err
    assert (own / ".clangd").read_text() == "CompileFlags: {Add: [-DMINE]}\n"
    assert not (own / ".cupyops").exists()


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ide", str(tmp_path / "absent")])
    assert "absent is not a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_texts_of_an_environment_are_left_out(own: Path) -> None:
    for folder in (".venv", "env/lib/site-packages"):
        (own / folder).mkdir(parents=True)
        (own / folder / "other.cu").write_text(TYPED)
    assert write(own) == (0, 3)


def test_the_command_writes_again_over_its_own_files(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ide", str(own)]) == 0
    before = (own / ".clangd").read_text()
    assert main(["ide", str(own)]) == 0
    assert (own / ".clangd").read_text() == before
    assert f"{own / '.clangd'}: 3 texts, 0 of them" in capsys.readouterr().out


def test_a_module_that_declares_kernels_is_imported(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "typed.cu").write_text(TYPED)
    (own / "declares_typed.py").write_text(
        "from pathlib import Path\nfrom cupyops import Kernel\n"
        "KERNEL = Kernel(Path(__file__).with_name('typed.cu'), 'typed', constants={'EXTRA': 5})\n"
    )
    monkeypatch.chdir(own)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["ide", "--module", "declares_typed"]) == 0
    assert "1 of them" in capsys.readouterr().out
    assert "-DEXTRA=5" in fragments(own)[r"typed\.cu"]
    with pytest.raises(SystemExit):
        main(["ide", "--module", "no_such_module"])
    assert "--module: No module named 'no_such_module'" in capsys.readouterr().err


def test_a_machine_without_cudas_headers_is_told(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain, "header_candidates", list)
    assert main(["ide", str(own)]) == 0
    assert "There is no cuda_fp16.h here" in capsys.readouterr().out


def test_a_text_that_is_not_utf8_is_told(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "own.cu").write_bytes(b"\xff")
    with pytest.raises(SystemExit):
        main(["ide", str(own)])
    assert "own.cu: the text must be UTF-8" in capsys.readouterr().err


# clangd


@needs_clangd
def test_clangd_has_no_complaint_about_a_right_text_and_has_one_about_a_wrong_one(own: Path) -> None:
    write(own)
    assert [complaints(own, name) for name in ("own.cu", "mine.cuh", "sub-folder/my text.cu")] == [[], [], []]
    (own / "own.cu").write_text(OWN.replace("part[threadIdx.x] =", "parts[threadIdx.x] ="))
    (line,) = complaints(own, "own.cu")
    assert "use of undeclared identifier 'parts'; did you mean 'part'?" in line


@needs_clangd
def test_clangd_has_no_complaint_about_the_shipped_texts(tmp_path: Path) -> None:
    """CUPYOPS_TEST_CLANGD=1 asks for every text and header."""
    folder = tmp_path / "kernels_cu"
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    _, texts = write(folder)
    every = [
        p.relative_to(folder).as_posix()
        for s in ("*.cu", "*.cuh")
        for p in folder.rglob(s)
        if ".cupyops" not in p.parts
    ]
    assert len(every) == texts
    found = {name: complaints(folder, name) for name in (every if EVERY else SAMPLE)}
    assert {name: lines for name, lines in found.items() if lines} == {}


# gdb


@pytest.mark.thorough
@pytest.mark.simulator
@pytest.mark.skipif(not shutil.which("gdb"), reason="needs gdb")
def test_gdb_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "editor.md").read_text(encoding="utf-8")
    for language, name in (("python", "script.py"), ("gdb", "commands.gdb")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (tmp_path / name).write_text(block)
    shown = re.search(r"<!-- gdb: begin -->\n(.*?)<!-- gdb: end -->", page, re.DOTALL)
    assert shown
    command = ["gdb", "-q", "-batch", "-nx", "-x", "commands.gdb", "--args", sys.executable, "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG, check=False
    )
    if "ptrace" in done.stderr:
        pytest.skip("gdb may not trace here")
    lines = [line.strip() for line in done.stdout.splitlines()]
    wanted = [line.strip() for line in shown[1].splitlines()]
    assert [line for line in lines if line in wanted] == wanted, done.stdout + done.stderr
