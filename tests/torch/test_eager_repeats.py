"""Repeated steps of eager calls, as :mod:`tests.torch.eager_repeats` sees them: they equal the launches of the body."""

import importlib.util
from typing import Any

import pytest
import torch

import autograd_bridge as bridge
from cupyops.torch import Operator
from cupyops.torch.core import operator as core
from cupyops.torch.core import repeated
from tests.support import alike, printed_by


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("what NVRTC would be asked for is asked by way of CuPy")
    return printed_by("tests.torch.eager_repeats", tmp_path_factory.mktemp("cache"))


def test_repeated_steps_are_those_of_the_body(seen: Any) -> None:
    """Kernels, grids, streams and the bytes of all arguments, for other tensors in every call."""
    assert len(seen["cases"]) == 11
    for name, found in seen["cases"].items():
        assert found == {"same": True, "results": True, "steps": ["repeat"]}, name


def test_a_record_does_not_import_dynamo(seen: Any) -> None:
    """The import takes seconds."""
    assert seen["Dynamo"] is False


def test_forward_and_backward_of_modules_launch_the_same_in_each_call(seen: Any) -> None:
    assert seen["modules"] == {"LayerNorm": True, "RMSNorm": True, "GELU": True}


def test_zeros_of_both_signs_are_different_numbers(seen: Any) -> None:
    zero, negative, one = (seen[f"scaled by {number}"][0] for number in (0.0, -0.0, 1.0))
    assert (zero[:8], negative[:8], one[:8]) == ("00000000", "00000080", "0000803f")


def test_another_layout_and_another_number_have_records_of_their_own(seen: Any) -> None:
    assert seen["another layout"] == [True, 4]
    assert seen["new numbers"] == 1


def test_an_argument_without_a_hash_gets_the_error_of_the_body(seen: Any) -> None:
    assert "`s` must be a number" in seen["no number"]


def test_functions_of_pytorch_are_called_again_under_the_same_autocast_alone(seen: Any) -> None:
    assert seen["under another autocast"] == ["body"]


def test_products_and_read_values_run_the_body(seen: Any) -> None:
    """TF32 may decide about a product, and a value about the steps after it."""
    assert seen["mixing"] == seen["reading"] == [True]


def test_a_call_on_another_gpu_than_the_current_is_not_recorded(seen: Any) -> None:
    """The repeated steps allocate on the current GPU."""
    assert seen["another GPU"] == 0


def test_recordings_and_debug_mode_see_the_launches(seen: Any) -> None:
    assert (seen["recorded"], seen["guarded"]) == (1, 2)


def test_the_records_of_an_operator_are_limited(seen: Any) -> None:
    assert seen["beyond the most"] == 0


def test_check_op_compares_the_steps_of_calls_on_a_gpu(seen: Any) -> None:
    found = seen["checked"]["steps"]
    assert "the body reads a value of a tensor" in found.pop("tests::reading")
    assert len(found) == 13
    assert set(found.values()) == {12}  # kinds of changes


def test_check_op_compares_bits_of_repeated_steps_on_a_gpu(seen: Any) -> None:
    compared = seen["checked"]["compared"]
    assert len(compared) == 6
    assert "float32, other values, on another stream, repeated" in [what for what, *_ in compared]
    assert all(names and repeated for _, names, repeated in compared)


def test_calls_through_the_dispatcher_on_a_gpu_repeat_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selective checkpoint and other modes call the registered operator."""
    kernels: dict[str, Any] = {}
    register = torch.library.Library.impl

    def told(library: Any, name: str, kernel: Any, key: str = "", **options: Any) -> Any:
        kernels[key] = kernel
        return register(library, name, kernel, key, **options)

    monkeypatch.setattr(torch.library.Library, "impl", told)
    monkeypatch.setattr(core, "repeated", lambda schema, body: torch.cos)
    operator = Operator(
        "cupyops_test::by_dispatcher(Tensor x) -> Tensor y", torch.sin, reference=torch.sin, repeats=True
    )
    x = torch.randn(3)
    assert torch.equal(kernels["CUDA"](x), x.cos())
    assert torch.equal(operator.op(x), x.sin())


@pytest.mark.gpu
@pytest.mark.parametrize("make", [bridge.LayerNorm, bridge.RMSNorm, lambda n: bridge.GELU()])
def test_on_a_gpu_repeated_steps_give_the_bits_of_the_body(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 72, device="cuda", dtype=torch.bfloat16)
    module = make(72).to("cuda", torch.bfloat16).requires_grad_(False)

    def results() -> list[torch.Tensor]:
        # Leaves of the current stream: autograd warns of a leaf that another stream has used.
        leaf, own = x.clone().requires_grad_(), {n: p.clone().requires_grad_() for n, p in module.named_parameters()}
        y = torch.func.functional_call(module, own, (leaf,))
        return [y, *torch.autograd.grad(y, [leaf, *own.values()], torch.ones_like(y))]

    first = [t.clone() for t in results()]
    monkeypatch.setattr(repeated, "AFTER", 2)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(4):
                for got, right in zip(results(), first, strict=True):
                    assert alike(got, right)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.cuda()):
        for got, right in zip(results(), first, strict=True):
            assert alike(got, right)


@pytest.mark.gpu
def test_on_a_gpu_batched_gradients_still_reach_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batched tensor has the shape and strides of a recorded call, and no memory."""
    monkeypatch.setattr(repeated, "AFTER", 2)
    x = torch.randn(6, 64, device="cuda", requires_grad=True)
    for _ in range(4):
        bridge.gelu(x).backward(torch.ones_like(x))
    grads = torch.randn(3, 6, 64, device="cuda")
    y = bridge.gelu(x)
    (found,) = torch.autograd.grad(y, x, grads, is_grads_batched=True, retain_graph=True)
    right = torch.stack([torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in grads])
    torch.testing.assert_close(found, right, rtol=0, atol=0)
