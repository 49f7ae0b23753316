"""examples/fast.py: the graphed step trains on the same batches, with the same optimizer, as the published recipe."""

import math
from typing import Any

import pytest
import torch
from examples.datasets import ImageSet
from examples.training import LoaderTrainer, epoch_order, repeatable
from torch import nn

from examples.fast import FastTrainer, flatten_parameters, nadam_coefficients, nadam_step
from examples.lenet5 import Config, build_model

BATCH = 32
COUNTS = [
    150,
    4 * BATCH,
    BATCH - 1,
    20 * BATCH + 1,
]  # with a short batch, without, that alone, and several graphs' worth
CPU = torch.device("cpu")


def noise(count: int, seed: int) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 28, 28), generator=generator).to(torch.uint8)
    return ImageSet(images, torch.randint(10, (count,), generator=generator))


def make(kind: type[FastTrainer] | type[LoaderTrainer], count: int, device: torch.device = CPU, **options: Any) -> Any:
    model = build_model(Config(out=None), device)
    return kind(model, noise(count, 0), noise(60, 1), batch_size=BATCH, lr=3e-3, device=device, **options)


def ignore(_: int) -> None:
    """Take the place of a progress bar."""


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
    recipe, fast = make(LoaderTrainer, count), make(FastTrainer, count, graphs=False)
    for epoch in (1, 2):
        order = epoch_order(0, epoch, count)
        advances: list[int] = []
        expected = recipe.train_epoch(order, ignore)
        losses = fast.train_epoch(order, advances.append)
        torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)
        assert sum(advances) == len(losses) == math.ceil(count / BATCH)
    assert fast.accuracy() == pytest.approx(recipe.accuracy(), abs=2)


def test_flattened_parameters_are_views_with_their_values() -> None:
    model = build_model(Config(out=None), CPU)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flat = flatten_parameters(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    flat.zero_()
    assert not any(parameter.any() for parameter in model.parameters())


def test_fast_state_resumes_bit_for_bit() -> None:
    straight, first, second = (make(FastTrainer, 150, graphs=False) for _ in range(3))
    orders = [epoch_order(0, epoch, 150) for epoch in (1, 2, 3)]
    for order in orders:
        straight.train_epoch(order, ignore)
    first.train_epoch(orders[0], ignore)
    second.model.load_state_dict(first.model.state_dict())
    second.load_optimizer_state(first.optimizer_state())
    for order in orders[1:]:
        second.train_epoch(order, ignore)
    assert torch.equal(second.flat, straight.flat)


def test_saved_fast_state_is_a_copy() -> None:
    trainer = make(FastTrainer, 150, graphs=False)
    state = trainer.optimizer_state()
    trainer.train_epoch(epoch_order(0, 1, 150), ignore)
    assert not state["m"].any()


def test_graphs_without_a_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match="need a CUDA device, got cpu"):
        make(FastTrainer, 150)


@pytest.mark.gpu
@pytest.mark.parametrize("count", COUNTS)
def test_capture_changes_nothing_and_replays_are_the_steps(count: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    losses, states = [], []
    with repeatable():
        for graphs in (False, True):
            untouched = build_model(Config(out=None), device)
            random_state = torch.cuda.get_rng_state()
            trainer = make(FastTrainer, count, device, graphs=graphs)
            assert all(torch.equal(a, b) for a, b in zip(untouched.parameters(), trainer.parameters, strict=True))
            assert not trainer.m.any()
            assert not trainer.v.any()
            assert torch.equal(random_state, torch.cuda.get_rng_state())
            losses.append(torch.cat([trainer.train_epoch(epoch_order(0, epoch, count), ignore) for epoch in (1, 2)]))
            states.append(trainer.flat)
    assert torch.equal(*losses)
    assert torch.equal(*states)
