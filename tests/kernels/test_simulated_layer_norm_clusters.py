"""The longest rows of layer normalisation, on GPUs with and without room for a cluster of sixteen blocks."""

import pytest
import torch

import cupyops
from cupyops.errors import LaunchError
from cupyops.ops.layer_norm import body
from tests.kernels.layer_norm_ways import EPS

pytestmark = pytest.mark.simulator

N = 131_080  # elements of 16 bits that take a cluster of sixteen


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("room", "add"), [(True, False), (True, True), (False, True)], ids=["room-norm", "room-sum", "no-room-sum"]
)
def test_a_gpu_without_room_for_sixteen_blocks_reads_the_row_twice(
    room: bool, add: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def at_once(kernel, types, otherwise, device):  # type: ignore[no-untyped-def]
        asked.append(kernel.geometry.cluster)
        if kernel.geometry.cluster > 8 and not room:
            raise LaunchError("no cluster of sixteen blocks fits this GPU")
        return 1

    monkeypatch.setattr(body, "at_once", at_once)
    monkeypatch.setattr(body.layer_norm_config, "FEW_BACKWARD", (0, 0))
    monkeypatch.setattr(body.driver, "capability", lambda device: 90)
    torch.manual_seed(0)
    x, g, more = (torch.randn(3, N).bfloat16() for _ in range(3))
    grad_sum = more if add else None
    weight = torch.randn(N)
    var, mean = torch.var_mean(x.float(), 1, correction=0)
    stats = torch.stack((mean, torch.rsqrt(var + EPS)))[..., None]
    with cupyops.simulate():
        call = body._backward.__wrapped__(g, x, stats, weight, grad_sum, (N,), (True, True, True))
        got = body._run_backward(call, g, x, stats, weight, grad_sum, (N,), (True, True, True))
    assert asked[0] == 16
    names = [launch.kernel.name for launch in call.launches]
    assert names[0] == ("layer_norm_backward_ring" if room else "layer_norm_backward_streaming")
    wanted = torch.ops.aten.native_layer_norm_backward(
        g.float(), x.float(), [N], stats[0], stats[1], weight, weight, [True, True, True]
    )
    if add:
        wanted = wanted[0] + more.float(), *wanted[1:]
    for a, b, near in zip(got, wanted, (0.01, 1e-4, 1e-4), strict=True):
        assert float((a.float() - b).abs().max() / b.abs().max()) < near


def test_a_ring_of_float32_rows_without_a_weight_fits_its_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel then keeps ones where the weight would be."""
    monkeypatch.setattr(body.layer_norm_config, "FEW_BACKWARD", (0, 0))
    monkeypatch.setattr(body.driver, "capability", lambda device: 90)
    n = 65_544
    x, g = (torch.randn(5, n) for _ in range(2))
    var, mean = torch.var_mean(x, 1, correction=0)
    stats = torch.stack((mean, torch.rsqrt(var + EPS)))[..., None]
    with cupyops.simulate(sanitize=True):
        call = body._backward.__wrapped__(g, x, stats, None, None, (n,), (True, True, True))
        got = body._run_backward(call, g, x, stats, None, None, (n,), (True, True, True))
    assert call.launches[0].kernel.name == "layer_norm_backward_ring"
    ones = torch.ones(n)
    wanted = torch.ops.aten.native_layer_norm_backward(g, x, [n], stats[0], stats[1], ones, ones, [True, True, True])
    for a, b in zip(got, wanted, strict=True):
        assert float((a - b).abs().max() / b.abs().max()) < 1e-5


@pytest.mark.sample(1)
@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize(
    ("n", "dtype", "ahead"),
    [(65_544, torch.float32, True), (102_408, torch.float32, False), (65_544, torch.bfloat16, True)],
)
def test_a_sum_of_long_rows_fits_its_shared_memory(
    n: int, dtype: torch.dtype, ahead: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a weight, the kernel keeps ones and zeros where weight and bias would be."""
    monkeypatch.setattr(body.layer_norm_config, "FEW_FORWARD", (0, 0))
    monkeypatch.setattr(body.driver, "capability", lambda device: 90)
    x, residual = (torch.randn(5, n).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(n).to(dtype) if weighted else None for _ in range(2))
    with cupyops.simulate(sanitize=True):
        call = body.forward_call.__wrapped__(x, residual, weight, bias, (n,), None)
        y, s, _ = body.run_forward(call, x, residual, weight, bias, EPS)
    config = body.forward_config(n, str(dtype).removeprefix("torch."), 2 * dtype.itemsize, dtype.itemsize, 90, 4)
    assert call.launches[0].kernel.name == "layer_norm_forward_wide"
    assert config.sum_ahead == ahead
    assert torch.equal(s, x + residual)
    right = torch.nn.functional.layer_norm(
        s.float(), (n,), *(None if a is None else a.float() for a in (weight, bias)), EPS
    )
    assert float((y.float() - right).abs().max() / right.abs().max()) < (1e-5 if dtype == torch.float32 else 0.005)


@pytest.mark.parametrize("room", [True, False])
def test_a_gpu_without_room_for_sixteen_blocks_has_eight_that_hold_the_sum(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(kernel, types, otherwise, device):  # type: ignore[no-untyped-def]
        if kernel.geometry.cluster > 8 and not room:
            raise LaunchError("no cluster of sixteen blocks fits this GPU")
        return 1

    monkeypatch.setattr(body, "at_once", at_once)
    monkeypatch.setattr(body.driver, "capability", lambda device: 90)
    x = torch.empty(64, 262_144).bfloat16()
    call = body.forward_call.__wrapped__(x, x, None, None, (262_144,), None)
    kernel = call.launches[0].kernel
    wanted = ("layer_norm_forward_wide", 16) if room else ("layer_norm_forward", 8)
    assert (kernel.name, kernel.geometry.cluster) == wanted
