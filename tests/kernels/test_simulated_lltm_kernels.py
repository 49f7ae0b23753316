"""Each kernel of the LLTM for itself in the simulator: small sizes with a rest in every dimension, every way through a
sequence, every alignment, and each step held to the numbers that the kernel itself gave for the step before."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops.arrays import LIBRARIES, host
from cupyops.ops.lltm.cell import CELL, INPUTS, INPUTS_BACKWARD, STEP, STEP_BACKWARD, STEP_WITH_BIAS, SUMS
from cupyops.ops.lltm.config import SequenceConfig, TensorCoresConfig
from cupyops.ops.lltm.sequence import kernel_of
from cupyops.tiling.teams import TeamLaunch
from cupyops.tiling.tiles import THREADS
from tests.support import alike

pytestmark = pytest.mark.simulator
cell = sys.modules["cupyops.ops.lltm.cell"]  # the package gives the functions by these names

# Rows and units of a step: blocks of columns with a rest, by accesses of four, one and eight units; rows for several turns.
STEPS = pytest.mark.parametrize(
    ("batch", "state", "dtype"), [(70, 136, torch.float32), (70, 7, torch.float32), (19, 248, torch.float16)], ids=str
)

# Steps, rows, and the way through them; each has rows and units to spare in its last blocks.
WAYS: dict[str, tuple[int, int, SequenceConfig | TensorCoresConfig, torch.dtype]] = {
    "a-block-in-float32": (4, 7, SequenceConfig(20, 20, 2, rows=2, groups=2), torch.float32),
    "a-block-in-float16": (5, 3, SequenceConfig(20, 20, 2, rows=2), torch.float16),
    "a-cluster": (6, 3, SequenceConfig(22, 6, 4, cluster=4, rows=2), torch.float32),
    "blocks-of-the-grid": (4, 7, SequenceConfig(20, 12, 4, team=2, rows=2), torch.bfloat16),
    # Two groups, three tiles for two teams, the last not full; slices for some of the warps. Then as many for each.
    "tensor-cores-in-bfloat16": (3, 69, replace(TensorCoresConfig(96, team=96 // 16), groups=2), torch.bfloat16),
    "tensor-cores-in-tiles": (3, 37, TensorCoresConfig(32, team=2), torch.float16),
    "tensor-cores-in-float16": (2, 3, TensorCoresConfig(256, team=256 // 16), torch.float16),
}
EACH_WAY = pytest.mark.parametrize(("steps", "batch", "config", "dtype"), list(WAYS.values()), ids=list(WAYS))


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with cupyops.simulate(sanitize=True):
        yield


def unit(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h' and c' of the gates and c, in float64."""
    z_i, z_o, z_g = z.double().chunk(3, -1)
    c = c.double() + torch.nn.functional.elu(z_g) * z_i.sigmoid()
    return c.tanh() * z_o.sigmoid(), c


def unit_back(z: Tensor, new_c: Tensor, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the gates and of c, in float64."""
    z = z.double().requires_grad_()
    old = (new_c.double() - unit(z.detach(), torch.zeros(()))[1]).requires_grad_()
    d_z, d_c = torch.autograd.grad(unit(z, old), (z, old), (dh.double(), dc.double()))
    return d_z, d_c


def assert_rounded(found: Tensor, exact: Tensor, what: str, terms: float = 1) -> None:
    """Off by its own rounding, and by what the arithmetic in float32 adds to that."""
    allowed = 0.51 * torch.finfo(found.dtype).eps * exact.abs() + 1e-6 * terms
    excess = (found.double() - exact).abs() - allowed
    assert (excess <= 0).all(), f"{what}: off by {float(excess.max()):.2e} too much"


def moved(t: Tensor) -> Tensor:
    """The values an element after an aligned address."""
    return t.new_empty(t.numel() + 1)[1:].view(t.shape).copy_(t)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def without_blanks(value: object) -> str:
    """The name of a case, up to whose first blank a summary of failures goes."""
    return str(value).replace(" ", "")


# The step between the products


@STEPS
@pytest.mark.parametrize("adds_bias", [False, True])
def test_step_between_products(batch: int, state: int, dtype: torch.dtype, adds_bias: bool) -> None:
    gates, old = torch.randn(batch, 3 * state).to(dtype), torch.randn(batch, state).to(dtype)
    bias = torch.randn(3 * state).to(dtype) / 16
    gates[0, 2 * state :] = -1e-6 * torch.arange(1, state + 1)  # elu's small values do not cancel
    gates[1, ::2] = 100  # nor does anything overflow
    old[0] = 0
    wide = torch.promote_types(dtype, torch.float32)
    z = (gates.to(wide) + bias.to(wide)).to(dtype) if adds_bias else gates
    kernel = (STEP_WITH_BIAS if adds_bias else STEP).kernel(name(dtype), state)
    columns, down = -(-state // kernel.constants["VECTOR_WIDTH"]), THREADS // kernel.constants["ABREAST"]
    first: tuple[Tensor, Tensor] | None = None
    for unaligned in range(-1, 5):
        blank = [torch.full((batch, state), torch.nan, dtype=dtype) for _ in range(2)]
        arrays = [bias, old, gates.clone(), *blank]
        arrays = [moved(t) if i == unaligned else t for i, t in enumerate(arrays)]
        # Rows of one block, which takes turns at them.
        kernel(arrays[0] if adds_bias else None, *arrays[1:], batch, state, columns, down)
        assert alike(arrays[2], z)
        h, c = arrays[3:]
        for found, exact, what in zip((h, c), unit(z, old), ("h", "c"), strict=True):
            assert_rounded(found, exact, what)
        if dtype == torch.float32:
            torch.testing.assert_close(c[0].double(), unit(z, old)[1][0], rtol=1e-6, atol=0)
        first = first or (h, c)
        assert alike(h, first[0])
        assert alike(c, first[1])


@pytest.mark.parametrize(("features", "adds_bias"), [(423, False), (424, True)])
def test_the_bias_goes_with_the_step_where_the_product_is_long(
    monkeypatch: pytest.MonkeyPatch, features: int, adds_bias: bool
) -> None:
    batch, state, given = 5, 600, []
    lltm = sys.modules["cupyops.ops.lltm.cell"]
    inputs = features + state
    assert inputs == lltm.BIAS_APART - (not adds_bias)
    step = lltm.step
    monkeypatch.setattr(lltm, "step", lambda *args: [given.append(args[-1]), step(*args)])
    x, weights, bias = torch.randn(batch, features), torch.randn(3 * state, inputs) / 32, torch.randn(3 * state)
    old_h, old_cell = torch.randn(batch, state), torch.randn(batch, state)
    assert not lltm.whole(batch, state, inputs)
    h, c, z = lltm.forward(x, weights, bias, old_h, old_cell)
    assert [bias_given is bias for bias_given in given] == [adds_bias]
    torch.testing.assert_close(z, torch.cat((old_h, x), 1) @ weights.T + bias, rtol=1e-5, atol=1e-5)
    for found, exact, what in zip((h, c), unit(z, old_cell), ("h", "c"), strict=True):
        assert_rounded(found, exact, what)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_small_and_huge_numbers_keep_their_relative_accuracy(dtype: torch.dtype) -> None:
    """elu below 0 and tanh around it cancel where they are made of a power; far out the power overflows."""
    size = torch.cat(
        (torch.zeros(1), torch.logspace(-6 if dtype == torch.float16 else -30, 1, 199), torch.full((1,), 4e4))
    )
    z_g = torch.cat((size, -size, torch.tensor([torch.inf, -torch.inf])))
    state = z_g.numel()
    gates = torch.cat((torch.full((2 * state,), 60.0), z_g)).to(dtype).expand(2, -1).contiguous()
    old = torch.stack((torch.zeros(state), torch.full((state,), -0.0))).to(dtype)
    kernel, threads = STEP.launch(name(dtype), 2, state)
    h, c = (torch.full((2, state), torch.nan, dtype=dtype) for _ in range(2))
    kernel(None, old, gates, h, c, 2, state, *threads)
    exact_c = torch.nn.functional.elu(gates[:, 2 * state :].double())
    for found, exact in ((c, exact_c), (h, exact_c.tanh())):
        # A rounding, and what the arithmetic in float32 adds to that; float16 has its subnormal numbers.
        limit = (3 if dtype == torch.float32 else 0.51) * torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), exact, rtol=limit, atol=3.1e-8 if dtype == torch.float16 else 1e-39)


@pytest.mark.parametrize(
    ("steps", "batch", "features", "state", "dtype"),
    [
        (3, 25, 24, 16, torch.float32),
        (2, 3, 5, 7, torch.float16),
        (1, 9, 8, 16, torch.float16),
        (1, 3, 1, 2, torch.float64),
        (2, 2, 0, 3, torch.float32),
    ],
)
def test_inputs_of_the_products(steps: int, batch: int, features: int, state: int, dtype: torch.dtype) -> None:
    first, x = torch.randn(batch, state).to(dtype), torch.randn(steps, batch, features).to(dtype)
    h = torch.randn(steps, batch, state).to(dtype) if steps > 1 else None
    before = first.unsqueeze(0) if h is None else torch.cat((first.unsqueeze(0), h[:-1]))
    exact = torch.cat((before, x), 2)
    kernel, (columns, _) = INPUTS.launch(name(dtype), steps * batch, state, features)
    for unaligned in range(-1, 4):
        found = torch.full((steps, batch, features + state), torch.nan, dtype=dtype)
        arrays = [None if t is None else moved(t) if i == unaligned else t for i, t in enumerate((first, h, x, found))]
        # Rows of one block, which takes turns at them.
        kernel(*arrays, steps, batch, features, state, features + state, columns, 1)
        assert alike(arrays[3], exact)


@pytest.mark.parametrize(
    ("batch", "features", "state", "dtype"),
    [(37, 24, 16, torch.float32), (5, 5, 7, torch.float16), (9, 8, 16, torch.float16), (3, 1, 2, torch.float64)],
)
def test_inputs_back(batch: int, features: int, state: int, dtype: torch.dtype) -> None:
    given = torch.randn(batch, features + state).to(dtype)
    kernel, (columns, _) = INPUTS_BACKWARD.launch(name(dtype), batch, state, features)
    for unaligned in range(-1, 3):
        arrays = [given, *(torch.full((batch, n), torch.nan, dtype=dtype) for n in (state, features))]
        arrays = [moved(t) if i == unaligned else t for i, t in enumerate(arrays)]
        # Rows of one block, which takes turns at them.
        kernel(*arrays, batch, features, state, features + state, columns, 1)
        assert alike(torch.cat(arrays[1:], 1), given)


Views = dict[str, Callable[[int, int, torch.dtype], Tensor | None]]
VIEWS: Views = {
    "as-it-stands": lambda b, s, d: torch.randn(b, s).to(d),
    "unaligned": lambda b, s, d: moved(torch.randn(b, s).to(d)),
    "of-one-number": lambda b, s, d: torch.randn(()).to(d).expand(b, s),
    "of-one-row": lambda b, s, d: torch.randn(s).to(d).expand(b, s),
    "by-columns": lambda b, s, d: torch.randn(s, b).to(d).t(),
    "of-a-wider-row": lambda b, s, d: torch.randn(b, s + 5).to(d)[:, 2 : s + 2],
    "of-an-odd-row": lambda b, s, d: torch.randn(b, s + 1).to(d)[:, :s],
    "absent": lambda b, s, d: None,
}
EACH_VIEW = pytest.mark.parametrize(("h_view", "c_view"), list(zip(VIEWS, [*VIEWS][1:] + [*VIEWS][:1], strict=True)))


@pytest.mark.sample(16)
@STEPS
@EACH_VIEW
@pytest.mark.parametrize("more", ["nothing-else", "all", "unaligned-gradient-of-gates", "unaligned-dz", "unaligned-dc"])
def test_step_back_between_products(
    batch: int, state: int, dtype: torch.dtype, h_view: str, c_view: str, more: str
) -> None:
    gates, cells = torch.randn(batch, 3 * state).to(dtype), torch.randn(batch, state).to(dtype)
    grad_h, grad_c = (VIEWS[view](batch, state, dtype) for view in (h_view, c_view))
    grad_gates = None if more == "nothing-else" else torch.randn(batch, 3 * state).to(dtype)
    grad_z = torch.full((batch, 3 * state), torch.nan, dtype=dtype)
    if more == "unaligned-dz":  # which all accesses but that one depend on
        grad_z = moved(grad_z)
    if more == "unaligned-gradient-of-gates" and grad_gates is not None:
        grad_gates = moved(grad_gates)
    parts = 2
    grad_old = None if more == "nothing-else" else torch.full((batch, state), torch.nan, dtype=dtype)
    if more == "unaligned-dc" and grad_old is not None:
        grad_old = moved(grad_old)
    partial = None if more == "nothing-else" else torch.full((parts, 3 * state), torch.nan)
    kernel = STEP_BACKWARD.kernel(name(dtype), state)
    columns, down = -(-state // kernel.constants["VECTOR_WIDTH"]), THREADS // kernel.constants["ABREAST"]
    (dh, h_strides), (dc, c_strides) = (cell.view(LIBRARIES[Tensor], g, gates) for g in (grad_h, grad_c))
    sizes = (batch, state, parts, columns, down * parts)
    kernel(dh, dc, grad_gates, gates, cells, grad_z, grad_old, partial, None, h_strides, c_strides, *sizes)
    zeros = torch.zeros(batch, state)
    exact_z, exact_c = unit_back(gates, cells, *(zeros if g is None else g for g in (grad_h, grad_c)))
    exact_z = exact_z if grad_gates is None else exact_z + grad_gates.double()
    assert_rounded(grad_z, exact_z, "dz")
    if grad_old is not None and partial is not None:
        assert_rounded(grad_old, exact_c, "dc")
        taken = torch.arange(batch) // down % parts
        for part in range(parts):
            assert_rounded(partial[part], exact_z[taken == part].sum(0), "a part of dL/db", 8)


@STEPS
def test_step_back_between_products_of_a_few_rows(batch: int, state: int, dtype: torch.dtype) -> None:
    """Each block goes through all of them: dL/db itself, and no parts."""
    gates, cells = torch.randn(batch, 3 * state).to(dtype), torch.randn(batch, state).to(dtype)
    grad_h, grad_c = (torch.randn(batch, state).to(dtype) for _ in range(2))
    grad_z, grad_old = torch.full_like(gates, torch.nan), torch.full_like(cells, torch.nan)
    grad_bias = torch.full((3 * state,), torch.nan, dtype=dtype)
    assert batch <= cell.FEW_ROWS
    given = cell.StepGradients(grad_h, grad_c, None)
    assert cell.step_backward(given, gates, cells, grad_z, grad_old, name(dtype), grad_bias) is None
    exact_z, exact_c = unit_back(gates, cells, grad_h, grad_c)
    assert_rounded(grad_z, exact_z, "dz")
    assert_rounded(grad_old, exact_c, "dc")
    assert_rounded(grad_bias, exact_z.sum(0), "dL/db", 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("parts", "n"), [(70, 45), (1, 1), (31, 32), (33, 64)])
def test_sums_of_parts(parts: int, n: int, dtype: torch.dtype) -> None:
    partial = torch.randn(parts, n, dtype=torch.promote_types(dtype, torch.float32))
    sums = torch.full((n,), torch.nan, dtype=dtype)
    SUMS(partial, sums, parts, n)
    assert_rounded(sums, partial.double().sum(0), "the sums", 8)


# A whole cell


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [((19, 130, 7), torch.float32), ((33, 30, 9), torch.float16), ((1, 1, 1), torch.float32)],
    ids=without_blanks,
)
def test_whole_cell(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    batch, features, state = sizes
    inputs = features + state
    x, h, c = (torch.randn(batch, n).to(dtype) for n in (features, state, state))
    weights, bias = (torch.randn(3 * state, inputs) * inputs**-0.5).to(dtype), torch.randn(3 * state).to(dtype)
    new_h, new_c, gates = (torch.full((batch, n), torch.nan, dtype=dtype) for n in (state, state, 3 * state))
    threads, tiles = -(-state // 4) * 128, -(-batch // 16)
    sizes_of = (batch, features, state, inputs, threads, tiles)
    CELL(x, weights, bias, h, c, new_h, new_c, gates, *sizes_of)
    assert_rounded(gates, torch.cat((h, x), 1).double() @ weights.double().T + bias.double(), "z", 2)
    for found, exact, what in zip((new_h, new_c), unit(gates, c), ("h", "c"), strict=True):
        assert_rounded(found, exact, what)


SOME_WANTED = [31, 1, 2, 4, 8, 16, 30, 29, 27, 23, 15]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("sizes", "h_view", "c_view", "wanted"),
    [
        *(((19, 3, 7), h, c, 31) for h, c in zip(VIEWS, [*VIEWS][2:] + [*VIEWS][:2], strict=True)),
        *(((6, 30, 5), "as-it-stands", "by-columns", wanted) for wanted in SOME_WANTED),
        ((5, 30, 260), "as-it-stands", "of-one-row", 31),
    ],
    ids=without_blanks,
)
def test_whole_cell_back(sizes: tuple[int, int, int], h_view: str, c_view: str, wanted: int) -> None:
    batch, features, state = sizes
    inputs, dtype = features + state, torch.float32
    x, old_h, new_c = (torch.randn(batch, n) for n in (features, state, state))
    weights, gates = torch.randn(3 * state, inputs) * inputs**-0.5, torch.randn(batch, 3 * state)
    grad_h, grad_c = (VIEWS[view](batch, state, dtype) for view in (h_view, c_view))
    grad_gates = torch.randn(batch, 3 * state) if wanted == 31 else None
    want = [bool(wanted >> i & 1) for i in range(5)]
    found = cell.backward(grad_h, grad_c, grad_gates, x, weights, old_h, new_c, gates, None, *want)
    zeros = torch.zeros(batch, state)
    dz, dc = unit_back(gates, new_c, *(zeros if g is None else g for g in (grad_h, grad_c)))
    dz = dz if grad_gates is None else dz + grad_gates.double()
    both = dz @ weights.double()
    joined = torch.cat((old_h, x), 1).double()
    exact = both[:, state:], dz.T @ joined, dz.sum(0), both[:, :state], dc
    for wish, ours, theirs, what in zip(want, found, exact, ("x", "weights", "bias", "h", "c"), strict=True):
        if wish:
            assert_rounded(ours, theirs, f"gradient of {what}", 8)
        else:
            assert not ours.numel()


# All steps of a sequence


def launch_of(config: SequenceConfig | TensorCoresConfig, batch: int, dtype: str) -> TeamLaunch:
    # As many blocks as two teams on tensor cores have, though the simulator would start fewer.
    enough = 2 * config.team if isinstance(config, TensorCoresConfig) else 0
    kernel = kernel_of(config, dtype)
    return config.launch(kernel, batch, max(kernel.resident_blocks({"scalar_t": dtype}, host()), enough))


@pytest.mark.sample(1)
@EACH_WAY
def test_sequence_step_by_step(
    steps: int, batch: int, config: SequenceConfig | TensorCoresConfig, dtype: torch.dtype
) -> None:
    """Each step from what the kernel gave for the one before: z and h as they are rounded, c as it is not."""
    state, inputs = config.state, config.state + 1
    weights = (torch.randn(3 * state, inputs) * inputs**-0.5).to(dtype)
    h0, c0 = torch.randn(batch, state).to(dtype), torch.randn(batch, state).to(dtype)
    gates = torch.randn(steps, batch, 3 * state).to(dtype)
    given = gates.double()
    h, cells = (torch.full((steps, batch, state), torch.nan, dtype=dtype) for _ in range(2))
    last = torch.full((2, batch, state), torch.nan, dtype=dtype)
    launch = launch_of(config, batch, name(dtype))
    counters = launch.counters(LIBRARIES[Tensor], h)
    launch.kernel(weights, h0, c0, gates, h, cells, last, counters, steps, batch, state, inputs, *launch.counts)
    before, c = h0, c0.double()
    for t in range(steps):
        assert_rounded(gates[t], given[t] + before.double() @ weights[:, :state].double().T, f"z of step {t}", 2)
        exact_h, c = unit(gates[t], c)
        assert_rounded(h[t], exact_h, f"h of step {t}", 2)
        assert_rounded(cells[t], c, f"c of step {t}", 2)
        before = h[t]
    assert alike(last, torch.stack((h[-1], cells[-1])))


def test_sequence_on_tensor_cores_from_an_unaligned_state() -> None:
    """The one operand of its products that may begin anywhere gives the same bits there."""
    state, batch, dtype = 32, 9, torch.bfloat16
    launch = launch_of(TensorCoresConfig(state, team=2), batch, name(dtype))
    weights, h0, c0 = (torch.randn(n, state).to(dtype) for n in (3 * state, batch, batch))
    found = []
    for first in (h0, moved(h0)):
        gates = torch.zeros(1, batch, 3 * state, dtype=dtype)
        h, cells = (torch.full((1, batch, state), torch.nan, dtype=dtype) for _ in range(2))
        last = torch.full((2, batch, state), torch.nan, dtype=dtype)
        counters = launch.counters(LIBRARIES[Tensor], h)
        launch.kernel(weights, first, c0, gates, h, cells, last, counters, 1, batch, state, state, *launch.counts)
        found.append((gates, h, cells, last))
    assert all(alike(a, b) for a, b in zip(*found, strict=True))


# One text serves the three ways on tensor cores: the smallest has each set of gradients, and the two that take longest have fewer.
FEWER = {"tensor-cores-in-bfloat16": ("all", "h"), "tensor-cores-in-float16": ("all",)}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("steps", "batch", "config", "dtype", "given"),
    [
        pytest.param(*values, given, id=f"{given}-{way}")
        for way, values in WAYS.items()
        for given in FEWER.get(way, ("all", "h", "last", "cells", "gates"))
    ],
)
def test_sequence_back_step_by_step(
    steps: int, batch: int, config: SequenceConfig | TensorCoresConfig, dtype: torch.dtype, given: str
) -> None:
    """Each step from the dz that the kernel gave for the one after it."""
    state, inputs = config.state, config.state + 1
    weights = (torch.randn(3 * state, inputs) * inputs**-0.5).to(dtype)
    gates, cells = torch.randn(steps, batch, 3 * state).to(dtype), torch.randn(steps, batch, state).to(dtype)
    shapes = {"h": cells.shape, "last": (2, batch, state), "cells": cells.shape, "gates": gates.shape}
    grads = {key: torch.randn(shape).to(dtype) if given in ("all", key) else None for key, shape in shapes.items()}
    launch = launch_of(replace(config, backward=True), batch, name(dtype))
    parts, counters = launch.parts, launch.counters(LIBRARIES[Tensor], cells)
    grad_z = torch.full((steps, batch, 3 * state), torch.nan, dtype=dtype)
    grad_h0, grad_c0 = (torch.full((batch, state), torch.nan, dtype=dtype) for _ in range(2))
    bias = torch.full((parts, 3 * state), torch.nan)
    sizes = (steps, batch, state, inputs, parts, *launch.counts)
    launch.kernel(*grads.values(), weights, gates, cells, grad_z, grad_h0, grad_c0, bias, counters, *sizes)

    def of(key: str, t: int) -> Tensor:
        grad = grads[key]
        return torch.zeros((), dtype=torch.float64) if grad is None else grad[t].double()

    dh, dc = (of("last", i).expand(batch, state) for i in range(2))
    total = torch.zeros(batch, 3 * state, dtype=torch.float64)
    for t in reversed(range(steps)):
        dz, dc = unit_back(gates[t], cells[t], dh + of("h", t), dc + of("cells", t))
        dz = dz + of("gates", t)
        assert_rounded(grad_z[t], dz, f"dz of step {t}", 4)
        total += dz
        dh = grad_z[t].double() @ weights[:, :state].double()
    assert_rounded(grad_h0, dh, "gradient of h0", 4)
    assert_rounded(grad_c0, dc, "gradient of c0", 4)
    # A part has what a tile's row, and those that come after it in the same vector_width, leave.
    row = torch.arange(batch)
    part = row // config.tile * config.rows + row % config.rows
    exact = torch.zeros(parts, 3 * state, dtype=torch.float64).index_add_(0, part, total)
    assert_rounded(bias, exact, "parts of the gradient of the bias", 16)
