"""examples/fast.py: the graphed step trains on the same batches, with the same optimizer, as the published recipe."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from examples.data import ImageSet, epoch_order
from examples.fast import FastTrainer, flatten_parameters, nadam_coefficients, nadam_step
from examples.lenet5 import build_model, train_epoch
from examples.run import make_fabric
from tests.examples.example_support import CPU, quiet

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH = 8
# Batches with and without a short one at the end, only a short one, and enough for several graphs.
COUNTS = [4 * BATCH + 3, 4 * BATCH, BATCH - 1, 20 * BATCH + 1]


def noise(count: int, seed: int) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 28, 28), generator=generator).to(torch.uint8)
    return ImageSet(images, torch.randint(10, (count,), generator=generator))


def make(count: int, device: torch.device = CPU, **options: Any) -> FastTrainer:
    return FastTrainer(build_model("kernels", 0).to(device), noise(count, 0), BATCH, 3e-3, **options)


def test_coefficients_make_the_optimizer_torchs_nadam() -> None:
    generator = torch.Generator().manual_seed(0)
    expected = nn.Parameter(torch.randn(20, generator=generator, dtype=torch.float64))
    ours = expected.detach().clone()
    m, v = torch.zeros_like(ours), torch.zeros_like(ours)
    optimizer = torch.optim.NAdam([expected], lr=3e-3)
    rows = torch.cat([nadam_coefficients(1, 30, 3e-3), nadam_coefficients(31, 70, 3e-3)])
    for row in rows:
        gradient = torch.randn(20, generator=generator, dtype=torch.float64) * 10
        expected.grad = gradient
        optimizer.step()
        nadam_step(ours, gradient, m, v, row)
    # float32's accuracy, because torch keeps the product of the momenta in float32
    torch.testing.assert_close(ours, expected.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("count", COUNTS)
def test_fast_steps_are_the_recipes_steps(count: int) -> None:
    fabric, fast = make_fabric(CPU, False), make(count, graphs=False)
    model = build_model("kernels", 0)
    recipe = fabric.setup(model, torch.optim.NAdam(model.parameters(), lr=3e-3))
    for epoch in (1, 2):
        order = epoch_order(0, epoch, count)
        advances: list[int] = []
        expected = train_epoch(fabric, *recipe, noise(count, 0).batches(BATCH, CPU, order), quiet)
        losses = fast.train_epoch(order, advances.append)
        torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)
        assert sum(advances) == len(losses) == math.ceil(count / BATCH)


def test_flattened_parameters_are_views_with_their_values() -> None:
    model = build_model("kernels", 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flat = flatten_parameters(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    flat.zero_()
    assert not any(parameter.any() for parameter in model.parameters())


def test_fast_state_resumes_bit_for_bit() -> None:
    straight, first, second = (make(35, graphs=False) for _ in range(3))
    orders = [epoch_order(0, epoch, 35) for epoch in (1, 2, 3)]
    for order in orders:
        straight.train_epoch(order, quiet)
    first.train_epoch(orders[0], quiet)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    for order in orders[1:]:
        second.train_epoch(order, quiet)
    assert torch.equal(second.flat, straight.flat)


def test_saved_fast_state_is_a_copy() -> None:
    trainer = make(35, graphs=False)
    state = trainer.state_dict()
    trainer.train_epoch(epoch_order(0, 1, 35), quiet)
    assert not state["m"].any()


@pytest.mark.gpu
@pytest.mark.parametrize("count", COUNTS)
def test_capture_changes_nothing_and_replays_are_the_steps(count: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    losses, states = [], []
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        for graphs in (False, True):
            untouched = build_model("kernels", 0).to(device)
            random_state = torch.cuda.get_rng_state()
            trainer = make(count, device, graphs=graphs)
            assert all(torch.equal(a, b) for a, b in zip(untouched.parameters(), trainer.parameters, strict=True))
            assert not trainer.m.any()
            assert not trainer.v.any()
            assert torch.equal(random_state, torch.cuda.get_rng_state())
            losses.append(torch.cat([trainer.train_epoch(epoch_order(0, epoch, count), quiet) for epoch in (1, 2)]))
            states.append(trainer.flat)
    assert torch.equal(*losses)
    assert torch.equal(*states)
