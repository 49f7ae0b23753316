"""Repeated launches of a call with fixed shapes equal the launches of the body."""

from typing import Any

import pytest
import torch

import autograd_bridge as bridge
from cupyops.launch import recording
from tests.models.test_compiled import codes_of, gradients, norm_of_gelu, operands
from tests.support import alike, printed_by


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return printed_by("tests.models.repeated", tmp_path_factory.mktemp("cache"))


def test_repeated_launches_are_those_of_the_body(seen: Any) -> None:
    """Kernels, grids, streams and the bytes of all arguments, for other tensors than those of the recorded call."""
    operators = {name: found for name, found in seen.items() if "::" in name}
    assert len(operators) == 11
    for name, found in operators.items():
        assert found == {"repeated": True, "same": True, "results": True}, name


def test_a_recording_sees_repeated_launches(seen: Any) -> None:
    assert seen["recorded"] == 1
    assert seen["repeated again"], "after a recording the launches are repeated again"


def test_debug_mode_makes_repeated_launches(seen: Any) -> None:
    assert seen["guarded"] == 2


def test_calls_of_symbolic_sizes_run_the_body(seen: Any) -> None:
    assert seen["not fixed"]


def test_a_body_whose_steps_may_change_runs_in_every_call(seen: Any) -> None:
    """It reads a value of a tensor, or returns a tensor that a call before returned."""
    assert seen["refused"] == [True, True]
    assert seen["one tensor twice"], "two arguments are one tensor in this call, and perhaps not in another"


def test_a_step_that_fails_does_not_run_a_body_again_that_has_written(seen: Any) -> None:
    assert seen["failed"] == ["repeat", 1]


def test_functions_of_pytorch_between_launches_are_called_again(seen: Any) -> None:
    """Views, products and changes in place, of the tensors of this call."""
    assert seen["mixed"] == [True] * 4


def test_an_operator_of_the_dispatcher_is_not_lost(seen: Any) -> None:
    """Some versions of PyTorch pass calls of ``torch.ops`` to function modes. In the others the body runs in every call."""
    assert seen["dispatched"][1:] == [True]


def test_a_thread_watches_its_own_launches() -> None:
    """Launches that another thread makes meanwhile are none of the body's."""
    import threading

    mine: list[Any] = []
    with recording.watched(mine):
        thread = threading.Thread(target=lambda: recording.submitted("variant", "arguments", (1, 1, 1)))
        thread.start()
        thread.join()
        recording.submitted("variant", "arguments", (2, 1, 1))
    recording.submitted("variant", "arguments", (3, 1, 1))
    assert [launch.grid for launch in mine] == [(2, 1, 1)]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_on_a_gpu_repeated_launches_give_the_bits_of_eager_mode(mode: str) -> None:
    """The first call records, the second repeats, and CUDA graphs capture what is repeated."""
    torch.compiler.reset()
    compiled = torch.compile(norm_of_gelu, fullgraph=True, mode=mode)
    for _ in range(5):
        inputs = operands("cuda")
        torch.compiler.cudagraph_mark_step_begin()
        found = [x.clone() for x in gradients(compiled, inputs)]
        for got, right in zip(found, gradients(norm_of_gelu, inputs), strict=True):
            assert alike(got, right)


@pytest.mark.gpu
def test_on_a_gpu_products_are_called_again() -> None:
    """Products of PyTorch stand between the launches of linear_gelu and of its gradient."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x, w, b: bridge.linear_gelu(x, w, b), fullgraph=True)
    for _ in range(4):
        inputs = [torch.randn(size, device="cuda", requires_grad=True) for size in ((2, 40, 64), (96, 64), (96,))]
        for got, right in zip(gradients(compiled, inputs), gradients(bridge.linear_gelu, inputs), strict=True):
            torch.testing.assert_close(got, right)


@pytest.mark.gpu
def test_on_a_gpu_the_second_call_repeats() -> None:
    torch.compiler.reset()
    x = torch.randn(8, 16, device="cuda")
    compiled = torch.compile(lambda x: bridge.gelu(x) + 1, fullgraph=True)
    _, (code,) = codes_of(lambda: compiled(x))
    assert "cupyops_direct('cupyops::gelu', 'cuda', globals()" in code
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = compiled(2 * x)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(found, bridge.gelu(2 * x) + 1, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.multi_gpu
def test_on_two_gpus_one_code_object_launches_on_each() -> None:
    torch.compiler.reset()
    compiled = torch.compile(norm_of_gelu, fullgraph=True)
    for _ in range(3):
        for device in ("cuda:0", "cuda:1"):
            inputs = operands(device)
            for got, right in zip(gradients(compiled, inputs), gradients(norm_of_gelu, inputs), strict=True):
                assert alike(got, right)
