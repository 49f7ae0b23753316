"""Layer normalisation as it is used: modules, PyTorch's machinery, determinism, arrays without PyTorch, sizes beyond 32
bits."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cupyops
from autograd_bridge import AddLayerNorm, LayerNorm, add_layer_norm, layer_norm, layer_norm_backward
from cupyops.programs.row_config import FEW_ROWS
from tests.operators.test_layer_norm import operands
from tests.support import alike


@pytest.mark.sample(4)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}])
def test_module_is_a_drop_in(device: str, options: dict[str, object]) -> None:
    ours, theirs = LayerNorm((3, 8), device=device, **options), nn.LayerNorm((3, 8), device=device, **options)  # type: ignore[arg-type]
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, nn.LayerNorm)
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 3, 8, device=device)
    torch.testing.assert_close(ours(x), theirs(x))
    theirs.load_state_dict(copy.deepcopy(ours).state_dict())
    both = AddLayerNorm((3, 8), device=device, **options)  # type: ignore[arg-type]
    both.load_state_dict(ours.state_dict())
    y, s = both(x, x)
    torch.testing.assert_close(y, theirs(x + x))
    assert alike(s, x + x)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_with_parameters(device: str, dynamic: bool) -> None:
    torch.compiler.reset()
    norm, both = LayerNorm(16, device=device), AddLayerNorm(16, device=device)

    def run(x: Tensor, r: Tensor) -> Tensor:
        y, s = both(norm(x * 2), r)
        return y + s

    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n in (3, 9):
        x, r = (torch.randn(n, 16, device=device, requires_grad=True) for _ in range(2))
        parameters = [*norm.parameters(), *both.parameters()]
        got = torch.autograd.grad(compiled(x, r).square().sum(), [x, r, *parameters])
        wanted = torch.autograd.grad(run(x, r).square().sum(), [x, r, *parameters])
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_per_sample_gradients(device: str) -> None:
    x, weight, bias = (t.detach() for t in operands(6, 10, torch.float64, device))

    def loss(f):  # type: ignore[no-untyped-def]
        return lambda x, w, b: (f(x, (10,), w, b) ** 2).sum()

    got, wanted = (
        torch.func.vmap(torch.func.grad(loss(f), (0, 1, 2)), in_dims=(0, None, None))(x, weight, bias)
        for f in (layer_norm, F.layer_norm)
    )
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_autocast_is_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(4, 32, device="cuda", dtype=dtype)
    norm = LayerNorm(32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert norm(x).dtype == nn.LayerNorm(32, device="cuda")(x).dtype == torch.float32
        assert add_layer_norm(x, x, 32, norm.weight)[0].dtype == dtype


@pytest.mark.gpu
@pytest.mark.parametrize("n", [64, 768, 1023, 8192, 40_000, 65_536, 262_144])
def test_same_bits_over_runs_and_for_a_row_whatever_the_batch(n: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        many = FEW_ROWS + 1  # the rows that are taken alone go another way
        x, weight, bias = operands(many, n, dtype, "cuda")
        grad = torch.randn(x.shape, device="cuda").to(dtype)
        first = None
        for _ in range(20):
            y = layer_norm(x, n, weight, bias)
            found = (y.detach(), *torch.autograd.grad(y, (x, weight, bias), grad))
            first = first or found
            assert all(alike(a, b) for a, b in zip(found, first, strict=True))
        assert first is not None
        for rows in (slice(0, 1), slice(33, 36), slice(len(x) - 1, len(x))):
            part = x.detach()[rows].clone().requires_grad_()
            y = layer_norm(part, n, weight, bias)
            assert alike(y, first[0][rows])
            assert alike(torch.autograd.grad(y, part, grad[rows])[0], first[1][rows])


@pytest.mark.gpu
@pytest.mark.parametrize("n", [64, 1000, 4096, 20_480, 65_536])
def test_storage_offsets_do_not_change_bits(n: int) -> None:
    for dtype in (torch.float16, torch.float32):
        x, weight, bias = (t.detach() for t in operands(9, n, dtype, "cuda"))
        moved = torch.empty(9 * n + 1, device="cuda", dtype=dtype)[1:].view(9, n).copy_(x).requires_grad_()
        assert moved.data_ptr() % 16
        straight = x.clone().requires_grad_()
        results = []
        for t in (straight, moved):
            y = layer_norm(t, n, weight, bias)
            results.append((y, *torch.autograd.grad(y, t, torch.ones_like(y))))
        assert all(alike(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cupy_arrays_get_the_same_bits(dtype: str) -> None:
    import cupy

    x = cupy.random.standard_normal((33, 65)).astype(dtype)
    weight, bias = (cupy.random.standard_normal(65).astype(dtype) for _ in range(2))
    tensors = [torch.from_dlpack(a) for a in (x, weight, bias)]
    y, mean, rstd = cupyops.layer_norm(x, 65, weight, bias, return_stats=True)
    assert isinstance(y, cupy.ndarray)
    wanted = layer_norm(tensors[0], 65, *tensors[1:], return_stats=True)
    assert all(alike(torch.from_dlpack(a), b) for a, b in zip((y, mean, rstd), wanted, strict=True))
    stats = cupy.stack((mean, rstd))
    grads = cupyops.layer_norm_backward(x, x, stats, 65, weight)
    wanted = layer_norm_backward(tensors[0], tensors[0], torch.from_dlpack(stats), 65, tensors[1])
    assert all(alike(torch.from_dlpack(a), b) for a, b in zip(grads, wanted, strict=True))
    y, s = cupyops.add_layer_norm(x, x, 65)
    assert alike(torch.from_dlpack(s), tensors[0] * 2)
    torch.testing.assert_close(torch.from_dlpack(y), layer_norm(tensors[0] * 2, 65))  # its sums may have another order
    assert cupyops.layer_norm(x[:0], 65).shape == (0, 65)


@pytest.mark.large
@pytest.mark.gpu
def test_more_than_2_31_elements() -> None:
    m, n = 2**21 + 3, 1024 + 8
    x = torch.empty(m, n, device="cuda", dtype=torch.bfloat16).normal_().requires_grad_()
    y = layer_norm(x, n)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    for rows in (slice(0, 2), slice(m - 2, m)):
        part = x.detach()[rows].clone().requires_grad_()
        again = layer_norm(part, n)
        assert alike(again, y[rows])
        assert alike(torch.autograd.grad(again, part, torch.ones_like(again))[0], grad[rows])
