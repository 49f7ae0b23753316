"""examples/char_gpt.py: the model, both backends, what a run prints and writes, and what it refuses."""

import functools
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from char_gpt_support import CPU, TEXT, command, config, one_thread, trainer  # noqa: F401 (a fixture)
from example_support import quiet
from torch import Tensor

from examples.char_gpt import main, measure, train
from examples.console import UserError
from examples.gpt.config import SIZES, Config, learning_rate
from examples.gpt.model import OPERATORS, CharGPT
from examples.gpt.run import Evaluation, Result
from examples.gpt.speed import ROUNDS
from examples.gpt.trainer import WARMUP_STEPS

pytestmark = pytest.mark.usefixtures("one_thread")

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
        q, k, v = linear(norm(x, opening), f"blocks.{layer}.attention.qkv").chunk(3, -1)
        size = q.shape[-1] // heads
        parts = []
        for head in range(heads):
            mine = slice(head * size, (head + 1) * size)
            scores = q[..., mine] @ k[..., mine].mT / math.sqrt(size)
            parts.append(scores.masked_fill(later, -math.inf).softmax(-1) @ v[..., mine])
        x = x + linear(torch.cat(parts, -1), f"blocks.{layer}.attention.out")
        inner = linear(norm(x, f"blocks.{layer}.norm1"), f"blocks.{layer}.mlp.0")
        x = x + linear(inner * (1 + (inner / math.sqrt(2)).erf()) / 2, f"blocks.{layer}.mlp.2")
        opening = f"blocks.{layer}.norm2"
    return norm(x, opening) @ w["head.weight"].T


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_model_is_the_textbooks(backend: str, tmp_path: Path) -> None:
    subject = trainer(tmp_path, backend=backend)
    with torch.no_grad():
        for parameter in subject.parameters:
            parameter.add_(torch.randn_like(parameter) / 5)  # biases and norms are at 0 and 1 to begin with
    characters = subject.draw_batch()[0]
    expected = textbook(subject.model.state_dict(), characters, layers=2, heads=2)
    torch.testing.assert_close(subject.model(characters).double(), expected, rtol=1e-4, atol=1e-4)


def test_gpus_model_has_ten_million_parameters() -> None:
    size = {name: SIZES["cuda"][name] for name in ("context", "layers", "heads", "width")}
    with torch.device("meta"):
        model = CharGPT(222, **size, operators=OPERATORS["kernels"])
    assert 10e6 < sum(p.numel() for p in model.parameters()) < 11e6


def test_state_fits_both_backends(tmp_path: Path) -> None:
    ours, theirs = (trainer(tmp_path, backend=backend).model.state_dict() for backend in ("kernels", "torch"))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_later_characters_change_nothing_before_them(tmp_path: Path) -> None:
    model = trainer(tmp_path).model
    characters = torch.arange(16).unsqueeze(0) % 7
    changed = characters.clone()
    changed[0, 9:] += 1
    before, after = model(characters), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9], after[:, 9])


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_autocast_keeps_the_stream_in_float32_and_the_branches_in_bfloat16(backend: str, tmp_path: Path) -> None:
    subject = trainer(tmp_path, backend=backend, amp=True)
    seen: list[tuple[torch.dtype, ...]] = []
    for block in subject.model.blocks:
        for norm in (block.norm1, block.norm2):
            norm.register_forward_hook(lambda _, given, made: seen.append(tuple(x.dtype for x in (*given, *made))))
    subject.step(0)
    assert seen == [(torch.bfloat16, torch.float32, torch.float32, torch.float32)] * 4


def test_building_leaves_the_global_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    subject = trainer(tmp_path, seed=1)
    subject.warm_up()
    subject.step(0)
    subject.sample(1)
    assert torch.equal(torch.rand(3), expected)


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amp", [False, True])
def test_backends_train_alike(amp: bool, tmp_path: Path) -> None:
    ours, theirs = (trainer(tmp_path, backend=b, amp=amp).train(0, 12, quiet)[0] for b in ("kernels", "torch"))
    torch.testing.assert_close(ours, theirs, rtol=2e-2 if amp else 1e-4, atol=0)


def test_words_are_learned_and_written(tmp_path: Path) -> None:
    counts = torch.tensor([TEXT.count(c) for c in sorted(set(TEXT))], dtype=torch.float64)
    shares = counts / counts.sum()
    entropy = -(shares * shares.log()).sum().item()  # the least that is to be had without looking at what came before
    options = config(tmp_path, steps=250, eval_every=125, batch_size=8, width=32, sample_length=150)
    result = train(options, quiet)
    assert result.history[0].validation_loss < entropy
    assert result.history[1].validation_loss < 0.6 * entropy
    written = result.sample.split()[:-1]
    known = sum(word in ("red", "green", "blue", "yellow", "größe") for word in written)
    assert known > 0.7 * len(written) > 7


def test_warming_up_changes_nothing(tmp_path: Path) -> None:
    plain, warm = trainer(tmp_path), trainer(tmp_path)
    warm.warm_up()
    assert all(p.grad is None for p in warm.parameters)
    assert torch.equal(plain.train(0, 3, quiet)[0], warm.train(0, 3, quiet)[0])


def test_only_matrices_decay(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    decayed, kept = (group["params"] for group in subject.optimizer.param_groups)
    assert (subject.optimizer.param_groups[0]["weight_decay"], subject.optimizer.param_groups[1]["weight_decay"]) == (
        0.1,
        0.0,
    )
    assert {p.dim() for p in kept} == {1}
    assert {p.dim() for p in decayed} == {2}
    assert len(decayed) + len(kept) == len(subject.parameters)


def test_gradients_are_clipped_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = trainer(tmp_path)
    norms = []
    monkeypatch.setattr(
        subject.optimizer,
        "step",
        lambda: norms.append(torch.cat([p.grad.flatten() for p in subject.parameters]).norm().item()),
    )
    plain = subject.loss
    subject.loss = lambda *batch: 1000 * plain(*batch)
    subject.step(0)
    assert norms == [pytest.approx(1, rel=1e-3)]


def test_learning_rate_rises_then_falls_to_a_tenth(tmp_path: Path) -> None:
    rates = [learning_rate(config(tmp_path, steps=1000, lr=1.0), step) for step in range(1000)]
    assert rates[:100] == pytest.approx([(step + 1) / 100 for step in range(100)])
    assert all(a >= b for a, b in itertools.pairwise(rates[100:]))
    assert rates[550] == pytest.approx(0.55)
    assert 0.1 < rates[-1] < 0.101
    assert learning_rate(config(tmp_path, steps=1, lr=1.0), 0) == 1


def test_rate_of_the_step_is_the_optimizers(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    subject.step(7)
    assert {g["lr"] for g in subject.optimizer.param_groups} == {learning_rate(subject.config, 7)}


def test_validation_loss_is_the_mean_over_the_same_spread_windows(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    held_out = subject.corpus.validation.long()
    last = len(held_out) - 17
    expected = []
    for i in range(8):
        window = held_out[int(i * last / 7) :][:17]
        expected.append(F.cross_entropy(subject.model(window[None, :-1])[0], window[1:]).item())
    assert subject.validation_loss() == pytest.approx(sum(expected) / 8, rel=1e-5)
    assert subject.validation_loss() == subject.validation_loss()


def test_compiled_trains_like_eager_and_without_a_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    compiled, eager = (trainer(tmp_path, compile=mode, layers=1) for mode in (True, False))
    compiled.warm_up()
    torch.testing.assert_close(compiled.train(0, 5, quiet)[0], eager.train(0, 5, quiet)[0], rtol=1e-4, atol=0)
    assert compiled.validation_loss() == pytest.approx(eager.validation_loss(), rel=1e-4)
    assert list(compiled.model.state_dict()) == list(eager.model.state_dict())


def test_model_that_cannot_be_compiled_is_told_before_any_file_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no compiler is here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=refuse))
    assert main(command(tmp_path, tmp_path / "out", "--compile")) == 2
    error = capsys.readouterr().err
    assert "error: --compile: PyTorch could not compile the model: " in error
    assert "no compiler is here" in error
    assert not (tmp_path / "out").exists()


# Samples -------------------------------------------------------------------------------------------------------------


def test_sample_depends_on_seed_step_and_parameters_alone(tmp_path: Path) -> None:
    subject = trainer(tmp_path, sample_length=40)
    first = subject.sample(3)
    subject.draw_batch()
    torch.rand(3)
    assert subject.sample(3) == first
    assert subject.sample(4) != first
    assert len(first) == 41
    assert set(first) <= set(TEXT)


def test_sample_continues_the_prompt_and_one_longer_than_the_context(tmp_path: Path) -> None:
    assert trainer(tmp_path, prompt="gre").sample(0).startswith("gre")
    prompt = "red green blue yellow "
    assert trainer(tmp_path, prompt=prompt).sample(0).startswith(prompt)


def test_rows_that_pad_the_vocabulary_are_never_drawn(tmp_path: Path) -> None:
    subject = trainer(tmp_path, sample_length=50)
    count = len(subject.corpus.characters)
    assert subject.model.head.weight.shape[0] == 64 > count
    with torch.no_grad():
        subject.model.head.weight[count:] = 100 * subject.model.head.weight[:1]
    assert len(subject.sample(0)) == 51


# What a run prints and writes ----------------------------------------------------------------------------------------


def test_run_prints_its_lines_and_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(command(tmp_path, out)) == 0
    output = capsys.readouterr().out
    assert re.findall(r"^step +(\d+): training loss \d\.\d{4}, validation loss \d", output, re.M) == ["8", "16", "24"]
    assert re.findall(r"^sample after step (\d+):$", output, re.M) == ["8", "16", "24"]
    for words in ("device:  cpu", ", float32", "backend: kernels", "words.txt: ", "held out", "eager"):
        assert words in output
    speed, loss = output.splitlines()[-2:]
    assert re.fullmatch(r"tokens per second: [\d,]+", speed)
    metrics = json.loads((out / "metrics.json").read_text())
    last = metrics["evaluations"][-1]["validation_loss"]
    assert loss == f"validation loss: {last:.4f} nats = {last / math.log(2):.4f} bits per character"
    assert metrics["text"]["characters"] == len(TEXT)
    assert metrics["config"]["steps"] == 24


def test_speed_is_reckoned_without_the_first_steps(tmp_path: Path) -> None:
    history = train(config(tmp_path), quiet).history
    assert [entry.tokens for entry in history] == [0, (16 - WARMUP_STEPS) * 4 * 16, 8 * 4 * 16]
    assert [entry.seconds > 0 for entry in history] == [False, True, True]
    made = Result([Evaluation(8, 1, 1, 0, 0.0, None), *(Evaluation(9, 1, 1, 30, s, None) for s in (1.0, 2.0))], "")
    assert made.tokens_per_second == 20


def test_run_too_short_to_measure_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    train(config(tmp_path, steps=4), lines.append)
    assert "tokens per second: not measured in 10 steps or fewer" in lines


def test_events_hold_each_step_and_each_evaluation_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "out"
    history = train(config(tmp_path, out), quiet).history
    events = accumulator.EventAccumulator(str(out / "tensorboard")).Reload()
    losses = events.Scalars("Loss/Train")
    assert [event.step for event in losses] == list(range(1, 25))
    assert sum(event.value for event in losses[8:16]) / 8 == pytest.approx(history[1].train_loss, rel=1e-5)
    found = [(event.step, event.value) for event in events.Scalars("Loss/Validation")]
    assert found == [(entry.step, pytest.approx(entry.validation_loss)) for entry in history]
    in_bits = events.Scalars("BitsPerCharacter/Validation")[-1].value
    assert in_bits == pytest.approx(history[-1].validation_loss / math.log(2))
    assert [event.step for event in events.Scalars("Speed/TokensPerSecond")] == [16, 24]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = config(tmp_path, steps=2)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert train(options, quiet).history[-1].step == 2
    assert list((tmp_path / "here").iterdir()) == []


def test_comparison_measures_both_backends_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(command(tmp_path, out, "--compare", "--steps", "7")) == 0
    output = capsys.readouterr().out
    assert f"the loss of step {WARMUP_STEPS + 2 * ROUNDS}:" in output
    assert re.search(r"^  eager: kernels at \d+\.\d{3} times the speed of torch$", output, re.M)
    figures = json.loads(output.splitlines()[-1])
    ours, theirs = figures["kernels, eager"], figures["torch, eager"]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert min(ours["tokens_per_second"], theirs["tokens_per_second"]) > 0
    assert not out.exists()


def test_comparison_of_compiled_ones_has_four_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    found = measure(config(tmp_path, compile=True, steps=5, layers=1), quiet)
    assert [(c.mode, c.backend) for c in found] == [
        (mode, backend) for mode in ("eager", "compiled") for backend in ("kernels", "torch")
    ]
    assert [len(c.speeds) for c in found] == [ROUNDS] * 4


# The command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--batch-size", "-3"], "--batch-size must be at least 1, got -3"),
        (["--eval-every", "0"], "--eval-every must be at least 1, got 0"),
        (["--sample-length", "0"], "--sample-length must be at least 1, got 0"),
        (["--heads", "5"], "--width must be a multiple of --heads, got 16 and 5"),
        (["--lr", "nan"], "--lr must be a positive number, got nan"),
        (["--seed", "-1"], "--seed must lie in"),
        (["--device", "tpu"], "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["--text", "absent.txt"], "--text: there is no file absent.txt"),
        (["--context", "9999"], "training and validation with --context 9999 need 20,000"),
        (["--prompt", "red!"], "--prompt: '!' does not occur in"),
        (["--resume"], "--resume: there is no"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, tmp_path / "out", *arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m examples.char_gpt: error: ")
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--steps", "many"], ["--backend", "numpy"], ["--nonsense"]])
def test_arguments_that_do_not_parse_end_with_usage(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(command(tmp_path, tmp_path / "out", *arguments))
    assert capsys.readouterr().err.startswith("usage: python -m examples.char_gpt")


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    output = capsys.readouterr().out
    for option in (
        "--text",
        "--amp, --no-amp",
        "--compile",
        "--compare",
        "--resume",
        "--backend",
        "--seed",
        "--prompt",
    ):
        assert option in output
    assert "(default: 800 on a CPU, 5000 on a GPU)" in " ".join(output.split())


def test_options_left_out_are_the_devices() -> None:
    made = Config.for_device(CPU, {"steps": 7, "lr": None, "text": None, "amp": None})
    assert made == Config(**{**SIZES["cpu"], "steps": 7}, amp=False)
    assert Config.for_device(CPU, {"amp": True}).amp


def test_resume_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume needs the folder of the run: --out DIR"):
        config(tmp_path, resume=True)


# On a GPU ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.gpu
@pytest.mark.parametrize("amp", [False, True])
def test_backends_train_alike_on_the_gpu(amp: bool, gpu: torch.device, tmp_path: Path) -> None:
    sizes = {"width": 64, "amp": amp, "lr": 3e-3}
    ours, theirs = (trainer(tmp_path, gpu, backend=b, **sizes).train(0, 20, quiet)[0] for b in ("kernels", "torch"))
    torch.testing.assert_close(ours, theirs, rtol=2e-2 if amp else 5e-3, atol=0)


@pytest.mark.gpu
def test_gpu_trains_like_the_cpu(gpu: torch.device, tmp_path: Path) -> None:
    on_gpu, on_cpu = (trainer(tmp_path, device) for device in (gpu, CPU))
    inputs, targets = on_cpu.draw_batch()
    there = on_gpu.loss(inputs.to(gpu), targets.to(gpu))
    here = on_cpu.loss(inputs, targets)
    assert there.item() == pytest.approx(here.item(), rel=1e-5)
    there.backward()
    here.backward()
    for a, b in zip(on_gpu.parameters, on_cpu.parameters, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_host_waits_for_the_gpu_in_no_step(backend: str, gpu: torch.device, tmp_path: Path) -> None:
    subject = trainer(tmp_path, gpu, backend=backend, amp=True)
    for step in range(3):
        subject.step(step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3, 6):
            subject.step(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_compiled_trains_like_eager_on_the_gpu(gpu: torch.device, tmp_path: Path) -> None:
    compiled, eager = (trainer(tmp_path, gpu, compile=mode, layers=1, lr=3e-3) for mode in (True, False))
    compiled.warm_up()
    torch.testing.assert_close(compiled.train(0, 10, quiet)[0], eager.train(0, 10, quiet)[0], rtol=1e-2, atol=0)
