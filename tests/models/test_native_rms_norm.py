"""native(): ATen's fused RMS norm. PyTorch has it on a GPU only; on CPU tensors these tests register its kernels themselves."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import autograd_bridge as ab
import cupyops
from cupyops.launch.recording import Launch, recorded
from cupyops.torch import native
from cupyops.torch.models import aten, rms_norm
from tests.support import with_floats

from .overriding import FLOATS, PLACES, about, inside, names

FORWARD, BACKWARD = "fused_rms_norm", "fused_rms_norm_backward"
ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float32: 4e-6, torch.float64: 1e-13}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launches(place: str) -> Iterator[list[Launch]]:
    """F.rms_norm runs on this project's kernels; gives the launches."""
    if place == "cuda":
        with native(), recorded() as found:
            yield found
        return
    composite = torch.library.get_kernel("aten::_fused_rms_norm", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = lambda *args: composite.call_boxed(keys, *args)  # noqa: E731
        library.impl("_fused_rms_norm", aten.fused_rms_norm(own), "CPU")
        library.impl("_fused_rms_norm_backward", aten.fused_rms_norm_backward(refused), "CPU")
    try:
        with cupyops.simulate(sanitize=True), recorded() as found:
            yield found
    finally:
        library._destroy()


class Marked(Tensor):
    """A subclass without a dispatch of its own."""


def refused(*args: Any) -> Any:
    raise NotImplementedError("PyTorch's own kernel")


def formula(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    row = tuple(range(-len(shape), 0))
    y = x * torch.rsqrt(x.square().mean(row, keepdim=True) + eps)
    return y if weight is None else y * weight


@pytest.mark.parametrize(("weighted", "dtype"), with_floats([True, False]))
def test_results_and_gradients_are_the_formulas(
    place: str, launches: list[Launch], dtype: torch.dtype, weighted: bool
) -> None:
    x = torch.randn(3, 2, 5, 8, device=place, dtype=dtype, requires_grad=True)
    weight = torch.randn(5, 8, device=place, dtype=dtype, requires_grad=True) if weighted else None
    inputs = [x] if weight is None else [x, weight]
    y = F.rms_norm(x, (5, 8), weight, 1e-3)
    grad = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, inputs, grad)]
    suffix = "" if weighted else "_without_weight"
    sums = ["column_sums"] if weighted else []
    assert names(launches) == [FORWARD + suffix, FORWARD + suffix + "_backward", *sums]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    y = formula(exact[0], (5, 8), exact[1] if weighted else None, 1e-3)
    wanted = [y, *torch.autograd.grad(y, exact, grad.double())]
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, atol=8 * ROUNDING[dtype], rtol=8 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_are_those_of_the_operator(place: str, launches: list[Launch], dtype: torch.dtype) -> None:
    """The operator's backward computes 1/√(mean x² + eps) again, in another order of the sum, so gradients are near."""
    x = torch.randn(3, 2, 40, device=place, dtype=dtype, requires_grad=True)
    weight = torch.randn(40, device=place, dtype=dtype, requires_grad=True)
    found, wanted = F.rms_norm(x, (40,), weight), ab.rms_norm(x, 40, weight)
    assert torch.equal(found, wanted)
    grad = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, [x, weight], grad), torch.autograd.grad(wanted, [x, weight], grad), strict=True
    ):
        torch.testing.assert_close(a, b, atol=ROUNDING[dtype], rtol=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_statistics_are_wide(place: str, launches: list[Launch], dtype: torch.dtype) -> None:
    x = torch.randn(3, 2, 40, device=place, dtype=dtype)
    _, rstd = torch.ops.aten._fused_rms_norm(x, [40], None, 1e-3)
    assert launches
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert about(rstd) == ((3, 2, 1), wide, (2, 1), place)
    exact = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-3)
    rounding = 1e-14 if dtype == torch.float64 else 4e-7  # a result rounded to 16 bits would be off by 4e-4 at least
    torch.testing.assert_close(rstd.double(), exact, atol=0, rtol=rounding)


def test_the_default_eps_is_that_of_the_statistics(place: str, launches: list[Launch]) -> None:
    for dtype in FLOATS:
        x = torch.zeros(2, 8, device=place, dtype=dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        _, rstd = torch.ops.aten._fused_rms_norm(x, [8], None, None)
        torch.testing.assert_close(rstd, torch.full_like(rstd, torch.finfo(wide).eps ** -0.5))


def test_unwanted_gradients_are_left_out(place: str, launches: list[Launch]) -> None:
    x, weight = torch.randn(3, 8, device=place), torch.randn(8, device=place)
    _, rstd = torch.ops.aten._fused_rms_norm(x, [8], weight, None)
    for mask in ([True, True], [True, False], [False, True], [False, False]):
        found = torch.ops.aten._fused_rms_norm_backward(x, x, [8], rstd, weight, mask)
        assert [g is not None for g in found] == mask


def test_rows_of_other_layouts_and_no_rows(place: str, launches: list[Launch]) -> None:
    x, weight = torch.randn(6, 8, 4, device=place).transpose(1, 2), torch.randn(16, device=place)[::2]
    x.requires_grad_()
    y = F.rms_norm(x, (8,), weight, 1e-3)
    (grad,) = torch.autograd.grad(y.sum(), [x])
    wanted = formula(x, (8,), weight, 1e-3)
    torch.testing.assert_close(y, wanted, atol=2e-5, rtol=2e-5)
    assert y.is_contiguous()
    torch.testing.assert_close(grad, torch.autograd.grad(wanted.sum(), [x])[0], atol=2e-5, rtol=2e-5)
    none = torch.randn(0, 8, device=place, requires_grad=True)
    weight = torch.randn(8, device=place, requires_grad=True)
    y = F.rms_norm(none, (8,), weight)
    grads = torch.autograd.grad(y.sum(), [none, weight])
    assert [about(t)[0] for t in (y, *grads)] == [(0, 8), (0, 8), (8,)]
    assert not grads[1].any()


@pytest.mark.parametrize(
    "call",
    [
        lambda own, x: aten.fused_rms_norm(own)(x.int(), [8], None, None),
        lambda own, x: aten.fused_rms_norm(own)(x, [7], None, None),
        lambda own, x: aten.fused_rms_norm(own)(x, [8], torch.ones(8, dtype=torch.float64), None),
        lambda own, x: aten.fused_rms_norm(own)(x[:, :0], [0], None, None),
        lambda own, x: aten.fused_rms_norm(own)(x.as_subclass(Marked), [8], None, None),
        lambda own, x: aten.fused_rms_norm_backward(own)(x.int(), x, [8], x[:, :1], None, [True, False]),
        lambda own, x: aten.fused_rms_norm_backward(own)(x, x, [8], x[:, :2], None, [True, False]),
        lambda own, x: aten.fused_rms_norm_backward(own)(x, x, [8], x[:, :1].int(), None, [True, False]),
    ],
)
@pytest.mark.simulator
def test_other_calls_are_pytorchs(call: Any) -> None:
    with cupyops.simulate(), recorded() as launches, pytest.raises(NotImplementedError, match="PyTorch's own kernel"):
        call(refused, torch.randn(3, 8))
    assert not launches


def test_a_fault_of_the_kernel_is_told(place: str, launches: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise cupyops.LaunchError("the driver refused")

    x = torch.randn(3, 8, device=place)
    _, rstd = torch.ops.aten._fused_rms_norm(x, [8], None, None)
    monkeypatch.setattr(rms_norm, "forward", broken)
    monkeypatch.setattr(rms_norm, "backward", broken)
    with pytest.raises(cupyops.LaunchError, match="the driver refused"):
        F.rms_norm(x, (8,))
    with pytest.raises(cupyops.LaunchError, match="the driver refused"):
        torch.ops.aten._fused_rms_norm_backward(x, x, [8], rstd, None, [True, False])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("first", ["inside", "outside"])
def test_a_forward_and_its_backward_may_lie_on_two_sides_of_the_end(first: str, dtype: torch.dtype) -> None:
    x = torch.randn(6, 64, device="cuda", dtype=dtype, requires_grad=True)
    weight = torch.randn(64, device="cuda", dtype=dtype, requires_grad=True)
    wanted = [y := F.rms_norm(x, (64,), weight), *torch.autograd.grad(y.sin().sum(), [x, weight])]
    if first == "inside":
        with inside("cuda") as launches:
            y = F.rms_norm(x, (64,), weight)
        found = [y, *torch.autograd.grad(y.sin().sum(), [x, weight])]
    else:
        y = F.rms_norm(x, (64,), weight)
        with inside("cuda") as launches:
            found = [y, *torch.autograd.grad(y.sin().sum(), [x, weight])]
    assert names(launches) == ([FORWARD] if first == "inside" else [BACKWARD, "column_sums"])
    for a, b in zip(found, wanted, strict=True):
        assert about(a) == about(b)
        torch.testing.assert_close(a, b, atol=8 * ROUNDING[dtype], rtol=8 * ROUNDING[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_gpu_gives_what_pytorchs_gives(dtype: torch.dtype) -> None:
    x, grad = (torch.randn(6, 5, 64, device="cuda", dtype=dtype) for _ in range(2))
    weight = torch.randn(64, device="cuda", dtype=dtype)

    def calls() -> list[Tensor]:
        y, rstd = torch.ops.aten._fused_rms_norm(x, [64], weight, None)
        return [y, rstd, *torch.ops.aten._fused_rms_norm_backward(grad, x, [64], rstd, weight, [True, True])]

    wanted = calls()
    with inside("cuda") as launches:
        found = calls()
    assert names(launches) == [FORWARD, BACKWARD, "column_sums"]
    for a, b in zip(found, wanted, strict=True):
        assert about(a) == about(b)
        torch.testing.assert_close(a, b, atol=16 * ROUNDING[dtype], rtol=16 * ROUNDING[dtype])
