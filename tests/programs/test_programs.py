"""Kernels that are written from programs."""

import functools

import pytest
import torch

import cupyops
from cupyops.compile.compiler import OPTIONS
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError
from cupyops.launch import hooks
from cupyops.launch.kernel import Kernel, all_kernels
from cupyops.programs import elementwise as elementwise_text
from cupyops.programs.elementwise import Program
from cupyops.programs.expressions import parse
from cupyops.programs.row_config import ProgramConfig, config_of, kernel_of, work_of
from cupyops.programs.row_source import text_of
from cupyops.programs.rows import RowProgram
from cupyops.torch import elementwise, row_reduce
from tests.cases import FLOATS

SWISH = Program("swish", tuple(parse("s = 1 / (1 + exp(-x)); y = x * s", "swish")), ("x",), (), ("y",))


def test_the_text_says_the_program_and_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    op = elementwise("s = 1 / (1 + exp(-x))\ny = x * s", name="programs_test::swish")
    assert op.text == elementwise_text.text_of(SWISH)
    assert op.text.startswith("// s = 1 / (1 + exp(-x))\n// y = x * s\n//\n")
    op.show()
    assert capsys.readouterr().out == op.text + "\n"
    assert max(map(len, op.text.splitlines())) <= 150


def of_rows(
    name: str, program: str, inputs: tuple[str, ...], results: tuple[str, ...], **kinds: tuple[str, ...]
) -> RowProgram:
    found = {"rows": (), "indices": (), "columns": (), "scalars": (), **kinds}
    return RowProgram(name, tuple(parse(program, name)), inputs, results=results, **found)


ROWS = [
    of_rows("softmax", "m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r", ("x",), ("y",)),
    of_rows(
        "rms_norm_backward",
        """r = rsqrt(sum(x * x) / N + eps); d = sum(grad_y * weight * x) / N * r * r
        grad_x = r * (grad_y * weight - x * d); grad_weight = column_sum(grad_y * x * r)""",
        ("grad_y", "x"),
        ("grad_x", "grad_weight"),
        columns=("weight",),
        scalars=("eps",),
    ),
    of_rows(
        "cross_entropy",
        "m = max(x); s = sum(exp(x - m)); t = sum(j == target ? x : 0); loss = log(s) + m - t",
        ("x",),
        ("loss",),
        indices=("target",),
    ),
]


LENGTHS = (64, 4096, 65536, 400_000)


def config_for(program: RowProgram, n: int, dtype: str, capability: int = 90) -> ProgramConfig:
    return config_of(n, dtype, work_of(program, dict.fromkeys(program.inputs, DTYPES[dtype].itemsize)), capability)


def passes(program: RowProgram) -> int:
    return text_of(program).count("::pass(N, load__")


def test_reductions_that_need_one_another_are_apart_and_others_together() -> None:
    # softmax: maximum with sum, result; the norm's two sums in one, result; the loss has no elements.
    assert [passes(program) for program in ROWS] == [2, 2, 1]


def test_a_sum_of_exponentials_is_in_the_pass_of_its_maximum_and_no_other_is() -> None:
    """The exponent must be exactly that maximum's argument minus the maximum."""
    of = functools.partial(of_rows, "k", inputs=("x",), results=("y",))
    assert passes(of("z = x / 3; m = max(z); s = sum(exp( z-m )); y = m + log(s)")) == 1
    assert passes(of("m = max(x); e = exp(x - m); y = log(sum(e)) + sum(e * x)")) == 2
    assert passes(of("m = max(x); s = sum(exp(2 * x - m)); y = m + log(s)")) == 2
    assert passes(of("m = max(2 * x); s = sum(exp(x - m)); y = m + log(s)")) == 2
    assert passes(of("m = min(x); s = sum(exp(x - m)); y = m + log(s)")) == 2
    assert passes(of("m = max((x * 2)); s = sum(exp((x * 2 - m))); y = m + log(s)")) == 1
    assert passes(of("m = max(x < 1); s = sum(exp(x < 1 - m)); y = m + log(s)")) == 2  # x < (1 - m)
    assert passes(of("m = max(x > 0 ? x : 1); s = sum(exp(x > 0 ? x : 1 - m)); y = m + log(s)")) == 2


def test_the_kinds_of_values() -> None:
    assert ROWS[0].kinds() == {"m": "row", "e": "element", "r": "row", "y": "element"}
    assert ROWS[1].kinds()["grad_weight"] == "column"
    assert ROWS[2].kinds()["loss"] == "row"


def written_kernels() -> list[Kernel]:
    several = Program("several", tuple(parse("y = a * b + c; z = a - c", "several")), ("a", "b"), ("c",), ("y", "z"))
    found = []
    for program in (SWISH, several):
        text = elementwise_text.text_of(program)
        found.append(elementwise_text.alike_kernel(program, text))
        found += [elementwise_text.strided_kernel(program, text, *cut) for cut in ((2, 4, False), (3, 1, True))]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_what_is_written_compiles_without_a_warning_or_a_spill(dtype: torch.dtype) -> None:
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import compile_text, warnings_in

    name = str(dtype).removeprefix("torch.")
    kernels = written_kernels()
    for program in ROWS:
        # A row of a few threads; of a block; of a cluster; and read again in each pass.
        kernels += [kernel_of(program, text_of(program), config_for(program, n, name), name) for n in LENGTHS]
    for kernel in kernels:
        types = dict.fromkeys(kernel.signature.bindings, name)
        assert types in list(kernel.type_choices()), "what warmup() would compile"
        what = f"{kernel.describe(types)} {kernel.constants}"
        binary = compile_text(kernel.final_text(types), what, "sm_90", OPTIONS)
        assert warnings_in(binary.log) == [], what
        assert binary.resources[kernel.name][1] == 0, f"{what}: registers are spilled"


def test_nvrtc_reads_the_expressions_of_a_program_once_for_all_configs() -> None:
    """The simulator asks NVRTC about what decides its answer: the expressions, the types and the shared headers."""
    (program, other, _), types = ROWS, {"scalar_t": "float32"}
    kernels = [kernel_of(program, text_of(program), config_for(program, n, "float32"), "float32") for n in (1024, 4096)]
    first, second = (kernel.final_text(types) for kernel in kernels)
    assert first != second
    assert kernels[0].syntax(first) == kernels[1].syntax(second)
    halves = kernel_of(program, text_of(program), config_for(program, 64, "float16"), "float16")
    norm = kernel_of(other, text_of(other), config_for(other, 64, "float32"), "float32")
    edited = first.replace("max(", "min(")
    found = [kernels[0].syntax(first), halves.syntax(halves.final_text({"scalar_t": "float16"}))]
    found += [norm.syntax(norm.final_text(types)), kernels[0].syntax(edited)]
    assert len({*found}) == 4


@pytest.mark.simulator
def test_a_function_of_the_c_library_is_refused_in_the_simulator_as_by_nvrtc() -> None:
    """g++ takes it."""
    pytest.importorskip("cupy")
    op = elementwise("y = significand(x)", name="programs_test::host", reference=lambda x: x)
    with cupyops.simulate(), pytest.raises(CompileError, match="significand"):
        op(torch.ones(3))


def test_a_kernel_of_rows_is_compiled_ahead_for_its_own_dtype_alone() -> None:
    for program in ROWS:
        kernel = kernel_of(program, text_of(program), config_for(program, 512, "float32"), "float32")
        assert list(kernel.type_choices()) == [dict.fromkeys(kernel.signature.bindings, "float32")]


def test_kernels_ahead_are_found_by_warmup_before_the_first_call() -> None:
    op = row_reduce(
        "y = x * sum(x)", "grad_x = grad_y * sum(x) + sum(grad_y * x)", name="programs_test::ahead", ahead=[64, 4096]
    )
    assert not [k for k in hooks.KERNELS if k.name.startswith("ahead")], "an import makes kernels that no call needs"
    declared = [k for k in all_kernels() if k.name.startswith("ahead")]
    assert {k.name for k in declared} == {"ahead", "ahead_backward"}
    types = [tuple(set(types.values())) for k in declared for types in k.type_choices()]
    # Both lengths of both programs, and further kernels where a GPU without clusters needs another one.
    names = [str(d).removeprefix("torch.") for d in FLOATS]
    assert {name for (name,) in types} == set(names)
    assert all(types.count((name,)) >= 4 for name in names)
    assert len([k for k in all_kernels() if k.name.startswith("ahead")]) == len(declared)
    del op


def test_lengths_ahead_are_refused_where_they_are_given() -> None:
    with pytest.raises(ValueError, match=r"ahead_of: `ahead` must have lengths of rows, got \[64, 'long'\]"):
        row_reduce("y = x * sum(x)", name="programs_test::ahead_of", ahead=[64, "long"])  # type: ignore[list-item]


@pytest.mark.simulator
def test_rows_of_numbers_that_no_kernel_knows_are_refused_by_name() -> None:
    op = row_reduce("y = sum(x)", name="programs_test::of_floats")
    with pytest.raises(TypeError, match="of_floats: `x` must have dtype float16 .*, got complex64"):
        op(torch.ones(2, 3, dtype=torch.complex64))


def test_what_a_function_makes_for_several_passes_is_kept() -> None:
    def kept(program: str) -> frozenset[str]:
        return of_rows("k", program, ("x",), ("y",)).kept

    assert kept("e = tanh(x); s = sum(e); y = e / s") == {"e"}
    assert kept("e = tanh(x); s = sum(e); y = x / s") == set()  # only one pass reads e
    assert kept("e = 2 * x; s = sum(e); y = e / s") == set()
    # The first pass does not know the maximum, so it computes another value.
    assert kept("m = max(x); e = exp(x - m); s = sum(e); y = e / s") == set()
