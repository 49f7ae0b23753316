"""check_op finds each planted fault of an operator by the check for it, and by no other."""

from functools import cache

import pytest
import torch
from torch import Tensor

from cupyops.commands.compile import compile_job
from cupyops.torch import CHECKS, check_op
from cupyops.torch.check import running
from tests.torch import faulty_gpu, faulty_scale
from tests.torch import faulty_ops as faulty
from tests.torch.faulty_hidden import HIDDEN_BY_SAMPLES
from tests.torch.faulty_ops import Mix
from tests.torch.finding import assert_found, failing, samples
from tests.torch.planted import ALONE, HIDDEN, OF_TWO_SAMPLES, PLANTED, PLANTED_ON_A_GPU

COMPILED = cache(compile_job)

# What the other backends do not show; tracing and compiling take a GPU's time, and are of no GPU.
ON_A_GPU = ["guard_bands", "inputs_kept", "written", "determinism", "values", "gradients", "strides", "misaligned"]
ON_A_GPU += ["gradient_strides", "autocast", "side_stream", "threads", "second_device", "graph_replay"]


@pytest.fixture(autouse=True)
def _compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC compiles each text once: most faults leave the kernels as they are."""
    monkeypatch.setattr(running, "compile_job", COMPILED)


@pytest.mark.sample(2)
@pytest.mark.simulator
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_fails_the_check_that_is_for_it_and_no_other(fault: str) -> None:
    name, parts, words = PLANTED[fault]
    assert_found(failing(parts().operator(), "simulator", count=2 if fault in OF_TWO_SAMPLES else 1), name, words)


@pytest.mark.simulator
@pytest.mark.parametrize("fault", HIDDEN)
def test_a_fault_that_the_sample_hides_fails_the_check_of_other_sizes_or_data(fault: str) -> None:
    name, body, sample, words = HIDDEN[fault]
    checks = ["written", "values", "gradients", "sizes", "dimensions", "numbers", "data", "vmap"]
    checks = [c for c in checks if name == "sizes" or c != "vmap"]
    report = check_op(Mix(body=body).operator(), sample(), raises=False, backends=["simulator"], checks=checks)
    assert_found({row.check: row.words for row in report.failed}, name, words)


@pytest.mark.simulator
@pytest.mark.parametrize("name", ALONE)
def test_a_check_that_stands_on_others_finds_their_faults_when_it_runs_alone(name: str) -> None:
    parts, words = ALONE[name]
    assert_found(failing(parts().operator(), "simulator", name), name, words)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", PLANTED_ON_A_GPU)
def test_a_fault_of_the_gpu_fails_the_check_that_is_for_it_and_no_other(fault: str) -> None:
    name, parts, words = PLANTED_ON_A_GPU[fault]
    # The sanitizer would find the first one on the CPU.
    assert_found(failing(parts().operator(), "cuda", ON_A_GPU), name, words)


@pytest.mark.multi_gpu
@pytest.mark.gpu
def test_an_operator_of_one_gpu_fails_on_the_second() -> None:
    found = failing(Mix(body=faulty_gpu.on_the_first_gpu).operator(), "cuda", "second_device")
    assert_found(found, "second_device", "cuda:1.* Allocate on the tensors' device")


def test_faults_of_a_reference_are_found_without_a_kernel() -> None:
    other_dtype = Mix(reference=lambda x, w, factor: faulty.reference(x, w, factor).double())
    assert_found(
        failing(other_dtype.operator(), "reference"),
        "fakes",
        r"float32 on fake tensors \(of the body\), and torch.float64",
    )

    def wrong(x: Tensor, w: Tensor, factor: float) -> Tensor:
        return x + factor * x.detach() * w

    assert_found(failing(Mix(reference=wrong).operator(), "reference"), "gradcheck", "Jacobian mismatch")
    assert_found(
        failing(faulty.marked_in_the_function_alone(), "reference"),
        "differentiable",
        "output 1, `z`, takes a gradient where the operator is called plainly, and none through torch.ops",
    )


def test_a_product_that_is_split_by_rows_alone_fails_tensor_parallelism() -> None:
    x, weight = torch.randn(19, 7), torch.randn(5, 7)
    checks = ["sharding", "tensor_parallel", "fsdp"]
    op = faulty_scale.product_split_by_rows()
    report = check_op(op, (x, weight), raises=False, backends=["reference"], checks=checks)
    found = {row.check: f"{row.words} What to change: {row.change}" for row in report.failed}
    words = r"ColwiseParallel, .*\(19, 7\) as R, \(5, 7\) as S\(0\): 1 collectives, and the reference needs 0.* the rows of a"
    assert_found(found, "tensor_parallel", words)


@pytest.mark.simulator
def test_samples_are_left_as_they_are_even_by_a_faulty_operator() -> None:
    x, w, factor = samples()[0]
    before = x.clone(), w.clone()
    check_op(Mix(body=faulty.into_its_input).operator(), (x, w, factor), raises=False, backends=["simulator"])
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])


@pytest.mark.simulator
def test_a_right_operator_passes_every_check_that_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    given = [samples()[0], samples()[1][:2]]
    before = [[x.clone() if isinstance(x, Tensor) else x for x in args] for args in given]
    schema = "(Tensor x, Tensor w, float factor=0.25) -> Tensor"
    report = check_op(
        Mix(schema=schema, repeats=True, recompute=faulty.reference, inplace=faulty.in_place).operator(), given
    )
    assert not report.failed
    assert {row.check for row in report.skipped} == {"common"}, "it has one result"
    on_a_cpu = {c.name for c in CHECKS.values() if "simulator" in c.backends} - {"common"}
    assert {row.check for row in report.passed if row.backend == "simulator"} == on_a_cpu
    assert set(CHECKS) - on_a_cpu - {"common"} == {
        *("guard_bands", "side_stream", "second_device", "graph_replay"),
        "tensor_parallel",  # compares with the reference, on the backend of the reference
    }
    assert capsys.readouterr().out == f"{report}\n"
    for args, kept in zip(given, before, strict=True):
        assert all(torch.equal(x, k) if isinstance(x, Tensor) else x == k for x, k in zip(args, kept, strict=True))


@pytest.mark.gpu
def test_a_right_operator_passes_every_check_on_a_gpu() -> None:
    """GELU, which has a time to keep to: a minute."""
    from cupyops.torch.ops.gelu import gelu_operator

    x = torch.randn(37, 19, device="cuda")
    report = check_op(gelu_operator, [(x, "none"), (x, "tanh")])
    assert {row.check for row in report.skipped} <= {
        "second_device",
        "sanitizer",
        "defaults",
        "recompute",
        "common",
        "inplace",
    }  # it has none
    assert {row.check for row in report.rows} == {c.name for c in CHECKS.values() if "cuda" in c.backends}


def test_every_check_has_a_fault_that_is_planted() -> None:
    planted = [name for name, _, _ in (*PLANTED.values(), *PLANTED_ON_A_GPU.values())]
    planted += [name for names, _, _ in HIDDEN_BY_SAMPLES.values() for name in names.split()]
    assert {*planted, *ALONE, "second_device", "differentiable", "tensor_parallel"} == set(CHECKS)
