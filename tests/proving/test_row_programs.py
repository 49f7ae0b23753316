"""Row programs are inside for all rows of a config, planted faults are not, and every launch meets what proofs assume."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from cupyops import Kernel
from cupyops.launch import driver
from cupyops.programs.expressions import parse
from cupyops.programs.row_config import ProgramConfig, RowKernels, kernel_of
from cupyops.programs.row_launch import row_launch
from cupyops.programs.row_source import text_of
from cupyops.programs.rows import RowProgram
from cupyops.simulator import Simulator
from cupyops.testing import prove_bounds

pytest.importorskip("z3")
pytest.importorskip("cupy")
pytestmark = pytest.mark.simulator


def program(name: str, text: str, elements: tuple[str, ...], results: tuple[str, ...], **others: Any) -> RowProgram:
    others = {"rows": (), "indices": (), "columns": (), "scalars": (), **others}
    return RowProgram(name, tuple(parse(text, name)), elements, results=results, **others)


SCALE = program("scale", "r = sum(x * x); y = x * rsqrt(r) * w", ("x",), ("y",), columns=("w",))
SUMS = program(
    "sums", "r = sum(g * x); h = g - x * r; grad_w = column_sum(g * x)", ("g", "x"), ("h", "grad_w"), leads="x"
)
PLAIN = program("plain", "y = x * s", ("x",), ("y",), rows=("s",))
SMALL = ProgramConfig(64, 32, 4, 2, min_blocks=1, full=False, stream=False)
CONFIGS = {
    "registers": (SCALE, SMALL),
    "a full row": (SCALE, replace(SMALL, full=True)),
    "a row in turns": (SCALE, replace(SMALL, stream=True)),
    "a row of a block": (SCALE, replace(SMALL, row_threads=64, vectors=1)),
    "a cluster": (SCALE, replace(SMALL, row_threads=64, cluster=2, full=True)),
    "bulk copies": (SCALE, replace(SMALL, row_threads=64, stream=True, row_shared=1024, shared=4096)),
    "the next row": (PLAIN, replace(SMALL, prefetch=True)),
    "a block for each of few rows": (PLAIN, replace(SMALL, row_threads=64, few=True)),
    "sums over the rows": (SUMS, replace(SMALL, row_threads=64, prefetch=True, columns_held=True)),
    "sums in shared memory": (SUMS, replace(SMALL, row_threads=64, stream=True, sums_shared=1024, shared=4096)),
}


def made(of: str, old: str = "", new: str = "", **changed: Any) -> Kernel:
    """Returns the kernel of a config, with a changed text or another config, and with what the launches of the config meet."""
    of_program, config = CONFIGS[of]
    text = text_of(of_program)
    assert not old or text.count(old) == 1, text
    kernel = kernel_of(of_program, text.replace(old, new) if old else text, replace(config, **changed), "float32")
    kernel.assumed = kernel_of(of_program, text, config, "float32").assumed
    return kernel


# z3 thinks for 5 to 15 seconds about each of the first. The others are faults of a kind that a fault beside them has, too: a row's end,
# the rows' end, the next row, and the alignment of an access.
SLOW = {
    "bulk copies",
    "a row in turns",
    "sums in shared memory",
    "shared memory for an element less",
    "shared sums for an element less",
    "parts of another number of blocks",
    "a cluster's slice in each block",
    "the next row's number",
    "a stride of one element more",
    "accesses twice as wide",
    "an offset in the second pass",
}


def by_name(given: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in given]


@pytest.mark.parametrize("of", by_name(CONFIGS))
def test_a_row_program_is_inside_for_all_rows_of_its_config(of: str) -> None:
    (proof,) = prove_bounds(made(of))
    assert proof.answer == "inside", str(proof)


FAULTS = {
    "no check at the row's end": lambda: made("registers", full=True),
    "a stride of one element more": lambda: made("registers", "y_ + row__ * N", "y_ + row__ * (N + 4)"),
    "rows beyond the last": lambda: made(
        "a full row", "row__ = ::row_of_group(first__, M__)", "row__ = first__ + group_of_block()"
    ),
    "accesses twice as wide": lambda: made("a row of a block", vector_width=8),
    "an offset in the second pass": lambda: made("registers", "y_ + row__ * N", "y_ + row__ * N + 4"),
    "an access that is not aligned": lambda: made("a full row", "x_ + row__ * N, RO", "x_ + row__ * N + 1, RO"),
    "a thread too many for a row": lambda: made("a full row", vectors=3),
    "no check of the next row": lambda: made("the next row", "if (next__ < M__) load_next__", "load_next__"),
    "the next row's number": lambda: made("the next row", "(next__ < M__)", "(next__ <= M__)"),
    "shared memory for an element less": lambda: made("bulk copies", shared=4092),
    "shared sums for an element less": lambda: made("sums in shared memory", shared=4092),
    "parts of another number of blocks": lambda: made(
        "sums over the rows", "grad_w__sums(grad_w_, N, 0)", "grad_w__sums(grad_w_ + N, N, 0)"
    ),
    "a cluster's slice in each block": lambda: made("a cluster", cluster=4),
}


@pytest.mark.parametrize("fault", by_name(FAULTS))
def test_a_planted_fault_of_a_row_program_is_shown(fault: str) -> None:
    (proof,) = prove_bounds(FAULTS[fault]())
    assert proof.answer == "broken", str(proof)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_every_launch_meets_what_proofs_assume(dtype: str, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "capability", lambda device: capability)
    monkeypatch.setattr(RowKernels, "at_once", lambda *given: 264)
    for of in (SCALE, SUMS, PLAIN):
        kernels = RowKernels(of)
        types = dict.fromkeys((*of.inputs, *of.typed), dtype)
        for n in (1, 3, 8, 96, 197, 1000, 1024, 4096, 5000, 8192, 16384, 50257, 65536, 262144, 10**6, 2**31 - 2**16):
            for rows in (1, 7, 1000, 100_000):
                found = row_launch(kernels, types, rows, n, Simulator())
                names = ["M__", "N", "blocks__", *(["parts__"] if of is SUMS else [])]
                sizes = dict(zip(names, found.sizes, strict=True))
                if "STAGES" not in found.kernel.constants:
                    wrong = [c for c in found.kernel.assumed if not eval(c, {}, sizes)]
                    assert not wrong, (of.name, n, rows)


def test_a_row_longer_than_an_index_is_refused() -> None:
    types = dict.fromkeys((*PLAIN.inputs, *PLAIN.typed), "float16")
    with pytest.raises(ValueError, match="plain: `x` must have rows of at most 2147418112 elements, got 2147483640"):
        row_launch(RowKernels(PLAIN), types, 1, 2**31 - 8, Simulator())
