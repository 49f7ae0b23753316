"""The planted faults fit the texts they are planted in, and each kernel has as many as were promised."""

import re
from collections import Counter

import pytest

import kernels_cu
from tests.mutants.mutants import KNOWN, MUTANTS
from tests.mutants.mutate import ROOT, TESTS, broken
from tests.naive import without_naive

LEAST = 8


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.kernel}-{m.what}".replace(" ", "-"))
def test_what_a_mutant_replaces_stands_there_once(mutant) -> None:  # type: ignore[no-untyped-def]
    text = mutant.path_in(ROOT).read_text(encoding="utf-8")
    assert broken(text, mutant) != text


def test_every_kernel_is_broken_in_at_least_eight_ways() -> None:
    kernels = {
        name
        for text in kernels_cu.names()
        for name in re.findall(r"__global__[^;{}]*?\b(\w+)\(\s*\n", kernels_cu.source(text))
    }
    kernels = set(without_naive([*kernels]))
    assert {"gelu_forward", "layer_norm_backward_wide", "column_sums"} <= kernels
    counts = Counter(m.kernel for m in MUTANTS)
    assert {k: counts[k] for k in kernels if counts[k] < LEAST} == {}
    assert set(counts) <= kernels


def test_mutants_have_names_of_their_own_and_tests() -> None:
    names = Counter((m.kernel, m.what) for m in MUTANTS)
    assert [n for n, count in names.items() if count > 1] == []
    assert set(KNOWN) <= set(names)
    for stem in {m.stem or m.kernel.partition("_")[0] for m in MUTANTS}:
        assert any((ROOT / name.format(stem=stem)).exists() for name in TESTS[:4]), stem
