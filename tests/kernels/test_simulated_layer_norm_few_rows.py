"""The backward of layer normalisation on few rows and on many, with the configs that the rules choose: equal bits."""

from typing import Any

import pytest
import torch

import cupyops
from cupyops.ops.layer_norm import body

pytestmark = pytest.mark.simulator


def kept_calls() -> dict[Any, Any]:
    """The configurations that the backward has cached, which know nothing of a limit that a test has changed."""
    function: Any = body._backward
    kept: dict[Any, Any] = function.kept
    return kept


@pytest.mark.sample(2)
@pytest.mark.parametrize("grad_sum", [False, True])
@pytest.mark.parametrize("n", [576, 896, 1152, 5632, 65544, 98304])
def test_the_cuts_of_backwards_give_few_rows_the_bits_of_many(
    n: int, grad_sum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even cuts with idle accesses, accesses of 16 bytes, the cut by which a multiprocessor holds the most rows, and rings of whole
    rows."""
    g, x, more = (torch.randn(3, n, dtype=torch.bfloat16) for _ in range(3))
    weight = torch.randn(n)
    mean, rstd = x.float().mean(1, keepdim=True), (x.float().var(1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    found = []
    for few in (body.layer_norm_config.FEW_BACKWARD, (0, 0)):
        monkeypatch.setattr(body.layer_norm_config, "FEW_BACKWARD", few)
        kept_calls().clear()
        given = more if grad_sum else None
        with cupyops.simulate():
            found.append(body.backward(g, x, torch.stack([mean, rstd]), weight, given, (n,), 1e-5, True, True, True))
    kept_calls().clear()
    assert torch.equal(found[0][0], found[1][0])
    normalized, w = (x.float() - mean) * rstd, g.float() * weight
    grad_x = rstd * (w - w.mean(1, keepdim=True) - normalized * (w * normalized).mean(1, keepdim=True))
    wanted = (grad_x + (more.float() if grad_sum else 0), (g.float() * normalized).sum(0), g.float().sum(0))
    for (a, *others), exact in zip(zip(*found, strict=True), wanted, strict=True):
        for one in (a, *others):
            torch.testing.assert_close(one.float(), exact, atol=2e-2, rtol=8e-3)


@pytest.mark.parametrize("n", [32_776, 57_344])
def test_the_cut_of_long_forwards_gives_few_rows_the_bits_of_many(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last access of a row of 32776 elements goes to one thread of the last block."""
    monkeypatch.setattr(body.driver, "capability", lambda device: 90)
    x, weight, bias = torch.randn(5, n).bfloat16(), torch.randn(n).bfloat16(), torch.randn(n).bfloat16()
    found = []
    for few in (body.layer_norm_config.FEW_FORWARD, (0, 0)):
        monkeypatch.setattr(body.layer_norm_config, "FEW_FORWARD", few)
        with cupyops.simulate(sanitize=True):
            call = body.forward_call.__wrapped__(x, None, weight, bias, (n,), None)
            found.append(body.run_forward(call, x, None, weight, bias, 1e-5)[0])
        assert call.launches[0].kernel.name == ("layer_norm_forward_wide" if few == (0, 0) else "layer_norm_forward")
    assert torch.equal(*found)
    right = torch.nn.functional.layer_norm(x.float(), (n,), weight.float(), bias.float(), 1e-5)
    torch.testing.assert_close(found[0].float(), right, atol=1e-2, rtol=8e-3)
