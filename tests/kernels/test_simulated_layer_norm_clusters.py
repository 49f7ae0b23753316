"""The backward of the longest rows of layer normalisation, on GPUs with and without room for a cluster of sixteen blocks."""

import pytest
import torch

import cupyops
from cupyops.errors import LaunchError
from cupyops.ops.layer_norm import body
from tests.kernels.layer_norm_ways import EPS

pytestmark = pytest.mark.simulator

N = 131_080  # elements of 16 bits that take a cluster of sixteen


@pytest.mark.parametrize("room", [True, False])
def test_a_gpu_without_room_for_sixteen_blocks_reads_the_row_twice(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
    x, g = (torch.randn(3, N).bfloat16() for _ in range(2))
    weight = torch.randn(N)
    var, mean = torch.var_mean(x.float(), 1, correction=0)
    stats = torch.stack((mean, torch.rsqrt(var + EPS)))[..., None]
    with cupyops.simulate():
        call = body._backward.__wrapped__(g, x, stats, weight, None, (N,), (True, True, True))
        got = body._run_backward(call, g, x, stats, weight, None, (N,), (True, True, True))
    assert asked[0] == 16
    names = [launch.kernel.name for launch in call.launches]
    assert names[0] == ("layer_norm_backward_ring" if room else "layer_norm_backward_streaming")
    wanted = torch.ops.aten.native_layer_norm_backward(
        g.float(), x.float(), [N], stats[0], stats[1], weight, weight, [True, True, True]
    )
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
