"""Time further models than the board's: language models beside Liger's layers, and models in which one operator matters.

::

    python -m benchmarks.models.more --out FILE                        # all cases; Liger must be importable
    python -m benchmarks.models.more --out FILE --cases Llama Qwen3
    python -m benchmarks.models.more --from FILE --into docs/benchmarks_models.md      # the table of a file

The variants of a model take turns, as those of ``python -m benchmarks --ops models`` do, and the rows have the same figures.
The compilations of all models run side by side, and eager models one after the other.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..table import between
from . import report
from .workers import Case, Worker, measured
from .zoo import Model, Tensors

__all__ = ["CASES", "MODELS", "main", "markdown"]


class Wanted(NamedTuple):
    """The variants of a model that take turns, by mode."""

    model: str
    modes: Mapping[str, Sequence[str]]


def tokens(length: int, vocabulary: int) -> Callable[[int, torch.Generator], Tensors]:
    def draw(batch: int, generator: torch.Generator) -> Tensors:
        return {"tokens": torch.randint(5, vocabulary, (batch, length), generator=generator)}

    return draw


def with_labels(model: nn.Module, given: Tensors) -> Tensor:
    loss: Tensor = model(input_ids=given["tokens"], labels=given["tokens"]).loss
    return loss


def on_gpu(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Has the weights drawn on the GPU, which takes less time."""

    def built() -> nn.Module:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            return build()

    return built


def language(kind: str, vocabulary: int, layers: int = 16, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 8}
        named = {**sizes, "num_hidden_layers": layers, "vocab_size": vocabulary, "use_cache": False, **options}
        model: nn.Module = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**named))
        return model

    return on_gpu(build)


def from_transformers(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        model: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**options))
        return model

    return on_gpu(build)


def waves(length: int) -> Callable[[int, torch.Generator], Tensors]:
    def draw(batch: int, generator: torch.Generator) -> Tensors:
        return {"waves": torch.randn(batch, length, generator=generator)}

    return draw


def square_of_hidden(model: nn.Module, given: Tensors) -> Tensor:
    loss: Tensor = model(given["waves"]).last_hidden_state.float().square().mean()
    return loss


def masked(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        named = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "use_cache": False, **options}
        model: nn.Module = BertForMaskedLM(BertConfig(**named))
        return model

    return on_gpu(build)


class DiffusionBlock(nn.Module):
    """A block of DiT, as its authors write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attn, self.mlp = Attention(width, heads), Mlp(width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x  # noqa: RET504 - as it is written there


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(self.act(self.fc1(x)))
        return y


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Diffusion(nn.Module):
    """Blocks of DiT-XL/2 without the embeddings, for 256 patches of an image."""

    def __init__(self, width: int = 1152, heads: int = 16, layers: int = 14) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DiffusionBlock(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, c)
        return x


def patches(width: int) -> Callable[[int, torch.Generator], Tensors]:
    def draw(batch: int, generator: torch.Generator) -> Tensors:
        shapes = {"x": (batch, 256, width), "c": (batch, width), "noise": (batch, 256, width)}
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    return draw


def noise(model: nn.Module, given: Tensors) -> Tensor:
    return F.mse_loss(model(given["x"], given["c"]).float(), given["noise"].float())


def images(size: int) -> Callable[[int, torch.Generator], Tensors]:
    def draw(batch: int, generator: torch.Generator) -> Tensors:
        return {"images": torch.randn(batch, 3, size, size, generator=generator)}

    return draw


def square(model: nn.Module, given: Tensors) -> Tensor:
    loss: Tensor = model(given["images"]).float().square().mean()
    return loss


def from_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, **options)
        return model

    return on_gpu(build)


_GEMMA = {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 4096}
MODELS = (
    Model("Llama", language("Llama", 32000), tokens(2048, 32000), with_labels, 8),
    Model("Qwen3", language("Qwen3", 151936, head_dim=64), tokens(2048, 151936), with_labels, 4),
    Model("Gemma-2", language("Gemma2", 64000, 12, **_GEMMA), tokens(2048, 64000), with_labels, 4),
    Model("Mistral", language("Mistral", 32000, sliding_window=None), tokens(2048, 32000), with_labels, 8),
    Model("BERT-base, labels", masked(), tokens(512, 30522), with_labels, 32),
    Model("DiT-XL/2, 14 blocks", on_gpu(Diffusion), patches(1152), noise, 64),
    Model(
        "T5 base",
        from_transformers(
            *("T5ForConditionalGeneration", "T5Config"),
            num_layers=12,
            d_model=768,
            d_ff=2048,
            num_heads=12,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            decoder_start_token_id=0,
            use_cache=False,
        ),
        tokens(512, 32000),
        with_labels,
        16,
    ),
    Model(
        "ModernBERT base",
        from_transformers(
            *("ModernBertForMaskedLM", "ModernBertConfig"),
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
            attn_implementation="sdpa",
        ),
        tokens(1024, 50368),
        with_labels,
        16,
    ),
    Model(
        "wav2vec 2.0",
        from_transformers(
            "Wav2Vec2Model",
            "Wav2Vec2Config",
            hidden_dropout=0.0,
            activation_dropout=0.0,
            attention_dropout=0.0,
            feat_proj_dropout=0.0,
            layerdrop=0.0,
            apply_spec_augment=False,
        ),
        waves(160000),
        square_of_hidden,
        16,
    ),
    Model("MLP-Mixer B/16", from_timm("mixer_b16_224"), images(224), square, 128),
    Model("EVA-02 B", from_timm("eva02_base_patch14_224"), images(224), square, 64),
    Model("Swin-T", from_timm("swin_tiny_patch4_window7_224"), images(224), square, 128),
    Model("DINOv2 B/14", from_timm("vit_base_patch14_dinov2", img_size=224, num_classes=1000), images(224), square, 64),
    # With fewer blocks, which compile in less time.
    Model("Llama, 8 layers", language("Llama", 32000, 8), tokens(2048, 32000), with_labels, 8),
    Model(
        "Swin-T, 8 blocks",
        from_timm("swin_tiny_patch4_window7_224", depths=(2, 2, 2, 2)),
        images(224),
        square,
        128,
    ),
    Model("EVA-02 B, 4 blocks", from_timm("eva02_base_patch14_224", depth=4), images(224), square, 64),
    Model("DiT-XL/2, 6 blocks", on_gpu(partial(Diffusion, layers=6)), patches(1152), noise, 64),
)
_LANGUAGE = ("torch", "optimize", "measured", "lazy", "liger")
_BOTH = ("torch", "optimize")
_MEASURED = ("T5 base", "ModernBERT base", "wav2vec 2.0", "MLP-Mixer B/16", "EVA-02 B", "Swin-T", "DINOv2 B/14")
CASES = (
    *(Wanted(name, {"eager": _LANGUAGE}) for name in ("Llama", "Qwen3", "Gemma-2", "Mistral")),
    Wanted("BERT-base, labels", {"eager": (*_BOTH, "lazy")}),
    Wanted("DiT-XL/2, 14 blocks", {"eager": _BOTH}),
    *(Wanted(name, {"eager": ("torch", "again", "optimize", "measured")}) for name in _MEASURED),
    *(
        Wanted(name, {"compile": _BOTH})
        for name in ("Llama, 8 layers", "Swin-T, 8 blocks", "EVA-02 B, 4 blocks", "DiT-XL/2, 6 blocks")
    ),
)
_NAMES = {"torch": "PyTorch", **report.OURS, "lazy": "`lazy_logits=True`", "measured": "`step=`", "liger": "Liger"}


def markdown(document: dict[str, Any]) -> str:
    """The table of a document, a line for each model: the time and the memory of a step, and the speedups with their limits."""
    rows = {(row["model"], row["size"], row["mode"], row["variant"]): row for row in document["rows"]}
    variants = [v for v in _NAMES if any(which == v for *_, which in rows)]
    lines = [["model, batch", *(_NAMES[v] for v in variants)], ["---"] * (1 + len(variants))]
    for case in dict.fromkeys(case[:-1] for case in rows):
        model, size, mode = case
        cells = [_cell(rows[(*case, v)]) if (*case, v) in rows else "–" for v in variants]
        lines.append([f"{model}, {size}{', compiled' * (mode == 'compile')}", *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    memory = "" if row["requested_mib"] is None else f", {row['requested_mib']:.0f} MiB"
    if "speedup" not in row:
        return f"{row['wall']:.1f} ms{memory}"
    return f"{row['speedup']:.2f} ({row['speedup_low']:.2f}–{row['speedup_high']:.2f}){memory}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0; 1 if a case could not be measured."""
    parser = argparse.ArgumentParser("python -m benchmarks.models.more")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: show this file")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="with --from: write the table into this page")
    parser.add_argument("--cases", nargs="+", metavar="MODEL", help="default: all")
    parser.add_argument("--modes", nargs="+", choices=("eager", "compile"), default=("eager", "compile"))
    parser.add_argument("--variants", nargs="+", metavar="VARIANT", help="default: those of each case")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--zoo", default="benchmarks.models.more", metavar="MODULE", help="whose MODELS and CASES are used"
    )
    options = parser.parse_args(argv)
    if options.source is not None:
        text = markdown(report.load(options.source))
        if options.into is None:
            print(text, end="")
        else:
            options.into.write_text(
                between(options.into.read_text(encoding="utf-8"), text, "language"), encoding="utf-8"
            )
        return 0
    if options.out is None:
        parser.error("--out or --from is needed")
    document = report.new()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    zoo = importlib.import_module(options.zoo)
    full = {m.name: m.full for m in zoo.MODELS}
    cases = [c for c in zoo.CASES if options.cases is None or c.model in options.cases]
    workers = {c.model: Worker(c.model, device, options.zoo) for c in cases}
    for mode in options.modes:
        asked = [
            (workers[c.model], Case(full[c.model], mode, options.variants or c.modes[mode], options.rounds))
            for c in cases
            if mode in c.modes
        ]
        while asked:
            again = []
            # optimize(step=) times the model while it is prepared, and needs the GPU for itself.
            groups = [[one] for one in asked] if mode == "eager" else [asked]
            for worker, case, found in chain.from_iterable(map(measured, groups)):
                named = {"model": worker.name, "batch": "full", "size": case.batch, "mode": mode}
                if isinstance(found, str):
                    print(f"{worker.name}, {mode}: {found}", file=sys.stderr, flush=True)
                    report.add(document, "failed", [{**named, "reason": found}])
                    if "liger" in case.variants:  # it may not know this version of transformers
                        again.append((worker, replace(case, variants=[v for v in case.variants if v != "liger"])))
                else:
                    lines = [{**named, "variant": v, **row} for v, row in found.items()]
                    print(worker.name, mode, *(f"{r['variant']} {r['wall']:.2f}" for r in lines), flush=True)
                    report.add(document, "rows", lines)
                report.save(options.out, document)
            asked = again
    for worker in workers.values():
        worker.close()
    return int(bool(document["failed"]))


if __name__ == "__main__":
    raise SystemExit(main())
