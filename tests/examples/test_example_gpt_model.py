"""examples/gpt/model.py and char_gpt.Trainer: the mathematics, the optimizer, and what the host never waits for."""

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import AddLayerNorm, LayerNorm
from examples.char_gpt import SIZES, Trainer
from examples.gpt.model import OPERATORS, AddNormOfProduct, CharGPT, NormOfProduct, learning_rate
from tests.examples.example_support import TEXT, gpt_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def trainer(folder: Path, *more: object) -> Trainer:
    return gpt_trainer(folder / "out", *more)


def losses(subject: Trainer, steps: int) -> Tensor:
    return torch.stack([subject.step(step) for step in range(steps)]).cpu()


def validation_loss(subject: Trainer) -> float:
    return subject.windows.validation_loss(subject.model, 2)


# The model -----------------------------------------------------------------------------------------------------------


def textbook(state: dict[str, Tensor], characters: Tensor, *, layers: int, heads: int) -> Tensor:
    """The same transformer as papers write it: x + branch(norm(x)), and attention by its formula, in float64."""
    w = {name: value.double() for name, value in state.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]
        )

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    length = characters.shape[1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    x = w["token.weight"][characters] + w["position.weight"][:length]
    opening = "norm"
    for layer in range(layers):
        qkv = linear(norm(x, opening), f"blocks.{layer}.attention.qkv")
        size = qkv.shape[-1] // (3 * heads)
        parts = []
        for head in range(heads):
            q, k, v = qkv[..., 3 * head * size :].split(size, -1)[:3]  # q, k and v of a head are adjacent
            scores = q @ k.mT / math.sqrt(size)
            parts.append(scores.masked_fill(later, -math.inf).softmax(-1) @ v)
        x = x + linear(torch.cat(parts, -1), f"blocks.{layer}.attention.out")
        inner = linear(norm(x, f"blocks.{layer}.norm1"), f"blocks.{layer}.mlp.0")
        x = x + linear(inner * (1 + (inner / math.sqrt(2)).erf()) / 2, f"blocks.{layer}.mlp.1")
        opening = f"blocks.{layer}.norm2"
    return norm(x, opening) @ w["head.weight"].T


def test_loss_without_logits_is_that_of_the_logits(tmp_path: Path) -> None:
    """The default calls the head's weight, not the head, and has the loss and gradients of `--plain-loss`."""
    found, calls = [], []
    for subject in (trainer(tmp_path), trainer(tmp_path, "--plain-loss")):
        subject.module.head.register_forward_hook(lambda head, *_: calls.append(head))
        loss = subject.module(*subject.windows.draw())
        found.append([loss, *torch.autograd.grad(loss, list(subject.module.parameters()))])
    assert calls == [subject.module.head]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_model_is_the_textbooks(backend: str, tmp_path: Path) -> None:
    subject = trainer(tmp_path, "--backend", backend)
    with torch.no_grad():
        for parameter in list(subject.module.parameters()):
            parameter.add_(torch.randn_like(parameter) / 5)  # biases and norms are at 0 and 1 to begin with
    characters = subject.windows.draw()[0]
    expected = textbook(subject.module.state_dict(), characters, layers=2, heads=2)
    torch.testing.assert_close(subject.module(characters).double(), expected, rtol=1e-4, atol=1e-4)


def test_gpus_model_has_ten_million_parameters() -> None:
    size: Any = {name: SIZES[name][2] for name in ("context", "layers", "heads", "width")}
    with torch.device("meta"):
        model = CharGPT(222, **size, operators=OPERATORS["kernels"])
    assert 10e6 < sum(p.numel() for p in model.parameters()) < 11e6


def test_state_fits_both_backends(tmp_path: Path) -> None:
    ours, theirs = (trainer(tmp_path, "--backend", backend).module.state_dict() for backend in ("kernels", "torch"))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_weights_begin_small_and_those_that_end_a_branch_smaller(tmp_path: Path) -> None:
    state = trainer(tmp_path, "--width", 128).module.state_dict()
    for name, value in state.items():
        if name.endswith("bias"):
            assert not value.any()
        elif value.dim() == 1:
            assert (value == 1).all()
        else:
            ends_branch = name.endswith(("attention.out.weight", "mlp.1.weight"))
            assert value.std().item() == pytest.approx(0.02 / (2 if ends_branch else 1), rel=0.05), name


def test_later_characters_change_nothing_before_them(tmp_path: Path) -> None:
    model = trainer(tmp_path).module
    characters = torch.arange(16).unsqueeze(0) % 7
    changed = characters.clone()
    changed[0, 9:] += 1
    before, after = model(characters), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9], after[:, 9])


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_autocast_keeps_the_stream_in_float32_and_the_branches_in_bfloat16(backend: str, tmp_path: Path) -> None:
    subject = trainer(tmp_path, "--backend", backend, "--amp")
    seen: list[tuple[torch.dtype, ...]] = []
    for block in subject.module.blocks:
        for norm in (block.norm1, block.norm2):
            norm.register_forward_hook(lambda _, given, made: seen.append(tuple(x.dtype for x in (*given, *made))))
    subject.step(0)
    norm = torch.bfloat16 if backend == "kernels" else torch.float32
    assert seen == [(torch.bfloat16, torch.float32, norm, torch.float32)] * 4


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_norms_in_the_products_dtype_train_to_the_same_bits(where: str, tmp_path: Path) -> None:
    found = []
    for norm, add_norm in ((NormOfProduct, AddNormOfProduct), (LayerNorm, AddLayerNorm)):
        subject = trainer(tmp_path, "--device", where, "--amp")
        for module in subject.module.modules():
            if isinstance(module, LayerNorm | AddLayerNorm):
                module.__class__ = add_norm if isinstance(module, AddLayerNorm) else norm
        with torch.autocast(where, torch.bfloat16):
            assert subject.module.norm(torch.ones(1, 1, 16, device=where)).dtype == (
                torch.bfloat16 if norm is NormOfProduct else torch.float32
            )
        loss = subject.model(*subject.windows.draw())
        subject.fabric.backward(loss)
        found.append([loss.detach(), *(p.grad for p in list(subject.module.parameters()))])
    assert torch.equal(found[0][0], found[1][0])
    for a, b in zip(*found, strict=True):
        # On a GPU, PyTorch's attention may add in another order each time.
        assert torch.equal(a, b) if where == "cpu" else torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def test_building_leaves_the_global_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    subject = trainer(tmp_path, "--seed", 1)
    subject.warm_up()
    subject.step(0)
    subject.sample(1)
    assert torch.equal(torch.rand(3), expected)


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amp", [False, True])
def test_backends_train_alike(amp: bool, tmp_path: Path) -> None:
    both = (trainer(tmp_path, "--backend", b, "--amp" if amp else "--no-amp") for b in ("kernels", "torch"))
    torch.testing.assert_close(*(losses(subject, 12) for subject in both), rtol=2e-2 if amp else 1e-4, atol=0)


def test_warming_up_changes_nothing(tmp_path: Path) -> None:
    plain, warm = trainer(tmp_path), trainer(tmp_path)
    warm.warm_up()
    assert all(p.grad is None for p in warm.module.parameters())
    assert torch.equal(losses(plain, 3), losses(warm, 3))


def test_only_matrices_decay(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    decayed, kept = (group["params"] for group in subject.optimizer.param_groups)
    assert (subject.optimizer.param_groups[0]["weight_decay"], subject.optimizer.param_groups[1]["weight_decay"]) == (
        0.1,
        0.0,
    )
    assert {p.dim() for p in kept} == {1}
    assert {p.dim() for p in decayed} == {2}
    assert len(decayed) + len(kept) == len(list(subject.module.parameters()))


def test_gradients_are_clipped_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = trainer(tmp_path)
    norms = []
    monkeypatch.setattr(
        subject.optimizer,
        "step",
        lambda: norms.append(torch.cat([p.grad.flatten() for p in list(subject.module.parameters())]).norm().item()),
    )
    plain = subject.model
    subject.model = lambda *batch: 1000 * plain(*batch)
    subject.step(0)
    assert norms == [pytest.approx(1, rel=1e-3)]


def test_learning_rate_rises_then_falls_to_a_tenth() -> None:
    rates = [learning_rate(step, 1000, 1.0) for step in range(1000)]
    assert rates[:100] == pytest.approx([(step + 1) / 100 for step in range(100)])
    assert all(a >= b for a, b in itertools.pairwise(rates[100:]))
    assert rates[550] == pytest.approx(0.55)
    assert 0.1 < rates[-1] < 0.101
    assert learning_rate(0, 1, 1.0) == 1


def test_rate_of_the_step_is_the_optimizers(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    subject.step(7)
    assert {g["lr"] for g in subject.optimizer.param_groups} == {learning_rate(7, 12, 1e-2)}


def test_validation_loss_is_the_mean_over_the_same_spread_windows(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    held_out = subject.corpus.validation.long()
    last = len(held_out) - 17
    expected = []
    for i in range(8):
        window = held_out[int(i * last / 7) :][:17]
        expected.append(F.cross_entropy(subject.module(window[None, :-1])[0], window[1:]).item())
    assert validation_loss(subject) == pytest.approx(sum(expected) / 8, rel=1e-5)
    assert validation_loss(subject) == validation_loss(subject)


def test_compiled_trains_like_eager_and_without_a_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    compiled, eager = (trainer(tmp_path, "--layers", 1, *mode) for mode in (["--compile"], []))
    compiled.warm_up()
    torch.testing.assert_close(losses(compiled, 5), losses(eager, 5), rtol=1e-4, atol=0)
    assert validation_loss(compiled) == pytest.approx(validation_loss(eager), rel=1e-4)
    assert list(compiled.model.state_dict()) == list(eager.model.state_dict())


# Samples -------------------------------------------------------------------------------------------------------------


def test_sample_depends_on_seed_step_and_parameters_alone(tmp_path: Path) -> None:
    subject = trainer(tmp_path, "--sample-length", 40)
    first = subject.sample(3)
    subject.windows.draw()
    torch.rand(3)
    assert subject.sample(3) == first
    assert subject.sample(4) != first
    assert len(first) == 41
    assert set(first) <= set(TEXT)


def test_sample_continues_the_prompt_and_one_longer_than_the_context(tmp_path: Path) -> None:
    assert trainer(tmp_path, "--prompt", "gre").sample(0).startswith("gre")
    prompt = "red green blue yellow "
    assert trainer(tmp_path, "--prompt", prompt).sample(0).startswith(prompt)


def test_rows_that_pad_the_vocabulary_are_never_drawn(tmp_path: Path) -> None:
    subject = trainer(tmp_path, "--sample-length", 50)
    count = len(subject.corpus.characters)
    assert subject.module.head.weight.shape[0] == 64 > count
    with torch.no_grad():
        subject.module.head.weight[count:] = 100 * subject.module.head.weight[:1]
    assert len(subject.sample(0)) == 51


# On a GPU ------------------------------------------------------------------------------------------------------------


GPU = ("--device", "cuda", "--lr", 3e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("amp", ["--amp", "--no-amp"])
def test_backends_train_alike_on_the_gpu(amp: str, tmp_path: Path) -> None:
    both = (trainer(tmp_path, *GPU, "--backend", b, "--width", 64, amp) for b in ("kernels", "torch"))
    tolerance = 2e-2 if amp == "--amp" else 5e-3
    torch.testing.assert_close(*(losses(subject, 20) for subject in both), rtol=tolerance, atol=0)


@pytest.mark.gpu
def test_gpu_trains_like_the_cpu(tmp_path: Path) -> None:
    on_gpu, on_cpu = (trainer(tmp_path, "--device", device, "--no-amp") for device in ("cuda", "cpu"))
    inputs, targets = on_cpu.windows.draw()
    there = on_gpu.model(inputs.cuda(), targets.cuda())
    here = on_cpu.model(inputs, targets)
    assert there.item() == pytest.approx(here.item(), rel=1e-5)
    there.backward()
    here.backward()
    for a, b in zip(on_gpu.module.parameters(), on_cpu.module.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_host_waits_for_the_gpu_in_no_step(backend: str, tmp_path: Path) -> None:
    subject = trainer(tmp_path, *GPU, "--backend", backend, "--amp")
    for step in range(3):
        subject.step(step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3, 6):
            subject.step(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_compiled_trains_like_eager_on_the_gpu(tmp_path: Path) -> None:
    compiled, eager = (trainer(tmp_path, *GPU, "--layers", 1, "--no-amp", *mode) for mode in (["--compile"], []))
    compiled.warm_up()
    torch.testing.assert_close(losses(compiled, 10), losses(eager, 10), rtol=1e-2, atol=0)
    assert validation_loss(compiled) == pytest.approx(validation_loss(eager), rel=1e-2)
