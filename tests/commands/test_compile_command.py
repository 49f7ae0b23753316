"""python -m cupyops compile: every shipped kernel compiles for every architecture, and errors of a text are
reported."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kernels_cu
from cupyops.__main__ import main
from cupyops.commands.compile import (
    ARCHITECTURES,
    Row,
    choose_architectures,
    compile_all,
    format_row,
    jobs_for,
    sensible_processes,
    summarise,
)
from cupyops.compile.compiler import supported_architectures
from cupyops.compile.toolchain import nvrtc
from cupyops.dtypes import FLOATS
from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install
from cupyops.launch.geometry import Threads
from cupyops.launch.kernel import Kernel
from tests import preloaded
from tests.naive import without_naive
from tests.support import HANG

ROOT = Path(__file__).parents[2]


def _missing_compiler() -> str:
    try:
        nvrtc()
    except MissingDependencyError as error:
        return str(error)
    return ""


NO_NVRTC = _missing_compiler()
needs_nvrtc = pytest.mark.skipif(bool(NO_NVRTC), reason=f"needs CuPy and NVRTC: {NO_NVRTC}")

SCALE = """\
extern "C" __global__ void scale(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    acc_t factor, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(factor * acc_t(x[i]));
}
"""
BAD = SCALE.replace("factor * ", "factr * ")
WARNS = SCALE.replace("    long long i", "    int unused;\n    long long i")
# 64 live values, and no more than 32 registers to hold them.
SPILLS = """\
extern "C" __global__ void spills(const float* x, float* y, long long n) {
    float v[64];
#pragma unroll
    for (int i = 0; i < 64; i++) v[i] = x[i * n];
#pragma unroll
    for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i * 7 + 1) % 64] + x[i];
#pragma unroll
    for (int i = 0; i < 64; i++) y[i * n] = v[i];
}
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "cupyops", "compile", *map(str, arguments)]


def rows_of(text: str, name: str = "scale", architecture: int = 90, **settings: Any) -> list[Row]:
    """The rows of one text for float32."""
    geometry = settings.pop("geometry", Threads("n"))
    kernel = Kernel(text, name, geometry, dtypes=("float32",), **settings)
    return list(compile_all(jobs_for([kernel], [architecture]), 1))


# The default matrix ---------------------------------------------------------------------------------------------------


# The command in a process of its own, where no test has declared a kernel. It compiles nothing: `make compile` asks that the
# kernels compile without a warning for every architecture, and without a spill on sm_90.
ASKED = """
import json, sys
from cupyops.__main__ import main
from cupyops.commands import compile
from cupyops.launch.kernel import all_kernels

compile.compile_job = lambda job: compile.Row(job.what, job.kernel, job.dtypes, job.architecture, bytes=1, registers=1)
status = main(["compile", "--jobs", "1", "--json", sys.argv[1]])
known = [a for a in compile.ARCHITECTURES if a in compile.supported_architectures()]
count = sum(len(list(k.type_choices())) * sum(k.runs_on(a) for a in known) for k in all_kernels())
print(json.dumps([status, known, count]))
"""


@needs_nvrtc
def test_the_default_matrix_has_one_row_for_each_combination(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    done = preloaded.run(["-c", ASKED, path], cwd=ROOT)
    assert not done.returncode, done.stderr
    told = done.stdout.splitlines()
    status, known, count = json.loads(told[-1])
    document = json.loads(path.read_text())
    assert ARCHITECTURES == (70, 75, 80, 86, 89, 90, 100, 120)
    assert {90} <= set(known) <= set(ARCHITECTURES)
    rows = [(r["what"], r["architecture"]) for r in document["rows"]]
    assert len(rows) == len(set(rows)) == count
    assert document["skipped"] == [a for a in ARCHITECTURES if a not in known]
    assert (status, told[-2].partition(" by ")[0]) == (0, f"{count} compilations")
    # Every kernel that a text declares takes part, whatever Python declares.
    declared = {
        n for name in kernels_cu.names() for n in re.findall(r"__global__[^;{]*?(\w+)\(\s*\n", kernels_cu.source(name))
    }
    assert {"gelu_forward", "gelu_backward", "add2"} <= declared
    assert {r["kernel"] for r in document["rows"]} == set(without_naive([*declared]))
    for name in ("gelu_forward", "gelu_backward"):
        dtypes = {tuple(r["dtypes"]) for r in document["rows"] if r["kernel"] == name}
        assert dtypes == {(d,) for d in FLOATS}


@needs_nvrtc
def test_shipped_kernels_make_an_aligned_table_and_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert main(["compile", "--kernels", "gelu_*", "--arch", "90", "--jobs", "1", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {r["kernel"] for r in rows} == {"gelu_forward", "gelu_backward"}
    assert not any(r["error"] or r["warnings"] or r["spilled"] for r in rows)
    assert all(r["bytes"] > 0 and r["registers"] > 0 for r in rows)
    *table, last = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + len(rows)
    assert len({len(line) for line in table}) == 1
    assert last.endswith("0 failed, 0 with warnings, 0 with spills on sm_90")


# What is wrong with a text --------------------------------------------------------------------------------------------


@needs_nvrtc
def test_a_text_that_does_not_compile_is_a_faulty_row() -> None:
    (row,) = rows_of(BAD)
    assert row.faulty
    assert 'identifier "factr" is undefined' in row.error
    assert "FAILED\n    scale<float32> does not compile for sm_90" in format_row(row, 20)
    other = replace(row, what="scale<float64>", error=row.error.replace("float32", "float64"))
    assert format_row(other, 20, row).endswith("FAILED as scale<float32> for sm_90")
    assert "1 failed, 0 with warnings" in summarise([row], "12.9", 1.0)


@needs_nvrtc
@pytest.mark.parametrize("architecture", [a for a in (70, 90) if not NO_NVRTC and a in supported_architectures()])
def test_a_warning_makes_one_warning_and_a_faulty_row(architecture: int) -> None:
    (row,) = rows_of(WARNS, architecture=architecture)
    assert len(row.warnings) == 1
    assert '"unused" was declared but never referenced' in row.warnings[0]
    assert row.faulty
    assert "\n    scale.cu(5): warning" in format_row(row, 20)
    assert rows_of(SCALE, architecture=architecture)[0].warnings == ()


@needs_nvrtc
def test_spills_are_counted_and_a_fault_on_sm_90() -> None:
    (row,) = rows_of(SPILLS, "spills", options=("--maxrregcount=32",))
    assert row.registers == 32
    assert row.spilled > 0
    assert "spills on sm_90" in summarise([row], "12.9", 1.0)
    assert f"spills {row.spilled} bytes, which no kernel may on sm_90" in format_row(row, 20)
    assert rows_of(SPILLS, "spills")[0].spilled == 0


def test_spills_elsewhere_are_told_and_no_fault() -> None:
    spilling = {a: Row("k<float32>", "k", ("float32",), a, bytes=1, registers=1, spilled=8) for a in (80, 90)}
    assert (spilling[80].faulty, spilling[90].faulty) == (False, True)
    assert format_row(spilling[80], 10).split() == ["k<float32>", "sm_80", "1", "1", "8", "0.0"]
    assert summarise(list(spilling.values()), "12.9", 1.0).endswith("0 failed, 0 with warnings, 1 with spills on sm_90")


@needs_nvrtc
def test_a_kernel_without_open_types_has_one_row_an_architecture() -> None:
    kernel = Kernel(SCALE.replace("scalar_t", "float").replace("acc_t", "float"), "scale", Threads("n"), dtypes=FLOATS)
    rows = list(compile_all(jobs_for([kernel], [80, 90]), 1))
    assert [(r.dtypes, r.architecture) for r in rows] == [((), 80), ((), 90)]


@pytest.mark.thorough
@needs_nvrtc
def test_processes_give_the_rows_that_one_gives_in_order() -> None:
    kernel = Kernel(SCALE, "scale", Threads("n"), dtypes=FLOATS)
    jobs = jobs_for([kernel], [80, 90])
    measured = [[(r.what, r.architecture, r.bytes, r.registers, r.error) for r in compile_all(jobs, n)] for n in (1, 2)]
    assert measured[0] == measured[1]
    assert [m[:2] for m in measured[0]] == [(j.what, j.architecture) for j in jobs]


def test_few_jobs_start_no_process_and_many_do_not_start_one_each() -> None:
    assert sensible_processes(7) == 1
    assert 1 <= sensible_processes(10_000) <= 16


# A text of one's own --------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_own_text_with_header_constant_and_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "twice.cuh").write_text("template <typename T> __device__ T twice(T x) { return TIMES * x; }\n")
    text = '#include "twice.cuh"\n#include "scalar.cuh"\n' + SCALE.replace("factor *", "twice(factor) *")
    (tmp_path / "own.cu").write_text(text)
    arguments = [
        "--file",
        str(tmp_path / "own.cu"),
        "--kernels",
        "scale",
        "--arch",
        "80,90",
        "--json",
        str(tmp_path / "rows.json"),
    ]
    assert main(["compile", *arguments, "--dtypes", "float32,int8", "--define", "TIMES=2"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(r["dtypes"], r["architecture"]) for r in rows] == [
        (["float32"], 80),
        (["float32"], 90),
        (["int8"], 80),
        (["int8"], 90),
    ]
    assert "scale<float32, TIMES=2>  sm_80" in capsys.readouterr().out
    assert main(["compile", *arguments, "--dtypes", "float32"]) == 1
    output = capsys.readouterr().out
    assert 'identifier "TIMES" is undefined' in output
    assert "2 failed" in output


@needs_nvrtc
@pytest.mark.parametrize(("text", "status"), [(SCALE, 0), (BAD, 1), (WARNS, 1)])
def test_exit_status_is_1_for_a_planted_fault(text: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "own.cu").write_text(text)
    assert (
        main(
            ["compile", "--file", str(tmp_path / "own.cu"), "--kernels", "scale", "--arch", "90", "--dtypes", "float32"]
        )
        == status
    )


# The command line -----------------------------------------------------------------------------------------------------


def test_architectures_that_this_nvrtc_lacks_are_skipped() -> None:
    assert choose_architectures(None, (75, 80, 90, 100, 120), "13.0") == ([75, 80, 90, 100, 120], [70, 86, 89])
    assert choose_architectures([70, 90, 90], (75, 90), "13.0") == ([90], [70])
    assert choose_architectures([61], (50, 61, 90), "12.9") == ([61], [])


@needs_nvrtc
def test_a_skipped_architecture_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cupyops.commands.compile.supported_architectures", lambda: (80, 90))
    assert main(["compile", "--arch", "80,120", "--kernels", "gelu_forward", "--dtypes", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"skipped sm_120: NVRTC \d+\.\d+ does not compile for it", lines[0])
    assert [line.split()[2] for line in lines[2:-1]] == ["sm_80", "sm_80"]


@needs_nvrtc
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "71"], "--arch 71: there is no such architecture here; NVRTC"),
        (["--arch", "sm90"], "expected compute capabilities such as 80,90 (for 8.0 and 9.0), got 'sm90'"),
        (["--arch", "80,"], "expected a comma-separated list"),
        (
            ["--kernels", "gelu_forwrad"],
            "--kernels gelu_forwrad: there is no such kernel; did you mean 'gelu_forward'?",
        ),
        (["--kernels", "gelu_forward", "--dtypes", "int8"], "--dtypes int8: none of these kernels takes them"),
        (["--dtypes", "flaot32"], "got 'flaot32'; did you mean 'float32'?"),
        (["--jobs", "0"], "expected a whole number of at least 1, got '0'"),
        (["--json", "absent/rows.json"], "--json absent/rows.json: there is no folder absent"),
        (["--define", "N=1"], "--define belongs to --file"),
        (["--file", "own.cu"], "--file needs --kernels"),
        (["--file", "absent.cu", "--kernels", "scale"], "--file absent.cu: No such file"),
        (
            ["--file", "own.cu", "--kernels", "scael"],
            "--file own.cu: no __global__ function 'scael' in the text; it has scale;",
        ),
        (["--file", "own.cu", "--kernels", "scale", "--define", "N"], "expected NAME=INTEGER, got 'N'"),
        (["--file", "binary.cu", "--kernels", "scale"], "must be UTF-8"),
        (["--file", "strange.cu", "--kernels", "k"], 'strange.cu: #include "absent.cuh": no such header is known'),
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
    (tmp_path / "own.cu").write_text(SCALE)
    (tmp_path / "binary.cu").write_bytes(b"\xff\xfe")
    (tmp_path / "strange.cu").write_text(
        '#include "absent.cuh"\nextern "C" __global__ void k(scalar_t* x) {\n#ifdef ABSENT\nx[0] = 1;\n#endif\n}'
    )
    with pytest.raises(SystemExit) as status:
        main(["compile", *arguments])
    assert status.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith("python -m cupyops compile: error: ")
    assert words in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


@needs_nvrtc
def test_nothing_left_to_compile_for_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cupyops.commands.compile.supported_architectures", lambda: (75, 80))
    with pytest.raises(SystemExit, match="2"):
        main(["compile", "--arch", "70,120"])
    assert "--arch 70,120: nothing is left to compile for" in capsys.readouterr().err


def test_without_nvrtc_the_command_says_what_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> tuple[int, int]:
        raise MissingDependencyError(f"CUDA kernels need CuPy. Install it with: {pip_install('cuda12')}")

    monkeypatch.setattr("cupyops.commands.compile.nvrtc_version", absent)
    with pytest.raises(SystemExit, match="2"):
        main(["compile"])
    assert capsys.readouterr().err.endswith(f"Install it with: {pip_install('cuda12')}\n")


@needs_nvrtc
def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    with subprocess.Popen(
        command("--kernels", "gelu_*", "--arch", "90", "--jobs", "1"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("kernel")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=HANG) == 141


@pytest.mark.parametrize("arguments", [["--help"], ["compile", "--help"], ["doctor", "--help"], ["--version"]])
def test_help_needs_nothing_installed(arguments: list[str]) -> None:
    # -S leaves out every installed package.
    result = subprocess.run(
        [sys.executable, "-S", "-m", "cupyops", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(("usage: python -m cupyops", "cupyops 0."))


def test_a_command_is_an_add_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    class Greet:
        @staticmethod
        def add_parser(commands: Any) -> None:
            parser = commands.add_parser("greet")
            run: Callable[[argparse.Namespace], int] = lambda _: 7  # noqa: E731 (the protocol in one line)
            parser.set_defaults(run=run, parser=parser)

    monkeypatch.setattr("cupyops.__main__.COMMANDS", (Greet,))
    assert main(["greet"]) == 7


def test_one_error_of_all_dtypes_and_architectures_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.cu").write_text("__global__ void f(const scalar_t* x, scalar_t* y, int n) { y[0] = z; }")
    given = ["compile", "--file", str(tmp_path / "f.cu"), "--kernels", "f", "--arch", "80,90", "--jobs", "1"]
    assert main([*given, "--dtypes", "float32,float64"]) == 1
    printed = capsys.readouterr().out
    assert printed.count('identifier "z" is undefined') == 1
    assert printed.count("FAILED as f<float32> for sm_80") == 3
    assert "4 failed" in printed
