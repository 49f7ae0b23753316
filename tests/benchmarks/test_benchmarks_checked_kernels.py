"""The check of published programs: its sizes, its verdicts, and programs of our own that are right, wrong and in between."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import checked_kernels, checked_program
from benchmarks.checked_program import Run
from benchmarks.checked_sizes import Sizes, cut

REFERENCE = """
import torch
batch_size = 12
features = 3 * 64

class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return []
"""
PROGRAM = '''
import torch
from torch.utils.cpp_extension import load_inline

text = """
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    BODY
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    twice<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
module = load_inline("twice", "torch::Tensor run(torch::Tensor x);", text, functions=["run"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''


def test_sizes_are_halved_until_they_are_small_enough() -> None:
    text = "batch_size, n = 100, 1000\nshape = (48, 7)\nflag = True\ndef get_inputs(): return [512]\ndef other(): return 512"
    scope, changed = cut(text, Sizes(64, 4))
    assert (scope["batch_size"], scope["n"], scope["shape"], scope["flag"]) == (4, 64, (48, 7), True)
    assert (scope["get_inputs"](), scope["other"](), len(changed)) == ([64], 512, 3)
    scope, changed = cut(text, Sizes(None, None))
    assert (scope["batch_size"], scope["n"], changed) == (100, 1000, {})


CLEAN = Run("small", full=False, state="ran")
FAULTY = replace(CLEAN, found={"bounds": "k: out of bounds"})
RAISED = replace(CLEAN, state="raised", why="RuntimeError: 64 columns only")


@pytest.mark.parametrize(
    ("small", "large", "word", "why"),
    [
        (CLEAN, None, "right", ""),
        (FAULTY, None, "not judged", "found at cut sizes only: k: out of bounds"),
        (replace(FAULTY, full=True), None, "wrong", ""),
        (FAULTY, FAULTY, "wrong", ""),
        (FAULTY, CLEAN, "right", "at other sizes (small): a read or a write out of bounds"),
        (replace(CLEAN, constant=True), None, "not judged", "the reference gives the same result for other inputs"),
        (replace(FAULTY, constant=True, full=True), None, "wrong", ""),
        (RAISED, CLEAN, "right", "at other sizes (small): an error"),
        (RAISED, None, "not judged", RAISED.why),
        (replace(CLEAN, state="no reference"), CLEAN, "right", ""),
        (FAULTY, RAISED, "not judged", RAISED.why),
        (replace(CLEAN, state="slow", why="slow"), None, "not judged", "slow"),
    ],
)
def test_what_is_found_counts_at_the_largest_sizes_that_run(small: Run, large: Run | None, word: str, why: str) -> None:
    found = checked_program.verdict(small, large)
    assert (found.word, found.why) == (word, why)
    assert bool(found.found) == (word == "wrong")


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("body", "word", "kinds"),
    [
        ("if (i < n) y[i] = 2 * x[i];", "right", set()),
        ("if (i < n - 1) y[i] = 2 * x[i];", "wrong", {"unwritten"}),
        ("if (i < n) y[i] = 2 * x[i + 1];", "wrong", {"bounds"}),
        ("if (i < n) y[i] = 2 * x[i]; if (i < 2) y[0] = i;", "wrong", {"race"}),
        ("if (i < n) y[i] = 2 * x[n < 1000 ? 0 : i];", "right", set()),
    ],
)
def test_programs_of_our_own(body: str, word: str, kinds: set[str], tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("BODY", body), encoding="utf-8")
    row = checked_program.check(path, REFERENCE)
    assert row["whole"]
    assert row["verdict"]["word"] == word
    assert {*row["verdict"]["found"]} == kinds
    relies = "n < 1000" in body
    assert row["verdict"]["why"] == (
        "at other sizes (at most 64, 4 in a batch): another function than the reference" * relies
    )
    assert row["verdict"]["sizes"] == (
        "at most 64, 4 in a batch" if word == "right" and not relies else str(Sizes(None, None))
    )


@pytest.mark.thorough
@pytest.mark.simulator
def test_the_command_writes_the_results_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assets, page, out = tmp_path / "docs" / "assets", tmp_path / "page.md", tmp_path / "out.json"
    for folder in ("solutions", "problems"):
        (assets / folder).mkdir(parents=True)
    entry = {"level": 1, "problem_id": 6, "display_name": "ours", "torch_speedup": 1.5, "file": "0123456789"}
    (assets / "raw_data.json").write_text(json.dumps([entry]), encoding="utf-8")
    (assets / "problems" / "l1_p7.py").write_text(REFERENCE, encoding="utf-8")
    text = PROGRAM.replace("BODY", "if (i < n - 1) y[i] = 2 * x[i];")
    (assets / "solutions" / "0123456789.py").write_text(text, encoding="utf-8")
    page.write_text("# Page\n<!-- figures: begin -->\nold\n<!-- figures: end -->\n", encoding="utf-8")
    assert checked_kernels.main([str(tmp_path), "--out", str(out), "--page", str(page)]) == 0
    assert "1 programs, 1 are translated whole" in capsys.readouterr().out
    kind = checked_program.KINDS["unwritten"]
    line = f"| level 1 no. 7 | `01234567` | {kind} | the sizes of the problem | 1.50 |"
    assert line in page.read_text(encoding="utf-8")
    # A verdict of somebody who has read the program takes its place.
    results = json.loads(out.read_text(encoding="utf-8"))
    results["readings"] = {"0123456789": {"word": "not judged", "why": "for a reason"}}
    assert "| 1 | for a reason |" in checked_kernels.table(results)
    assert checked_kernels.counts(results)["are wrong"] == 0


def test_the_page_has_the_results() -> None:
    page = (checked_kernels.RESULTS.parents[2] / "docs" / "checked_kernels.md").read_text(encoding="utf-8")
    results = json.loads(checked_kernels.RESULTS.read_text(encoding="utf-8"))
    assert checked_kernels.table(results) in page
