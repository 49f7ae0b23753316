"""The planted faults fit the texts they are planted in, and each kernel has as many as were promised."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import kernels_cu
from tests.mutants.matching import replace_once, tokens_of
from tests.mutants.mutants import KNOWN, MUTANTS
from tests.mutants.mutate import ROOT, TESTS, broken
from tests.naive import without_naive

LEAST = 8


KERNELS = pytest.mark.parametrize("kernel", sorted({m.kernel for m in MUTANTS}))


def misfits(kernel: str, text_of: Callable[[Path], str]) -> list[str]:
    """The mutants of a kernel that change nothing in their texts, or do not fit them, and why."""
    found = []
    for mutant in (m for m in MUTANTS if m.kernel == kernel):
        text = text_of(mutant.path_in(ROOT))
        try:
            found += [f"{mutant.what}: changes nothing"] if broken(text, mutant) == text else []
        except ValueError as error:
            found.append(f"{mutant.what}: {error}")
    return found


@KERNELS
def test_what_a_mutant_replaces_stands_there_once(kernel: str) -> None:
    assert misfits(kernel, lambda path: path.read_text(encoding="utf-8")) == []


@cache
def reformatted(path: Path) -> str:
    """A text with each token on a line of its own and a comment after it: what no formatter does, and more than any does."""
    return "  // the words of another day\n".join(t.text for t in tokens_of(path.read_text(encoding="utf-8")))


@KERNELS
def test_a_mutant_outlives_a_text_formatted_and_commented_anew(kernel: str) -> None:
    assert misfits(kernel, reformatted) == []


TEXT = """
#pragma unroll
for (int i = 0; i < n; ++i)  // every element
    y[i] = f(x[i], threads_of(n));
if (aligned) y[n - 1] = 0;
"""


@pytest.mark.parametrize(
    ("old", "new", "got"),
    [
        ("y[ i ]=f( x[i],", "y[i] = f(x[0],", "y[i] = f(x[0], threads_of(n));"),
        ("++i) /* each */ y", "++i)  // each\n    z", "for (int i = 0; i < n; ++i)  // each\n    z[i] = f("),
        ("$a[$i] = f($b[$i]", "$b[$i] = f($a[$i]", "x[i] = f(y[i], threads_of(n));"),
        ("threads_of(n", "threads_of(n + 1", "f(x[i], threads_of(n + 1));"),
        ("ds_of(n", "ds_of(m", "threads_of(m));"),
        ("if (ali", "if (not_ali", "if (not_aligned) y"),
        ("if (aligned)", "", "threads_of(n));\n y[n - 1] = 0;"),
        ("int i = 0; i < n", "\n#if N\nint i = 0; i < n", "for (\n#if N\nint i = 0; i < n; ++i)"),
    ],
)
def test_a_pattern_matches_tokens_and_names(old: str, new: str, got: str) -> None:
    assert got in replace_once(TEXT, old, new)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("y[", "z[", "2 times"),
        ("$a[$a]", "0", "0 times"),
        ("every element", "", "0 times"),
        ("hreads_o", "", "0 times"),
        ("i) y[j", "", "0 times"),
        ("// every element", "", "holds no code"),
        ("f($b[i]", "$c", "names \\$c"),
    ],
)
def test_a_pattern_that_does_not_fit_once_is_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace_once(TEXT, old, new)


def test_every_kernel_is_broken_in_at_least_eight_ways() -> None:
    kernels = {
        name
        for text in kernels_cu.names()
        for name in re.findall(r"__global__[^;{}]*?\b(\w+)\(\s*\n", kernels_cu.source(text))
    }
    kernels = set(without_naive([*kernels]))
    assert {"gelu_forward", "linear_gelu_sm90", "column_sums"} <= kernels
    counts = Counter(m.kernel for m in MUTANTS)
    kernels |= counts.keys() & {path.stem for path in (ROOT / "kernels_cu" / "shared").glob("*.cuh")}
    assert {k: counts[k] for k in kernels if counts[k] < LEAST} == {}
    # The constructs of texts for nvcc are not kernels of kernels_cu.
    kernels.add("constructs")
    assert counts["constructs"] >= LEAST
    assert set(counts) <= kernels


def test_mutants_have_names_of_their_own_and_tests() -> None:
    names = Counter((m.kernel, m.what) for m in MUTANTS)
    assert [n for n, count in names.items() if count > 1] == []
    assert set(KNOWN) <= set(names)
    for stem in {m.stem or m.kernel.partition("_")[0] for m in MUTANTS}:
        assert any((ROOT / name.format(stem=stem)).exists() for name in TESTS[:8]), stem


def test_a_mutant_is_not_hidden_by_what_was_imported_before_it(tmp_path: Path) -> None:
    """Every mutant survived then, since its tests ran on the unbroken texts."""
    shutil.copytree(ROOT / "kernels_cu", tmp_path / "kernels_cu", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kernels_cu" / "gelu.cu").write_text("broken", encoding="utf-8")
    code = "from tests.mutants import mutate; import cupyops, sys; mutate.enter(sys.argv[1]); import kernels_cu"
    code += "; print(kernels_cu.source('gelu'))"
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.strip() == "broken", found.stderr
