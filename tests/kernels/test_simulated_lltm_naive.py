"""Each fast kernel of the LLTM gives what the naive kernel at the top of its text gives."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops.arrays import LIBRARIES
from cupyops.launch.geometry import Threads
from cupyops.ops.lltm.cell import CELL, INPUTS, INPUTS_BACKWARD, STEP, STEP_BACKWARD, STEP_WITH_BIAS, SUMS
from tests.kernels.test_simulated_lltm_kernels import VIEWS, WAYS, cell, launch_of, name, without_blanks
from tests.naive import naive_kernel
from tests.support import alike

pytestmark = pytest.mark.simulator

# The widest way on tensor cores takes longest, and is held to float64 step by step (test_simulated_lltm_kernels.py).
EACH_WAY = pytest.mark.parametrize("way", [way for way in WAYS if way != "tensor-cores-in-float16"])
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, pytest.param(torch.float64, marks=pytest.mark.thorough)], ids=str
)


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def naive(text: str, kernel: str, threads: int, *arguments: object) -> None:
    """Runs the naive kernel of a text by so many threads."""
    naive_kernel(text, f"{kernel}_naive", Threads(block=32))[threads](*arguments)


def blank(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of the arithmetic."""
    return torch.promote_types(dtype, torch.float32)


def assert_near(found: Tensor, reference: Tensor, what: str, roundings: float = 1) -> None:
    """Differs by some roundings of the result's type, and of the arithmetic's sums in another order."""
    allowed = (roundings * torch.finfo(found.dtype).eps + 2e-6) * (1 + reference.double().abs())
    excess = (found.double() - reference.double()).abs() - allowed
    assert (excess <= 0).all(), f"{what}: off by {float(excess.max()):.2e} too much"


@DTYPES
@pytest.mark.parametrize("steps", [1, 3])
def test_inputs_of_the_products_are_those_of_the_naive_kernel(steps: int, dtype: torch.dtype) -> None:
    batch, features, state = 5, 6, 10
    sizes = (steps, batch, features, state, features + state)
    first, x = torch.randn(batch, state).to(dtype), torch.randn(steps, batch, features).to(dtype)
    h = torch.randn(steps, batch, state).to(dtype) if steps > 1 else None
    found, reference = (blank(steps, batch, features + state, dtype=dtype) for _ in range(2))
    kernel, threads = INPUTS.launch(name(dtype), steps * batch, state, features)
    kernel(first, h, x, found, *sizes, *threads)
    naive("lltm_inputs", "lltm_inputs", found.numel(), first, h, x, reference, *sizes)
    assert alike(found, reference)


@DTYPES
def test_gradients_of_inputs_are_those_of_the_naive_kernel(dtype: torch.dtype) -> None:
    batch, features, state = 7, 6, 10
    sizes = (batch, features, state, features + state)
    given = torch.randn(batch, features + state).to(dtype)
    found, reference = ([blank(batch, n, dtype=dtype) for n in (state, features)] for _ in range(2))
    kernel, threads = INPUTS_BACKWARD.launch(name(dtype), batch, state, features)
    kernel(given, *found, *sizes, *threads)
    naive("lltm_inputs", "lltm_inputs_backward", given.numel(), given, *reference, *sizes)
    assert all(alike(a, b) for a, b in zip(found, reference, strict=True))


@DTYPES
@pytest.mark.parametrize("adds_bias", [False, True])
def test_a_step_is_that_of_the_naive_kernel(adds_bias: bool, dtype: torch.dtype) -> None:
    batch, state = 37, 44
    gates, old = 2 * torch.randn(batch, 3 * state).to(dtype), torch.randn(batch, state).to(dtype)
    bias = torch.randn(3 * state).to(dtype) if adds_bias else None
    (z, h, c), reference = ([gates.clone(), *(blank(batch, state, dtype=dtype) for _ in range(2))] for _ in range(2))
    kernel, threads = (STEP_WITH_BIAS if adds_bias else STEP).launch(name(dtype), batch, state)
    kernel(bias, old, z, h, c, batch, state, *threads)
    naive("lltm_step", "lltm_step", batch * state, bias, old, *reference, batch, state)
    assert alike(z, reference[0])
    assert_near(h, reference[1], "h")
    assert_near(c, reference[2], "c")


@pytest.mark.sample(5)
@DTYPES
@pytest.mark.parametrize("view", list(VIEWS))
def test_a_step_back_is_that_of_the_naive_kernel(view: str, dtype: torch.dtype) -> None:
    batch, state, parts = 70, 20, 2
    gates, cells = torch.randn(batch, 3 * state).to(dtype), torch.randn(batch, state).to(dtype)
    grad_h, grad_c = VIEWS[view](batch, state, dtype), torch.randn(batch, state).to(dtype)
    grad_gates = torch.randn(batch, 3 * state).to(dtype)
    grad_z, grad_old = blank(batch, 3 * state, dtype=dtype), blank(batch, state, dtype=dtype)
    partial = blank(parts, 3 * state, dtype=wide(dtype))
    kernel, (columns, _) = STEP_BACKWARD.launch(name(dtype), batch, state)
    down = 256 // kernel.constants["ABREAST"]
    (dh, h_strides), (dc, c_strides) = (cell.view(LIBRARIES[Tensor], g, gates) for g in (grad_h, grad_c))
    sizes = (batch, state, parts, columns, down * parts)
    kernel(dh, dc, grad_gates, gates, cells, grad_z, grad_old, partial, None, h_strides, c_strides, *sizes)
    reference = [blank(*shape, dtype=wide(dtype)) for shape in (grad_z.shape, grad_old.shape, (3 * state,))]
    dense_h = torch.zeros(batch, state, dtype=dtype) if grad_h is None else grad_h.contiguous()
    given = (dense_h, grad_c, grad_gates, gates, cells)
    naive("lltm_step_backward", "lltm_step_backward", state, *given, *reference, batch, state)
    assert_near(grad_z, reference[0], "dz")
    assert_near(grad_old, reference[1], "dc")
    assert_near(partial.sum(0), reference[2], "dL/db", 8)


@pytest.mark.parametrize("of", ["parts", "rows"])
@DTYPES
def test_sums_are_those_of_the_naive_kernel(dtype: torch.dtype, of: str) -> None:
    parts, n = 70, 45
    partial = torch.randn(parts, n).to(wide(dtype) if of == "parts" else dtype)
    found, reference = (blank(n, dtype=dtype) for _ in range(2))
    SUMS(partial, found, parts, n)
    naive("lltm_sums", "lltm_sums", n, partial, reference, parts, n)
    assert_near(found, reference, "the sums", 2)


def cell_operands(sizes: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x, weights, bias, h and c."""
    batch, features, state = sizes
    x, h, c = (torch.randn(batch, n).to(dtype) for n in (features, state, state))
    weights = (torch.randn(3 * state, features + state) * (features + state) ** -0.5).to(dtype)
    return x, weights, torch.randn(3 * state).to(dtype), h, c


@DTYPES
@pytest.mark.parametrize("sizes", [(19, 130, 7), (3, 5, 9)], ids=without_blanks)
def test_a_cell_is_that_of_the_naive_kernel(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    batch, features, state = sizes
    results = [[blank(batch, n, dtype=dtype) for n in (state, state, 3 * state)] for _ in range(2)]
    operands, counts = cell_operands(sizes, dtype), (batch, features, state, features + state)
    CELL(*operands, *results[0], *counts, -(-state // 4) * 128, -(-batch // 16))
    naive("lltm_cell", "lltm_cell", batch * state, *operands, *results[1], *counts)
    # A gate that is rounded another way changes h and c by as much.
    for found, reference, what in zip(*results, ("h", "c", "z"), strict=True):
        assert_near(found, reference, what, 3)


@DTYPES
@pytest.mark.parametrize("sizes", [(19, 3, 7), (5, 30, 12)], ids=without_blanks)
def test_a_cell_back_is_that_of_the_naive_kernel(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    batch, features, state = sizes
    inputs = features + state
    x, weights, _, old_h, new_c = cell_operands(sizes, dtype)
    grad_h, grad_c, *_ = (torch.randn(batch, state).to(dtype) for _ in range(2))
    gates, grad_gates = (torch.randn(batch, 3 * state).to(dtype) for _ in range(2))
    found = cell.backward(grad_h, grad_c, grad_gates, x, weights, old_h, new_c, gates, None, *(True,) * 5)
    shapes = ((batch, inputs), (3 * state, inputs), (3 * state,), (batch, state))
    reference = [torch.zeros(shape, dtype=wide(dtype)) for shape in shapes]
    given = (grad_h, grad_c, grad_gates, x, weights, old_h, new_c, gates)
    naive("lltm_cell_backward", "lltm_cell_backward", 1, *given, *reference, batch, features, state, inputs)
    d_inputs, d_weights, d_bias, d_c = reference
    exact = d_inputs[:, state:], d_weights, d_bias, d_inputs[:, :state], d_c
    for ours, theirs, what in zip(found, exact, ("x", "weights", "bias", "h", "c"), strict=True):
        assert_near(ours, theirs, f"gradient of {what}", 2)


@pytest.mark.sample(2)
@EACH_WAY
def test_a_sequence_is_that_of_the_naive_kernel(way: str) -> None:
    steps, batch, config, dtype = WAYS[way]
    state, inputs = config.state, config.state + 1
    weights = (torch.randn(3 * state, inputs) * inputs**-0.5).to(dtype)
    h0, c0 = torch.randn(batch, state).to(dtype), torch.randn(batch, state).to(dtype)
    gates = torch.randn(steps, batch, 3 * state).to(dtype)
    results = []
    for _ in range(2):
        of_steps = [blank(steps, batch, state, dtype=dtype) for _ in range(2)]
        results.append([gates.clone(), *of_steps, blank(2, batch, state, dtype=dtype)])
    launch = launch_of(config, batch, name(dtype))
    counters, sizes = launch.counters(LIBRARIES[Tensor], h0), (steps, batch, state, inputs)
    launch.kernel(weights, h0, c0, *results[0], counters, *sizes, *launch.counts)
    unrounded = blank(batch, state, dtype=wide(dtype))
    naive("lltm_sequence", "lltm_sequence", batch, weights, h0, c0, *results[1], unrounded, *sizes)
    # A different rounding at one step affects the next.
    for found, reference, what in zip(*results, ("z", "h", "c", "the last"), strict=True):
        assert_near(found, reference, what, 4)


@pytest.mark.sample(1)
@EACH_WAY
@pytest.mark.parametrize("given", ["all", "none-but-h"])
def test_a_sequence_back_is_that_of_the_naive_kernel(way: str, given: str) -> None:
    steps, batch, config, dtype = WAYS[way]
    state, inputs = config.state, config.state + 1
    weights = (torch.randn(3 * state, inputs) * inputs**-0.5).to(dtype)
    gates, cells = torch.randn(steps, batch, 3 * state).to(dtype), torch.randn(steps, batch, state).to(dtype)
    shapes = {"h": cells.shape, "last": (2, batch, state), "cells": cells.shape, "gates": gates.shape}
    grads = [torch.randn(shape).to(dtype) if given == "all" or key == "h" else None for key, shape in shapes.items()]
    launch = launch_of(replace(config, backward=True), batch, name(dtype))
    counters, sizes = launch.counters(LIBRARIES[Tensor], cells), (steps, batch, state, inputs)
    dz, *first = (blank(*s, dtype=dtype) for s in (gates.shape, (batch, state), (batch, state)))
    bias = blank(launch.parts, 3 * state, dtype=wide(dtype))
    operands = (*grads, weights, gates, cells)
    launch.kernel(*operands, dz, *first, bias, counters, *sizes, launch.parts, *launch.counts)
    naive_dz, naive_dh = blank(*gates.shape, dtype=dtype), blank(batch, state, dtype=dtype)
    naive_dc, naive_bias = blank(batch, state, dtype=wide(dtype)), torch.zeros(batch, 3 * state, dtype=wide(dtype))
    results = (naive_dz, naive_dh, naive_dc, naive_bias)
    naive("lltm_sequence_backward", "lltm_sequence_backward", batch, *operands, *results, *sizes)
    found = (dz, *first, bias.sum(0))
    for ours, theirs, what in zip(found, (*results[:3], naive_bias.sum(0)), ("dz", "dh", "dc", "db"), strict=True):
        assert_near(ours, theirs, what, 4 if ours.dtype == dtype else 4 * torch.finfo(dtype).eps / 1e-7)
