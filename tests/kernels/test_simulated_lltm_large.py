"""The LLTM's kernels on more elements than 32 bits count: memory that is only touched where the last blocks are."""

import numpy as np
import pytest
import torch

import cupyops
from cupyops.ops.lltm.cell import ABSENT, INPUTS, INPUTS_BACKWARD, STEP, STEP_BACKWARD, SUMS
from cupyops.ops.lltm.config import SequenceConfig
from cupyops.ops.lltm.sequence import kernel_of
from tests.kernels.test_simulated_lltm_kernels import assert_rounded, unit, unit_back
from tests.simulator.test_simulator_use import sparse

pytestmark = pytest.mark.simulator


def test_step_between_products_of_more_than_two_to_the_32_elements() -> None:
    rows, state = 2**10 + 1, 2**21
    gates, old, h, c = (sparse(rows * n * state, "float16").reshape(rows, n * state) for n in (3, 1, 1, 1))
    for gate in range(3):
        gates[-1, (gate + 1) * state - 256 : (gate + 1) * state] = np.linspace(-3, 3, 256) * (gate + 1)
    old[-1, -256:] = np.linspace(3, -3, 256)
    with cupyops.simulate(sanitize=True, blocks=slice(-1, None)):
        STEP.kernel("float16", state)(None, old, gates, h, c, rows, state, state // 8, rows)
    z = torch.cat([torch.tensor(gates[-1, (gate + 1) * state - 256 : (gate + 1) * state]) for gate in range(3)])
    for found, exact, what in zip((h, c), unit(z, torch.tensor(old[-1, -256:])), ("h", "c"), strict=True):
        assert_rounded(torch.tensor(found[-1, -256:]), exact, what)
        assert not found[0, :1024].any(), "the last block wrote to the front"


def test_step_back_between_products_of_more_than_two_to_the_32_elements() -> None:
    rows, state = 2**10 + 1, 2**21
    gates, grad_z = (sparse(rows * 3 * state, "float16").reshape(rows, 3 * state) for _ in range(2))
    cells, grad_old = (sparse(rows * state, "float16").reshape(rows, state) for _ in range(2))
    parts, taken = -(-rows // 8), 128
    one = np.ones(1, np.float16)
    cells[-1, -taken:] = np.linspace(3, -3, taken)
    partial = sparse(parts * 3 * state, "float32").reshape(parts, 3 * state)
    with cupyops.simulate(sanitize=True, blocks=slice(-1, None)):
        STEP_BACKWARD.kernel("float16", state)(
            *(one, one, None, gates, cells, grad_z, grad_old, partial, None, (1, 0, 0), ABSENT),
            *(rows, state, parts, state // 4, 8 * parts),
        )
    zeros, ones = torch.zeros(taken), torch.ones(taken)
    dz, dc = unit_back(torch.zeros(3 * taken), torch.tensor(cells[-1, -taken:]), ones, zeros)
    for gate in range(3):
        at, exact = slice((gate + 1) * state - taken, (gate + 1) * state), dz[gate * taken : (gate + 1) * taken]
        assert_rounded(torch.tensor(grad_z[-1, at]), exact, "dz")
        assert_rounded(torch.tensor(partial[-1, at]), exact, "a part of dL/db")
    assert_rounded(torch.tensor(grad_old[-1, -taken:]), dc, "dc")
    for found in (grad_z, grad_old):
        assert not found[0, :1024].any(), "the last block wrote to the front"


def test_inputs_back_of_more_than_two_to_the_32_elements() -> None:
    batch, features, state = 2**17 + 1, 2**14, 2**14
    given, h, x = (sparse(batch * n, "float16").reshape(batch, n) for n in (features + state, state, features))
    given[-1] = np.linspace(1, 2, features + state)
    kernel, (columns, rows) = INPUTS_BACKWARD.launch("float16", batch, state, features)
    with cupyops.simulate(sanitize=True, blocks=slice(-columns // kernel.constants["ABREAST"], None)):
        kernel(given, h, x, batch, features, state, features + state, columns, rows)
    assert (h[-1] == given[-1, :state]).all()
    assert (x[-1] == given[-1, state:]).all()
    for found in (h, x):
        assert not found[0].any(), "the last blocks wrote to the front"


def test_inputs_of_more_than_two_to_the_32_elements() -> None:
    steps, batch, features, state = 3, 2**16 + 1, 2**14, 2**14
    inputs = features + state
    first, h, x, found = (
        sparse(int(np.prod(shape, dtype=object)), "float16").reshape(shape)
        for shape in ((batch, state), (steps, batch, state), (steps, batch, features), (steps, batch, inputs))
    )
    h[-2, -1], h[-1, -1], x[-1, -1] = np.linspace(1, 2, state), 9, np.linspace(3, 4, features)
    kernel, threads = INPUTS.launch("float16", steps * batch, state, features)
    sizes = steps, batch, features, state, inputs, *threads
    blocks = inputs // 8 // kernel.constants["ABREAST"]
    with cupyops.simulate(sanitize=True, blocks=slice(-blocks, None)):
        kernel(first, h, x, found, *sizes)
    assert (found[-1, -1, :state] == h[-2, -1]).all()
    assert (found[-1, -1, state:] == x[-1, -1]).all()
    assert not found[0, 0].any(), "the last blocks wrote to the front"


def test_sums_of_parts_of_more_than_two_to_the_32_elements() -> None:
    parts, n = 65, 2**26 + 7
    partial, sums = sparse(parts * n, "float32").reshape(parts, n), sparse(n, "float32")
    partial[:, -7:] = 1
    partial[-1, -7:] = np.arange(7)
    with cupyops.simulate(sanitize=True, blocks=slice(-1, None)):
        SUMS(partial, sums, parts, n)
    assert (sums[-7:] == 64 + np.arange(7)).all()


@pytest.mark.parametrize("forward", [True, False])
def test_sequence_of_more_than_two_to_the_32_elements(forward: bool) -> None:
    """Rows of a step have fewer than 2^31 elements; where a step begins is beyond that, or beyond 2^32 for gates."""
    steps, batch, state = 5, 2**26, 8
    kernel = kernel_of(SequenceConfig(state, state, 4, backward=not forward), "float16")

    def rows(*shape: int) -> np.ndarray:
        return sparse(int(np.prod(shape, dtype=object)), "float16").reshape(shape)

    gates, cells = rows(steps, batch, 3 * state), rows(steps, batch, state)
    gates[:, -1] = np.linspace(-2, 2, steps * 3 * state).reshape(steps, 3 * state)
    weights = np.zeros((3 * state, state), np.float16)
    with cupyops.simulate(sanitize=True, blocks=slice(-1, None)):
        if forward:
            h, last, zeros = rows(steps, batch, state), rows(2, batch, state), rows(batch, state)
            kernel(weights, zeros, zeros, gates, h, cells, last, None, steps, batch, state, state, *(batch,) * 3)
            c = torch.zeros(state)
            for t in range(steps):
                exact, c = unit(torch.tensor(gates[t, -1]), c)
                assert_rounded(torch.tensor(h[t, -1]), exact, f"h of step {t}", 2)
                assert_rounded(torch.tensor(cells[t, -1]), c, f"c of step {t}", 2)
            assert last[:, -1].any()
            return
        cells[:, -1] = np.linspace(-2, 2, steps * state).reshape(steps, state)
        grad_h, grad_z = rows(steps, batch, state), rows(steps, batch, 3 * state)
        grad_h[:, -1] = np.linspace(1, 2, steps)[:, None]
        bias = sparse(batch * 3 * state, "float32").reshape(batch, 3 * state)
        first = rows(batch, state), rows(batch, state)
        counts = (steps, batch, state, state, batch, batch, batch, batch)
        kernel(grad_h, None, None, None, weights, gates, cells, grad_z, *first, bias, None, *counts)
        dc = torch.zeros(state)
        for t in reversed(range(steps)):
            z, c, dh = (torch.tensor(a[t, -1]) for a in (gates, cells, grad_h))
            dz, dc = unit_back(z, c, dh, dc)
            assert_rounded(torch.tensor(grad_z[t, -1]), dz, f"dz of step {t}", 4)
        assert_rounded(torch.tensor(first[1][-1]), dc, "gradient of c0", 4)
