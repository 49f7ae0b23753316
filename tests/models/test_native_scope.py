"""native() is a scope: it begins and ends exactly, without a word of PyTorch's, and refuses what it cannot do."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops.compile import toolchain
from cupyops.launch.recording import recorded
from cupyops.torch import native, set_native
from cupyops.torch.models import aten, overrides

from .overriding import PLACES, in_a_process, inside, names, overridden, tables

pytestmark = [pytest.mark.simulator, pytest.mark.usefixtures("nothing_is_left")]


def test_the_dispatch_tables_are_what_they_were() -> None:
    before = tables()
    for _ in range(3):
        with native(["cpu", "cuda"]):
            assert overridden()
            assert tables() != before
        assert tables() == before
        assert not overridden()


def test_blocks_nest_and_the_last_end_decides() -> None:
    first, second = native(["cpu"]), native(["cpu", "cpu"])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert overridden()
    second.__exit__(None, None, None)
    assert not overridden()


def test_an_exception_ends_a_block() -> None:
    with pytest.raises(ZeroDivisionError), native(["cpu"]):
        raise ZeroDivisionError
    assert not overridden()


def test_a_function_may_be_decorated() -> None:
    @native(["cpu"])
    def inner() -> bool:
        return overridden()

    assert inner()
    assert inner()
    assert not overridden()


def test_the_switch_counts_once_and_leaves_blocks_alone() -> None:
    set_native(True, ["cpu"])
    set_native(True, ["cpu"])
    assert overridden()
    set_native(False)
    assert not overridden()
    set_native(False)
    with native(["cpu"]):
        set_native(True, ["cpu"])
        set_native(False)
        assert overridden()
    set_native(True, ["cpu"])
    with native(["cpu"]):
        pass
    assert overridden()
    set_native(True, ["cuda"])
    assert not overridden()


def test_cpu_tensors_are_simulated_when_asked_for_alone() -> None:
    with native(["cpu"]), recorded() as launches:
        F.gelu(torch.ones(3))
    assert not launches
    with native(), cupyops.simulate(), recorded() as launches:
        F.gelu(torch.ones(3))
    assert not launches


def test_a_kernel_of_another_library_comes_back() -> None:
    called: list[str] = []
    own = torch.library.get_kernel("aten::gelu", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def kernel(x: Tensor, *, approximate: str = "none") -> Tensor:
        called.append(approximate)
        return own.call_boxed(keys, x, approximate=approximate)

    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("gelu", kernel, "CPU")
        with native(["cpu"]):
            assert overridden()
            assert not called
            F.gelu(torch.ones(3, dtype=torch.float64), approximate="tanh")  # not simulated: the kernel that was there
            assert called == ["tanh"]
        F.gelu(torch.ones(3))
        assert called == ["tanh", "none"]
    finally:
        library._destroy()


WARNINGS = """
import sys, warnings
import torch
from cupyops.torch import native
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    with native(["cpu"]):
        pass
    assert not seen, [str(w.message) for w in seen]
    assert not torch.is_warn_always_enabled()
    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", lambda x, **options: x, "CPU")
    assert any("other operators may also be overridden" in str(w.message) for w in seen), "an override no longer warns"
"""


def test_entering_gives_no_warning_and_takes_none_away() -> None:
    in_a_process(WARNINGS)


def test_other_warnings_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(own: Any) -> Any:
        warnings.warn("something else", UserWarning, stacklevel=1)
        return own

    monkeypatch.setitem(overrides.OVERRIDES["cpu"], "gelu", warns)
    with pytest.warns(UserWarning, match="something else"), native(["cpu"]):
        pass


def test_a_registration_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(own: Any) -> Any:
        raise RuntimeError("not today")

    before = tables()
    monkeypatch.setitem(overrides.OVERRIDES["cpu"], "native_layer_norm_backward", fails)
    with pytest.raises(RuntimeError, match="not today"), native(["cuda", "cpu"]):
        pass
    assert tables() == before
    with pytest.raises(RuntimeError, match="not today"):
        set_native(True, ["cpu"])
    assert tables() == before


def test_an_operator_without_a_kernel_on_the_device_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tables()[-4:]  # of RMS norm
    monkeypatch.setitem(overrides.OVERRIDES["cpu"], "_fused_rms_norm", aten.fused_rms_norm)
    monkeypatch.setitem(overrides.OVERRIDES["cpu"], "_fused_rms_norm_backward", aten.fused_rms_norm_backward)
    with native(["cpu"]):
        assert overridden()
        assert tables()[-4:] == before


def test_without_cupy_a_gpu_is_refused_at_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise cupyops.MissingDependencyError("CUDA kernels need CuPy")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(toolchain, "cupy", missing)
    with pytest.raises(cupyops.MissingDependencyError, match="CUDA kernels need CuPy"), native(["cpu", "cuda"]):
        pass


@pytest.mark.parametrize(
    ("devices", "error", "told"),
    [
        ("cuda", TypeError, r"native: `devices` must be a sequence of types of devices, got 'cuda'"),
        (7, TypeError, r"got 7"),
        ([torch.device("cpu")], TypeError, r"got \[device\(type='cpu'\)\]"),
        (["cpu", "mps"], ValueError, r"native: `devices` must name 'cuda' or 'cpu', got 'mps'"),
    ],
)
def test_wrong_devices_are_refused(devices: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told), native(devices):
        pass
    with pytest.raises(error, match=told.replace("native", "set_native")):
        set_native(True, devices)


# What the kernels do not take -----------------------------------------------------------------------------------------


class Marked(Tensor):
    """A subclass without a dispatch of its own."""


@pytest.mark.parametrize("place", PLACES)
def test_subclasses_stay_pytorchs(place: str) -> None:
    x = torch.randn(4, 8, device=place).as_subclass(Marked).requires_grad_()
    with inside(place) as launches:
        y = F.gelu(F.layer_norm(x, (8,)))
        y.sum().backward()
    assert type(y) is Marked
    # The gradient that reaches gelu_backward is no Marked, but its operand is.
    assert not launches


WRONG = {
    "gelu of integers": lambda at: F.gelu(torch.ones(3, dtype=torch.int64, device=at)),
    "gelu of complex numbers": lambda at: F.gelu(torch.ones(3, dtype=torch.complex64, device=at)),
    "an unknown form of gelu": lambda at: F.gelu(torch.ones(3, device=at), approximate="sigmoid"),
    "gelu_backward of two shapes": lambda at: torch.ops.aten.gelu_backward(
        torch.ones(3, device=at), torch.ones(4, device=at)
    ),
    "another normalized_shape": lambda at: F.layer_norm(torch.ones(3, 4, device=at), (5,)),
    "an empty normalized_shape": lambda at: F.layer_norm(torch.ones(3, 4, device=at), ()),
    "a weight of another shape": lambda at: F.layer_norm(torch.ones(3, 4, device=at), (4,), torch.ones(3, device=at)),
    "a bias of another shape": lambda at: F.layer_norm(
        torch.ones(3, 4, device=at), (4,), None, torch.ones(3, device=at)
    ),
    "layer norm of integers": lambda at: F.layer_norm(torch.ones(3, 4, dtype=torch.int32, device=at), (4,)),
    "a weight of another dtype": lambda at: F.layer_norm(
        torch.ones(3, 4, device=at), (4,), torch.ones(4, device=at, dtype=torch.float64)
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", WRONG)
def test_errors_are_pytorchs(place: str, case: str) -> None:
    with pytest.raises(Exception) as wanted:
        WRONG[case](place)
    with inside(place) as launches, pytest.raises(type(wanted.value)) as found:
        WRONG[case](place)
    assert not launches
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_a_kernel_of_this_project_is_told(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise cupyops.LaunchError("the driver refused")

    for name in ("gelu_body", "layer_norm_body", "layer_norm_backward_body"):
        monkeypatch.setattr(aten, name, broken)
    x = torch.randn(4, 8, device=place)
    mean, rstd = torch.native_layer_norm(x, (8,), None, None, 1e-5)[1:]
    with inside(place):
        for call in (
            lambda: F.gelu(x),
            lambda: F.layer_norm(x, (8,)),
            lambda: torch.ops.aten.native_layer_norm_backward(x, x, (8,), mean, rstd, None, None, [True] * 3),
        ):
            with pytest.raises(cupyops.LaunchError, match="the driver refused"):
                call()


@pytest.mark.parametrize("place", PLACES)
def test_out_overloads_stay_pytorchs(place: str) -> None:
    x, out = torch.randn(4, 8, device=place), torch.empty(4, 8, device=place)
    wanted = F.gelu(x)
    with inside(place) as launches:
        torch._C._nn.gelu(x, out=out)
    assert not launches
    assert torch.equal(out, wanted)


@pytest.mark.gpu
@pytest.mark.multi_gpu
def test_tensors_on_two_gpus_get_pytorchs_error() -> None:
    x, weight = torch.randn(4, 8, device="cuda:0"), torch.ones(8, device="cuda:1")
    with pytest.raises(RuntimeError) as wanted:
        F.layer_norm(x, (8,), weight)
    with native(), pytest.raises(RuntimeError) as found:
        F.layer_norm(x, (8,), weight)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("place", PLACES)
def test_the_kernels_of_a_training_step_are_named(place: str) -> None:
    x = torch.randn(4, 8, device=place, requires_grad=True)
    with inside(place) as launches:
        F.gelu(F.layer_norm(x, (8,))).sum().backward()
    kinds = [name.removesuffix("_apart") for name in names(launches)]
    assert kinds == ["layer_norm_forward", "gelu_forward", "gelu_backward", "layer_norm_backward"]
