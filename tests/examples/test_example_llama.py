"""examples/llama.py: it equals the textbook model, trains as plain PyTorch does, and prints the right lines."""

import math
import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops import simulate
from examples.gpt.model import learning_rate, make_optimizer
from examples.gpt.text import Windows, load_corpus
from examples.llama import EPS, SIZES, Llama, main, parse, train
from tests.examples.example_support import CPU, TEXT, quiet, status

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = "--layers 2 --heads 4 --kv-heads 2 --width 32 --context 16 --batch-size 4 --steps 12 --eval-every 5 --lr 1e-2"


def arguments(folder: Path, *more: object) -> list[str]:
    """The command line of a short run; later options, from `more`, override earlier ones."""
    text = folder / "words.txt"
    text.write_text(TEXT, encoding="utf-8")
    common = ["--device", "cpu", "--text", str(text), "--plot", str(folder / "llama.png")]
    return [*common, *SMALL.split(), *map(str, more)]


def options_of(folder: Path, *more: object) -> Namespace:
    options = parse(arguments(folder, *more))
    options.amp = bool(options.amp)
    return options


def textbook(w: dict[str, Tensor], characters: Tensor, *, layers: int, heads: int, kv_heads: int) -> Tensor:
    """Llama's logits from its weights, as papers write the model: x + branch(norm(x)), rotations of complex numbers, and
    attention by its formula, with the keys and values of a group repeated for each of its heads."""

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * w[f"{name}.weight"]

    def turned(x: Tensor) -> Tensor:  # (B, T, heads, n): the numbers i and i + n/2 are a complex number
        n = x.shape[-1]
        angles = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-2 * torch.arange(n // 2) / n)
        z = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((z.real, z.imag), -1)

    x = w["token.weight"][characters]
    later = torch.ones(characters.shape[1], characters.shape[1], dtype=torch.bool).triu(1)
    opening = "norm"
    for layer in range(layers):
        block = f"blocks.{layer}"
        size = x.shape[-1] // heads
        qkv = (norm(x, opening) @ w[f"{block}.attention.qkv.weight"].T).unflatten(-1, (-1, size))
        q, k, v = qkv.split((heads, kv_heads, kv_heads), 2)
        k, v = (part.repeat_interleave(heads // kv_heads, 2) for part in (turned(k), v))
        scores = torch.einsum("bthn,bshn->bhts", turned(q), k) / math.sqrt(size)
        mixed = torch.einsum("bhts,bshn->bthn", scores.masked_fill(later, -math.inf).softmax(-1), v)
        x = x + mixed.flatten(2) @ w[f"{block}.attention.out.weight"].T
        gate, up = (norm(x, f"{block}.norm1") @ w[f"{block}.gate_up.weight"].T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ w[f"{block}.down.weight"].T
        opening = f"{block}.norm2"
    return norm(x, opening) @ w.get("head.linear.weight", w["token.weight"]).T


def of_textbook(options: Namespace, model: nn.Module, characters: Tensor) -> Tensor:
    sizes = {name: getattr(options, name) for name in ("layers", "heads", "kv_heads")}
    return textbook(dict(model.named_parameters()), characters, **sizes)


@pytest.mark.parametrize("tied", [(), ("--tied",)])
def test_training_is_that_of_the_textbooks_model_in_plain_pytorch(tied: tuple[str, ...], tmp_path: Path) -> None:
    options = options_of(tmp_path, "--seed", 3, *tied)
    corpus = load_corpus(options.text, options.context)
    plain = Llama(len(corpus.characters), options)
    optimizer, windows = make_optimizer(plain, options.lr), Windows(corpus, 16, 4, CPU, options.seed)
    expected = []
    for step in range(options.steps):
        characters, targets = windows.draw()
        loss = F.cross_entropy(of_textbook(options, plain, characters).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.lr)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert expected[-1] < 0.9 * expected[0]
    assert train(options, quiet) == pytest.approx(expected, rel=1e-4)


@pytest.mark.simulator
def test_kernels_compute_the_textbooks_loss_and_gradients(tmp_path: Path) -> None:
    options = options_of(tmp_path, "--layers", 1, "--context", 8)
    corpus = load_corpus(options.text, options.context)
    model = Llama(len(corpus.characters), options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 5)  # the norms are at 1 to begin with
    characters, targets = Windows(corpus, options.context, 2, CPU, 0).draw()
    expected = F.cross_entropy(of_textbook(options, model, characters).flatten(0, 1), targets.flatten())
    with simulate():
        loss = model(characters, targets)
        grads = torch.autograd.grad(loss, list(model.parameters()))
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close([loss, *grads], [expected, *wanted], rtol=1e-4, atol=1e-5)


def test_logits_and_loss_are_of_one_model(tmp_path: Path) -> None:
    model = Llama(30, options_of(tmp_path))
    characters = torch.arange(32).view(2, 16) % 30
    loss = F.cross_entropy(model(characters).flatten(0, 1), characters.flatten())
    torch.testing.assert_close(model(characters, characters), loss)


def test_later_characters_change_nothing_before_them(tmp_path: Path) -> None:
    model = Llama(30, options_of(tmp_path))
    characters = torch.arange(16).unsqueeze(0)
    changed = characters.clone()
    changed[0, 9:] += 1
    before, after = model(characters), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9], after[:, 9])


def test_tied_matrices_are_one_parameter(tmp_path: Path) -> None:
    models = [Llama(30, options_of(tmp_path, *more)) for more in ((), ("--tied",))]
    untied, tied = (sum(p.numel() for p in model.parameters()) for model in models)
    assert untied - tied == 30 * 32


@pytest.mark.thorough
def test_words_are_learned(tmp_path: Path) -> None:
    counts = torch.tensor([TEXT.count(c) for c in sorted(set(TEXT))], dtype=torch.float64)
    entropy = -(counts / len(TEXT) * (counts / len(TEXT)).log()).sum().item()
    losses = train(options_of(tmp_path, "--steps", 150, "--eval-every", 150, "--batch-size", 8), quiet)
    assert sum(losses[-10:]) / 10 < 0.6 * entropy  # characters without what came before would have the entropy


@pytest.mark.thorough
def test_autocast_trains_nearly_as_float32(tmp_path: Path) -> None:
    """A context of autocast around several steps would compute all of them with the first step's weights."""
    half, whole = (train(options_of(tmp_path, *amp), quiet) for amp in (("--amp",), ()))
    assert half != whole
    assert half == pytest.approx(whole, rel=2e-2)


@pytest.mark.simulator
def test_run_prints_its_lines_and_draws_its_curve(
    tmp_path: Path, pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path)) == 0
    output = capsys.readouterr().out
    assert re.findall(r"^step +(\d+): training loss \d\.\d{4}, validation loss \d", output, re.M) == ["5", "10", "12"]
    for said in ("device:  cpu", ", float32\n", "words.txt: ", "2 layers, 32 wide, heads 4 on 2, context 16"):
        assert said in output
    assert re.search(r"^kernels: rms_norm, rotary_embedding, add_rms_norm, .*same as PyTorch to \d", output, re.M)
    assert "sample after step 12:\n" in output
    assert f"Picture: {tmp_path / 'llama.png'}\n" in output
    assert (tmp_path / "llama.png").read_bytes().startswith(b"\x89PNG")
    speed, loss = output.splitlines()[-2:]
    assert re.fullmatch(r"tokens per second: [\d,]+", speed)
    assert re.fullmatch(r"validation loss: \d\.\d{4} nats = \d\.\d{4} bits per character", loss)


def test_a_rate_that_is_far_too_high_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(main, *arguments(tmp_path, "--lr", "1e38")) == 1
    assert "a lower --lr may help" in capsys.readouterr().err


def test_defaults_fit_each_other() -> None:
    for at in (1, 2):
        sizes = {name: size[at] for name, size in SIZES.items()}
        with torch.device("meta"):
            Llama(222, Namespace(**sizes, tied=False, seed=0))


@pytest.mark.gpu
@pytest.mark.parametrize("amp", ["--amp", "--no-amp"])
def test_gpu_trains_like_the_cpu(amp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alike(Windows):
        """A GPU's generator draws other windows."""

        def draw(self) -> tuple[Tensor, Tensor]:
            if self.generator.device.type != "cpu":
                self.generator = torch.Generator().manual_seed(self.generator.initial_seed())
            ends = len(self.train) - len(self.window) + 1
            return self.at(
                self.train, torch.randint(ends, self.shape[:1], generator=self.generator).to(self.train.device)
            )

    monkeypatch.setattr("examples.llama.Windows", Alike)
    losses = [train(options_of(tmp_path, "--device", device, amp), quiet) for device in ("cuda", "cpu")]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2 if amp == "--amp" else 1e-3)
