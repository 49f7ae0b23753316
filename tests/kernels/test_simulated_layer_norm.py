"""Layer normalisation on the CPU, sanitized: one length for each way that the tables of
:mod:`cupyops.ops.layer_norm.config` choose. ``test_simulated_layer_norm_forward.py`` and ``..._backward.py`` take each kernel for itself."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import add_layer_norm, layer_norm
from cupyops.errors import LaunchError
from cupyops.launch.memo import memo
from cupyops.ops.layer_norm.config import backward_config, forward_config
from tests.operators.test_layer_norm import operands

pytestmark = pytest.mark.simulator

# rows, elements of a row, dtype, and the ways: of the forward, and of the backward. Four clusters share the rows of a
# kernel whose blocks stay, so that of 5 rows one takes two.
WAYS = [
    (9, 96, torch.float16, "registers", "registers"),
    (5, 1000, torch.bfloat16, "registers", "registers"),
    (3, 1023, torch.float32, "registers", "registers"),
    (5, 4096, torch.float64, "registers", "registers in clusters"),
    (5, 8192, torch.float32, "registers", "wide"),
    (5, 2048, torch.bfloat16, "registers", "registers"),
    (5, 40_960, torch.bfloat16, "wide", "registers in clusters"),
    (5, 24_576, torch.float32, "wide", "wide"),
    (2, 70_001, torch.float32, "streaming", "streaming"),
]


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def way(config) -> str:  # type: ignore[no-untyped-def]
    return str(config.kind) + (" in clusters" if config.kind == "registers" and config.cluster > 1 else "")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("m", "n", "dtype", "forward", "backward"), WAYS)
def test_values_and_gradients(m: int, n: int, dtype: torch.dtype, forward: str, backward: str) -> None:
    name, size = str(dtype).removeprefix("torch."), dtype.itemsize
    assert way(forward_config(n, name, size, size, 90, size)) == forward
    assert way(backward_config(n, name, size, 90)) == backward
    x, weight, bias = operands(m, n, dtype, "cpu")
    residual, grad_y, grad_s = (torch.randn(m, n).to(dtype) for _ in range(3))
    inputs = (x, weight, bias)
    assert_close(
        (y := layer_norm(x, n, weight, bias), *torch.autograd.grad(y, inputs, grad_y)), exact(inputs, grad_y), dtype
    )
    # The gradients of the columns alone, or the sum, in turn: either is two kernels more to compile.
    if WAYS.index((m, n, dtype, forward, backward)) % 2 or forward == "streaming":
        columns = torch.autograd.grad(layer_norm(x, n, weight, bias), inputs[1:], grad_y)
        assert_close(columns, exact(inputs, grad_y)[2:], dtype)
        return
    y, s = add_layer_norm(x, residual, n, weight, bias)
    wanted = exact((s.detach(), weight, bias), grad_y)
    got = torch.autograd.grad((y, s), (x, weight), (grad_y, grad_s))
    assert_close((y, *got), (wanted[0], wanted[1] + grad_s.double(), wanted[2]), dtype)


def test_a_gpu_without_clusters_of_sixteen_takes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = importlib.import_module("cupyops.ops.layer_norm.body")
    at_once, asked = ours.at_once, []

    def none_of_sixteen(kernel: Any, *others: Any) -> int:
        asked.append(kernel.geometry.cluster)
        if asked[-1] > 8:
            raise LaunchError("no cluster of 16 fits this GPU")
        return int(at_once(kernel, *others))

    monkeypatch.setattr(ours, "at_once", none_of_sixteen)
    x = torch.randn(1, 132_000)
    assert_close((layer_norm(x, 132_000),), (F.layer_norm(x.double(), (132_000,)),), torch.float32)
    assert asked == [16]


def exact(inputs: tuple[Tensor, ...], grad_y: Tensor) -> tuple[Tensor, ...]:
    copies = [t.detach().double().requires_grad_() for t in inputs]
    y = F.layer_norm(copies[0], copies[1].shape, *copies[1:])
    return (y, *torch.autograd.grad(y, copies, grad_y.double()))


def assert_close(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for a, b in zip(got, wanted, strict=True):
        error = (a.double() - b).abs().max() / b.abs().max()
        assert error <= 4 * torch.finfo(dtype).eps


def test_few_rows_declare_the_kernels_of_many() -> None:
    """For who compiles ahead, and calls the operators on a few rows to say of which length."""
    module, configs = (
        sys.modules["cupyops.ops.layer_norm.body"],
        importlib.import_module("cupyops.ops.layer_norm.config"),
    )
    for n, want_x in ((1016, True), (1032, False), (40_008, True)):
        x, weight = torch.randn(2, n, requires_grad=want_x), torch.randn(n, requires_grad=True)
        layer_norm(x, n, weight).sum().backward()
        many = backward_config(n, "float32", 4, 90)
        streams = many.kind == "streaming"
        backward = configs.backward_columns(n, "float32") if streams or not want_x else many
        for kernel_of, arguments in (
            (module.forward_kernel, (forward_config(n, "float32", 4, 4, 90, 4), "float32", False)),
            (module.backward_kernel, (backward, "float32", want_x and not streams, True, False)),
        ):
            misses = kernel_of.cache_info().misses
            kernel_of(*arguments)
            assert kernel_of.cache_info().misses == misses, (n, kernel_of)


def test_the_memo_of_a_call_has_a_key_of_all_the_call_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["cupyops.ops.layer_norm.body"]
    few = memo("x", "residual?", "weight?", "bias?", most=3)(module.forward_call.__wrapped__)
    monkeypatch.setattr(module, "forward_call", few)
    x, weight = torch.randn(4, 96), torch.randn(96)
    for _ in range(2):
        for rows in (x, torch.randn(7, 96), torch.randn(4, 2, 48), x.double(), x.bfloat16(), x[:0]):
            shape = rows.shape[1:]
            for w in (None, weight.to(rows.dtype).reshape(shape)):
                wanted = F.layer_norm(rows.double(), shape, None if w is None else w.double())
                tolerance = (
                    {"rtol": 0.02, "atol": 0.02} if rows.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
                )
                torch.testing.assert_close(layer_norm(rows, shape, w).double(), wanted, **tolerance)
                assert 0 < len(few.kept) <= 3
        with pytest.raises(RuntimeError, match="Expected weight to be of same shape"):
            layer_norm(x, 96, weight[1:])
