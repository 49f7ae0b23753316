"""Models of transformers and timm, built small from their configurations. Nothing is downloaded. The extra `models` installs both."""

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cupyops.torch import optimize

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


def package(name: str) -> Any:
    """A package, or the test is skipped where the package is not installed or does not fit this PyTorch."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"needs {name}: pip install '.[models]' ({error})")


SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}


def of_transformers(name: str, **sizes: Any) -> nn.Module:
    transformers = package("transformers")
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}Model")(config).eval()


def of_timm(name: str, **sizes: Any) -> nn.Module:
    return package("timm").create_model(name, pretrained=False, **sizes).eval()


WORDS = torch.arange(2, 18).view(2, 8)
VIT = {**SMALL, "image_size": 32, "patch_size": 16}
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], dict[str, int]]] = {
    "bert": (
        lambda: of_transformers("Bert", **SMALL),
        lambda: WORDS,
        {"layer_norm": 5, "add_layer_norm": 5, "linear_gelu": 2},
    ),
    "gpt2": (
        lambda: of_transformers("GPT2", n_embd=32, n_head=2, n_layer=2),
        lambda: WORDS,
        {"layer_norm": 5, "linear_gelu": 2},
    ),
    "esm": (
        lambda: of_transformers("Esm", vocab_size=33, pad_token_id=1, **SMALL),
        lambda: WORDS,
        {"layer_norm": 5, "linear_gelu": 2},
    ),
    "vit": (
        lambda: of_transformers("ViT", **VIT),
        lambda: torch.randn(2, 3, 32, 32),
        {"layer_norm": 5, "linear_gelu": 2},
    ),
    "timm vit": (
        lambda: of_timm("vit_tiny_patch16_224", depth=2, img_size=32),
        lambda: torch.randn(2, 3, 32, 32),
        {"layer_norm": 5, "add_layer_norm": 2, "linear_gelu": 2},
    ),
    "timm convnext": (
        lambda: of_timm("convnext_tiny", depths=(1, 1, 1, 1), dims=(16, 32, 64, 128)),
        lambda: torch.randn(2, 3, 32, 32),
        {"linear_gelu": 4},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_a_library_computes_what_it_computed(name: str) -> None:
    make, x, wanted = MODELS[name]
    model, given = make(), x()

    def run() -> list[Any]:
        found = model(given)
        y = found if isinstance(found, torch.Tensor) else found[0]
        model.zero_grad()
        y.square().mean().backward()
        return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    before = run()
    report = optimize(model)
    counts = Counter(site.operator for site in report.replaced)
    assert {operator: counts[operator] for operator in wanted} == wanted
    torch.testing.assert_close(run(), before, rtol=1e-4, atol=1e-5)
    report.undo()
    after = run()
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("gelu", "gelu"),
        ("gelu_python", "gelu"),
        ("gelu_new", "gelu"),
        ("gelu_fast", "gelu"),
        ("gelu_pytorch_tanh", "gelu"),
        ("gelu_python_tanh", "gelu"),
        ("gelu_accurate", "gelu"),
        ("quick_gelu", ""),
        ("gelu_10", ""),
        ("silu", ""),
    ],
)
def test_the_spellings_of_gelu_are_found_and_the_others_left(name: str, operator: str) -> None:
    activations = package("transformers.activations")
    module, x = nn.Sequential(activations.ACT2FN[name]), torch.randn(100)
    wanted = module(x)
    assert [site.operator for site in optimize(module).replaced] == ([operator] if operator else [])
    torch.testing.assert_close(module(x), wanted)


def test_what_transformers_does_around_a_model_is_as_before(tmp_path: Any) -> None:
    """Recorded hidden states, generation, gradient checkpointing and saving look modules up by class and by name."""
    transformers = package("transformers")
    config = transformers.GPT2Config(n_embd=32, n_head=2, n_layer=2, pad_token_id=0, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).eval()

    def run() -> list[torch.Tensor]:
        found = model(WORDS, output_hidden_states=True, output_attentions=True)
        return [found.logits, *found.hidden_states, *found.attentions]

    before, words = run(), model.generate(WORDS, max_new_tokens=3, do_sample=False)
    optimize(model)
    torch.testing.assert_close(run(), before, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.generate(WORDS, max_new_tokens=3, do_sample=False), words)
    gradients = []
    for recompute in (False, True):
        if recompute:
            model.train().gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(0)
        with torch.random.fork_rng():
            model.train()(WORDS, labels=WORDS).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])
    model.save_pretrained(tmp_path)
    read = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    torch.testing.assert_close(read(WORDS).logits, before[0], rtol=1e-4, atol=1e-5)
