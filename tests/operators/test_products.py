"""Products and sums of columns as somebody else's operator has them: a linear layer with a square after it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import cupyops
import kernels_cu
from cupyops.arrays import library_of
from cupyops.launch.kernel import all_kernels
from cupyops.ops.linear import products
from cupyops.ops.linear.products import Apart, check_gradients, gradients, nothing, product_apart, product_body, rows_of
from cupyops.tiling.columns import ColumnSums
from tests.support import EACH_FLOAT

TEXT = """
#include "scalar.cuh"
#include "columns.cuh"

// dL/dz = 2z·dL/dy, and the sums of its columns
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) square_backward(
    const scalar_t* __restrict__ grad_y,  // (M, N)
    const scalar_t* __restrict__ z,       // (M, N)
    scalar_t* __restrict__ grad_z,        // (M, N)
    sum_t* __restrict__ sums,             // (groups, N)
    long long M, long long N, long long groups, long long tiles) {
    sum_columns(N, groups, sums, [&](const Strip& strip, acc_t (&sums)[VECTOR_WIDTH]) {
        strip.add_rows(
            M, N, sums, [&](long long at) { return at; },
            [&](long long at, long long, acc_t (&sums)[VECTOR_WIDTH]) {
                for (int k = 0; k < VECTOR_WIDTH; ++k) {
                    const acc_t out = 2 * convert<acc_t>(z[at + k]) * convert<acc_t>(grad_y[at + k]);
                    grad_z[at + k] = convert<scalar_t>(out);
                    sums[k] += out;
                }
            });
    });
}
"""


@pytest.fixture
def sums() -> ColumnSums:
    plain = ColumnSums(kernels_cu.source("linear"), "linear_bias_gradient", "x_t", "scalar_t")
    return ColumnSums(TEXT, "square_backward", "scalar_t", "sum_t", rest=plain)


@pytest.fixture
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


forward = product_body("linear_square")


def backward(sums: ColumnSums, grad_y: Any, z: Any, x: Any, weight: Any, want_bias: bool) -> tuple[Any, Any, Any]:
    check_gradients("linear_square_backward", grad_y, x, weight)
    library = library_of(grad_y)
    grad, z = library.contiguous(rows_of(grad_y)), library.contiguous(rows_of(z))
    grad_z = library.empty_like(z)
    grad_bias = sums(library, grad, z, grad_z)
    return (*gradients(library, grad_z, grad_y.shape[:-1], x, weight), grad_bias if want_bias else nothing(library, z))


@pytest.mark.simulator
@pytest.mark.usefixtures("_simulated")
@pytest.mark.parametrize("dtype", EACH_FLOAT)
@pytest.mark.parametrize("batch", [(7,), (2, 3), (2000,)], ids=str)
def test_gradients_of_an_operator_with_a_product_in_it(
    sums: ColumnSums, batch: tuple[int, ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((*batch, 5), (24, 5), (24,))
    x, weight, bias = (torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes)
    y = torch.nn.functional.linear(x, weight, bias).square()
    grad = torch.randn(y.shape, generator=generator).to(dtype)
    wanted = torch.autograd.grad(y, (x, weight, bias), grad)
    inputs = [t.detach() for t in (x, weight, bias)]
    z = forward(*inputs)
    found = backward(sums, grad, z, *inputs[:2], True)
    eps = torch.finfo(dtype).eps
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=8 * eps, atol=4 * eps * float(theirs.abs().max()) * len(batch) * 4
        )
    unwanted = backward(sums, grad, z, None, None, False)
    assert [tuple(g.shape) for g in unwanted] == [(0,)] * 3


def test_what_is_wrong_is_said_with_the_operators_name() -> None:
    x, weight = torch.zeros(3, 5), torch.zeros(6, 5)
    with pytest.raises(RuntimeError, match=r"linear_square: mat1 and mat2 shapes cannot be multiplied \(3x4 and 5x6\)"):
        forward(x[:, :4], weight, None)
    with pytest.raises(RuntimeError, match=r"linear_square: `bias` must have shape \(6,\)"):
        forward(x, weight, weight[:5, 0])
    with pytest.raises(TypeError, match=r"linear_square: `x` must have dtype float16 or"):
        forward(x.int(), weight.int(), None)
    with pytest.raises(ValueError, match=r"linear_square_backward: `weight` must have shape \(6, K\)"):
        check_gradients("linear_square_backward", torch.zeros(3, 6), x, weight.t())


def test_what_is_asked_first_is_asked_for_few_rows_alone() -> None:
    asked: list[tuple[Any, ...]] = []

    def ours(library: Any, x: Tensor, weight: Tensor, bias: Any, *rest: Any) -> Tensor | None:
        asked.append(rest)
        return None if bias is None else bias

    body = product_body("linear_square", ours, few=2)
    x, weight, bias = torch.ones(2, 5), torch.ones(6, 5), torch.ones(6)
    assert body(x, weight, bias) is bias
    assert body(x, weight, None).shape == (2, 6)
    assert body(torch.ones(3, 5), weight[:2], None).shape == (3, 2)
    assert asked == [((6, 5), "float32")] * 2 + [((2, 5), "float32")]
    assert body(torch.ones(3, 5), weight, bias).shape == (3, 6)
    assert body(x.to("meta"), weight.to("meta"), None).shape == (2, 6)
    assert len(asked) == 3


def test_all_else_is_asked_for_where_nobody_takes_few_rows() -> None:
    asked: list[tuple[Any, ...]] = []

    def otherwise(library: Any, x: Tensor, weight: Tensor, bias: Any, *rest: Any) -> Tensor:
        asked.append(rest)
        product: Tensor = library.linear(x, weight, bias)
        return product

    body = product_body("linear_square", lambda *given: given[3], few=2, otherwise=otherwise)
    x, weight, bias = torch.ones(3, 5), torch.ones(6, 5), torch.ones(6)
    assert body(x, weight, bias, "more").shape == (3, 6)
    assert body(x[:2], weight, bias, "more") is bias
    assert body(x[:2], weight, None).shape == (2, 6)
    assert body(x.to("meta"), weight.to("meta"), None).shape == (3, 6)
    assert asked == [((6, 5), "float32", "more"), *[((6, 5), "float32")] * 2]
    with pytest.raises(RuntimeError, match="linear_square: .* `bias` must have dtype float32, as `x` has, got float64"):
        body(x, weight, bias.double())
    assert len(asked) == 3


def test_products_that_are_made_apart_from_their_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST_APART_K", 5)
    monkeypatch.setattr(products, "LEAST_APART_ROWS", 3)
    table = {False: (Apart(5, 18, 18), Apart(9, 36, 2**63)), True: (Apart(4, 1, 2**63),)}
    bias = torch.ones(6)

    def apart(m: int, k: int, bias: Tensor | None = bias, **options: Any) -> bool:
        x, weight = torch.ones(m, 1, k, **options), torch.ones(6, k, **options)
        z = product_apart(library_of(x), x, weight, bias, (6, k), str(x.dtype)[6:], table)
        assert z is None or (torch.equal(z, torch.full((m, 1, 6), float(k))) and z.is_contiguous())
        return z is not None

    assert [
        apart(m, k) for m, k in ((3, 5), (3, 4), (2, 5), (4, 5), (6, 9), (3, 9), (7, 9), (5, 9), (3, 0), (2, 9))
    ] == [*(True, False, False, False, True, True, True, False, False, False)]
    assert not apart(3, 5, None)
    assert not apart(3, 5, bias.double(), dtype=torch.float64)
    assert not apart(3, 5, bias.to("meta"), device="meta")
    monkeypatch.setattr(type(library_of(bias)), "tf32", lambda self: True)
    assert [apart(3, k) for k in (4, 5, 7)] == [False, True, True]


def test_the_ways_that_are_compiled_ahead_are_declared(sums: ColumnSums) -> None:
    kernels = [k for k in all_kernels() if k.text is sums.text]
    assert {k.hardware.since for k in kernels} == {0, 90}
    assert {tuple(types.values()) for k in kernels for types in k.type_choices()} == {
        *(("float16", "float16"), ("float16", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")),
        *(("float32", "float32"), ("float64", "float64")),
    }
