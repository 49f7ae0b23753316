"""The suite of kernels with known faults: found faults are counted, and the page has the results."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import check_op_recall, race_suite

DOCS = Path(__file__).resolve().parents[2] / "docs"
KERNEL = """typedef int data_t;
#include "indigo.h"
__global__ void test_kernel(int* nindex, int* nlist, data_t* data1, data_t* data2, int numv) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < numv) { CODE }
}
int main() { test_kernel<<<1, 1>>>(0, 0, 0, 0, 0); return 0; }
"""


@pytest.mark.thorough
@pytest.mark.simulator
def test_planted_faults_are_found_and_right_kernels_raise_no_alarm(tmp_path: Path) -> None:
    indigo = tmp_path / "indigo"
    for folder in ("indigo_sources/own", "indigo_include", "input"):
        (indigo / folder).mkdir(parents=True)
    (indigo / "indigo_include" / "indigo.h").write_text("#include <cstdio>\n")
    for name in race_suite.GRAPHS:
        np.array([3, 2, 0, 1, 2, 2, 1, 2], np.int32).tofile(indigo / "input" / f"{name}.egr")
    codes = {"sum": "atomicAdd(data1, nlist[0]);", "sum_atomicBug": "data1[0] += nlist[0];"}
    codes["sum_boundsBug"] = "data1[i] = nindex[i + 2];"
    for name, code in codes.items():
        (indigo / "indigo_sources" / "own" / f"{name}.cu").write_text(KERNEL.replace("CODE", code))
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    page.write_text("<!-- figures: begin -->\n<!-- figures: end -->\n")
    assert race_suite.main([str(tmp_path), "--jobs", "1", "--out", str(out), "--page", str(page)]) == 0
    files = json.loads(out.read_text())["files"]
    found = {name: set(row["runs"].values()) for name, row in files.items()}
    assert found == {"sum": {"none"}, "sum_atomicBug": {"race"}, "sum_boundsBug": {"bounds"}}
    assert "| no fault | 1 | 0 | 1 | 0 |" in page.read_text()


@pytest.mark.parametrize(("page", "of"), [("known_faults.md", race_suite), ("checking.md", check_op_recall)])
def test_the_page_has_the_results(page: str, of: object) -> None:
    results = json.loads(of.RESULTS.read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    assert of.table(results) in (DOCS / page).read_text(encoding="utf-8")  # type: ignore[attr-defined]
