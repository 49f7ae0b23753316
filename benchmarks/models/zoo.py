"""The models whose steps are timed: built from configurations with random weights, nothing is downloaded.

timm and transformers are imported when a model is built. Dropout is 0 everywhere, so that the losses of two runs can be
compared: a GPU draws another dropout mask for another dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MODELS", "Model", "Tensors"]

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Model:
    """One model of the table.

    Attributes:
        name: the name in tables and on the command line.
        build: makes the model, on the default device and in the default dtype.
        draw: (batch size, generator) to the inputs and the target, on the CPU.
        loss: (model, inputs) to a loss without dimensions.
        full: a batch that keeps an H200 busy: the GPU takes several times as long as the host.
    """

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Tensors]
    loss: Callable[[nn.Module, Tensors], Tensor]
    full: int


def _images(size: int, classes: int) -> Callable[[int, torch.Generator], Tensors]:
    def draw(batch: int, generator: torch.Generator) -> Tensors:
        images = torch.randn(batch, 3, size, size, generator=generator)
        return {"images": images, "target": torch.randint(classes, (batch,), generator=generator)}

    return draw


def _tokens(length: int, vocabulary: int) -> Callable[[int, torch.Generator], Tensors]:
    def draw(batch: int, generator: torch.Generator) -> Tensors:
        tokens = torch.randint(vocabulary, (batch, length + 1), generator=generator)
        return {"tokens": tokens[:, :-1].contiguous(), "target": tokens[:, 1:].contiguous()}

    return draw


def _features(*shape: int) -> Callable[[int, torch.Generator], Tensors]:
    def draw(batch: int, generator: torch.Generator) -> Tensors:
        return {"features": torch.randn(batch, *shape, generator=generator)}

    return draw


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _classify(model: nn.Module, given: Tensors) -> Tensor:
    return F.cross_entropy(_wide(model(given["images"])), given["target"])


def _predict_tokens(model: nn.Module, given: Tensors) -> Tensor:
    logits = model(given["tokens"]).logits
    return F.cross_entropy(_wide(logits.flatten(0, 1)), given["target"].flatten())


def _mean_square(model: nn.Module, given: Tensors) -> Tensor:
    """The mean square of an encoder's last hidden state, beside a shifted copy: a loss without a head."""
    hidden = _wide(model(given["features"]).last_hidden_state)
    return (hidden - hidden.roll(1, dims=1).detach()).square().mean()


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, **options)
        return model

    return build


def _transformers(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        model: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**options))
        return model

    return build


def _whisper_encoder(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        model: nn.Module = WhisperEncoder(WhisperConfig(**options))
        return model

    return build


MODELS = (
    Model("ViT-B/16", _timm("vit_base_patch16_224"), _images(224, 1000), _classify, 128),
    Model(
        "BERT-base",
        _transformers(
            "BertForMaskedLM", "BertConfig", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, use_cache=False
        ),
        _tokens(512, 30522),
        _predict_tokens,
        32,
    ),
    Model(
        "GPT-2 124M",
        _transformers(
            "GPT2LMHeadModel", "GPT2Config", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
        ),
        _tokens(1024, 50257),
        _predict_tokens,
        16,
    ),
    Model("ConvNeXt-T", _timm("convnext_tiny"), _images(224, 1000), _classify, 128),
    Model(
        "SigLIP-so400m",
        _transformers(
            "SiglipVisionModel",
            "SiglipVisionConfig",
            hidden_size=1152,
            intermediate_size=4304,
            num_hidden_layers=27,
            num_attention_heads=16,
            image_size=384,
            patch_size=14,
        ),
        _features(3, 384, 384),
        _mean_square,
        32,
    ),
    Model(
        "Whisper-small",
        _whisper_encoder(
            d_model=768,
            encoder_layers=12,
            encoder_attention_heads=12,
            encoder_ffn_dim=3072,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
        ),
        _features(80, 3000),
        _mean_square,
        32,
    ),
    Model(
        "Pythia-410M",
        _transformers(
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            vocab_size=50304,
            use_cache=False,
        ),
        _tokens(1024, 50304),
        _predict_tokens,
        16,
    ),
    Model(
        "ESM-2 150M",
        _transformers(
            "EsmForMaskedLM",
            "EsmConfig",
            vocab_size=33,
            hidden_size=640,
            num_hidden_layers=30,
            num_attention_heads=20,
            intermediate_size=2560,
            position_embedding_type="rotary",
            emb_layer_norm_before=False,
            token_dropout=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=1,
            mask_token_id=32,
        ),
        _tokens(512, 33),
        _predict_tokens,
        32,
    ),
)
