"""The suites of kernels with known faults: what is found is found, and the page has the results."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import check_op_recall, race_indigo, race_sanitizer, race_suite

DOCS = Path(__file__).resolve().parents[2] / "docs"
KERNEL = """typedef int data_t;
#include "indigo.h"
__global__ void test_kernel(int* nindex, int* nlist, data_t* data1, data_t* data2, int numv) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < numv) { CODE }
}
int main() { test_kernel<<<1, 1>>>(0, 0, 0, 0, 0); return 0; }
"""
CODES = {
    "sum": "atomicAdd(data1, nlist[0]);",
    "sum_atomicBug": "data1[0] += nlist[0];",
    "sum_boundsBug": "data1[i] = nindex[i + 2];",
}
# In place of compute-sanitizer: it runs the command with the simulator in place of the GPU, and reports the kernels whose names say the
# fault that the tool is for, in the tool's words.
SANITIZER = """#!{python}
import json, subprocess, sys

WORDS = {{
    "memcheck": "Invalid __global__ read of size 4 bytes\\n=========     at {{}}(int *, int *)+0x90\\n"
    "=========     by thread (0,0,0) in block (0,0,0)",
    "racecheck": "Error: Race reported between Read access at void {{}}<float>(T1 *)+0x310\\n"
    "=========     and Write access at void {{}}<float>(T1 *)+0x4a0 [12 hazards]",
}}
BUGS = {{"memcheck": "boundsBug", "racecheck": "atomicBug"}}
if "--version" in sys.argv:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1")
    raise SystemExit
tool, log = (sys.argv[sys.argv.index(option) + 1] for option in ("--tool", "--log-file"))
command = sys.argv[sys.argv.index({python!r}) :]
given = command[command.index("benchmarks.race_sanitizer") + 1 :]
names = ["planted_bounds", "planted_race"] if len(given) == 1 else []
if given[1:] and {dies}:
    raise SystemExit(1)
if given[1:]:
    code = (
        "import sys, numpy, cupyops; from benchmarks import race_sanitizer as r\\n"
        "r._gpu = lambda: (numpy.array, lambda: None)\\n"
        "with cupyops.simulate(sanitize=False): raise SystemExit(r.main(sys.argv[1:]))"
    )
    subprocess.run([command[0], "-c", code, *given])
    kernels = dict(json.load(open(given[3])))
    ran = [place for place, state in map(json.loads, open(given[4])) if state == "ran"]
    names = [f"suite_kernel_{{place}}" for place in ran if BUGS[tool] in kernels[place]]
with open(log, "w") as file:
    for name in names if {honest} else []:
        print("========= " + WORDS[tool].format(name, name), file=file)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    indigo = tmp_path / "suite" / "indigo"
    for folder in ("indigo_sources/own", "indigo_include", "input"):
        (indigo / folder).mkdir(parents=True)
    (indigo / "indigo_include" / "indigo.h").write_text("#include <cstdio>\n")
    for name in race_indigo.INPUTS:
        np.array([3, 2, 0, 1, 2, 2, 1, 2], np.int32).tofile(indigo / "input" / f"{name}.egr")
    for name, code in CODES.items():
        (indigo / "indigo_sources" / "own" / f"{name}.cu").write_text(KERNEL.replace("CODE", code))
    return indigo.parent


@pytest.mark.thorough
@pytest.mark.simulator
def test_planted_faults_are_found_and_right_kernels_raise_no_alarm(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert race_suite.main([str(suite), "--jobs", "1", "--out", str(out)]) == 0
    files = json.loads(out.read_text())["files"]
    found = {name: set(row["runs"].values()) for name, row in files.items()}
    assert found == {"sum": {"none"}, "sum_atomicBug": {"race"}, "sum_boundsBug": {"bounds"}}
    assert "| none | 1 | 0 |" in capsys.readouterr().out


def sanitizer(folder: Path, *, honest: bool = True, dies: bool = False) -> str:
    path = folder / "compute-sanitizer"
    path.write_text(SANITIZER.format(python=sys.executable, honest=honest, dies=dies))
    path.chmod(0o755)
    return str(path)


@pytest.mark.thorough
@pytest.mark.simulator
def test_reports_of_compute_sanitizer_are_those_of_the_kernels_that_they_name(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [str(suite), "--compute-sanitizer", sanitizer(tmp_path), "--out", str(out)]
    assert race_suite.main(command) == 0
    results = json.loads(out.read_text())
    rows = {name: row["runs"]["DAG_5n_5e"] for name, row in results["files"].items()}
    assert rows == {
        "sum": {"memcheck": "none", "racecheck": "none"},
        "sum_atomicBug": {"memcheck": "none", "racecheck": "race"},
        "sum_boundsBug": {"memcheck": "bounds", "racecheck": "none"},
    }
    assert results["versions"]["compute-sanitizer"] == "2025.3.1"


def test_a_sanitizer_that_misses_the_planted_fault_measures_nothing(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = [str(suite), "--compute-sanitizer", sanitizer(tmp_path, honest=False), "--out", str(out)]
    assert race_suite.main(command) == 2
    assert "racecheck did not report the planted fault" in capsys.readouterr().err
    assert not out.exists()
    assert race_suite.main([str(suite), "--compute-sanitizer", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert "comes with the CUDA toolkit" in capsys.readouterr().err


def test_kernels_whose_process_dies_are_not_called_found_nothing(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [str(suite), "--compute-sanitizer", sanitizer(tmp_path, dies=True), "--out", str(out)]
    assert race_suite.main(command) == 0
    rows = race_suite._of_tools(race_indigo, json.loads(out.read_text()), ["memcheck"])
    assert race_suite._cell([rows.get("sum")], race_indigo.INPUTS) == "0 (1 not runnable)"


def test_a_name_in_a_report_is_that_of_a_function(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "========= COMPUTE-SANITIZER\n========= Warning: init of sum failed\n"
        "========= Error: Race reported between Write access at void sum<float, (int)256>(T1 *)+0x310 in a.cu:4\n"
        "=========     and Read access at sum2(int *)+0x4a0 [12 hazards]\n"
        "========= Invalid __global__ write of size 4 bytes\n=========     at sum3+0xa0\n"
    )
    found = race_sanitizer.reported(log)
    assert found["sum"].startswith("Error: Race")
    assert found["sum2"] == found["sum"]
    assert found["sum3"].startswith("Invalid")
    assert "init" not in found


def test_what_one_tool_finds_counts_where_another_does_not_run() -> None:
    runs = {given: {"memcheck": "bounds", "racecheck": "not runnable"} for given in race_indigo.INPUTS}
    results = {"files": {"sum": {"runs": runs}}}
    cells = [
        race_suite._cell([race_suite._of_tools(race_indigo, results, tools)["sum"]], race_indigo.INPUTS)
        for tools in (["memcheck", "racecheck"], ["memcheck"], ["racecheck"])
    ]
    assert cells == ["1", "1", "0 (1 not runnable)"]


def test_a_folder_without_a_suite_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert race_suite.main([str(tmp_path)]) == 2
    assert "has none of the suites: The Indigo suite, HeCBench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("known_faults.md", race_suite.page),
        ("checking.md", lambda: check_op_recall.table(json.loads(check_op_recall.RESULTS.read_text("utf-8")))),
    ],
)
def test_the_page_has_the_results(page: str, text: object) -> None:
    assert text() in (DOCS / page).read_text(encoding="utf-8")  # type: ignore[operator]
