"""Bytes that compiled models save between forward and backward, before and after ``optimize()``. No GPU is needed.

::

    python -m benchmarks.models.saved              # a table of all models
    python -m benchmarks.models.saved Swin-T       # and which tensors of this model differ

AOTAutograd's partitioner splits the graph of a training step into forward and backward, and chooses what the forward saves.
This script counts the tensors that it chose, without running Inductor. A view counts as the tensor that it shows, once;
parameters and inputs do not count. A number of each row, such as a mean, counts as float32, which it is on a GPU: PyTorch's
norm has 16 bits on a CPU. The models have the widths that are trained, and two layers, few rows and few classes. A GPU's graph
differs in the attention.
"""

import argparse
import copy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.partitioners as partitioners
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node

from cupyops.torch import optimize

__all__ = ["CASES", "main", "saved"]

Key = tuple[str, tuple[int, ...]]


class Step(nn.Module):
    """The loss of a model for one input."""

    def __init__(self, model: nn.Module, name: str, labels: bool) -> None:
        super().__init__()
        self.model, self.name, self.labels = model, name, labels

    def forward(self, x: Tensor) -> Tensor:
        if self.labels:
            loss: Tensor = self.model(**{self.name: x, "labels": x}).loss
            return loss
        y = self.model(x) if not self.name else self.model(**{self.name: x}).last_hidden_state
        found: Tensor = y.float().square().mean()
        return found


def saved(step: nn.Module, x: Tensor) -> Counter[Key]:
    """Returns how many tensors of each dtype and shape the compiled forward of a step saves."""
    graphs: list[Graph] = []

    def forward(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    def backward(module: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(module.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=partitioners.min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),  # Inductor's
    )
    torch.compiler.reset()
    torch.compile(step, backend=backend)(x).backward()
    return sum((_saved_by(graph) for graph in graphs), Counter())


def _saved_by(graph: Graph) -> Counter[Key]:
    (output,) = graph.find_nodes(op="output")
    tensors: Any = output.args[0]
    bases = {_base(node) for node in tensors[1:] if isinstance(node, Node)}  # the first is the loss
    values = [node.meta.get("val") for node in bases if node.op != "placeholder"]
    return Counter((str(v.dtype).removeprefix("torch."), tuple(v.shape)) for v in values if isinstance(v, Tensor))


def _base(node: Node) -> Node:
    """Returns the node whose result a view shows."""
    while getattr(node.target, "is_view", False) or node.target is torch.ops.aten.alias.default:
        node = node.all_input_nodes[0]
    return node


def nbytes(found: Counter[Key]) -> int:
    return sum(n * _nbytes(key) for key, n in found.items())


def _nbytes(key: Key) -> int:
    dtype, shape = key
    known = torch.float32 if shape[-1:] == (1,) else getattr(torch, dtype)
    return torch.empty(shape, dtype=known, device="meta").nbytes


def transformer(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**options))
        return made

    return build


def picture(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        made: nn.Module = timm.create_model(name, pretrained=False, **options)
        return made

    return build


def _decoder(kind: str, **options: Any) -> Callable[[], nn.Module]:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 8}
    named = {**sizes, "num_hidden_layers": 2, "vocab_size": 1024, "use_cache": False, **options}
    return transformer(f"{kind}ForCausalLM", f"{kind}Config", **named)


_T5: dict[str, Any] = {"d_model": 768, "d_ff": 2048, "num_layers": 2, "num_heads": 12, "d_kv": 64, "dropout_rate": 0.0}
_T5 |= {"feed_forward_proj": "gated-gelu", "vocab_size": 1024, "use_cache": False, "decoder_start_token_id": 0}
_SPECIAL = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
_WAV = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0}
_WAV |= {"layerdrop": 0.0, "mask_time_prob": 0.0, "num_hidden_layers": 2}
_SMALL = {"num_hidden_layers": 2, "vocab_size": 1024}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# The name of the argument of the model, "" for images; whether the model computes the loss; the shape of the input.
Input = tuple[str, bool, tuple[int, ...]]
_TOKENS: Input = ("input_ids", True, (2, 128))
_IMAGES: Input = ("", False, (2, 3, 224, 224))
CASES: dict[str, tuple[Callable[[], nn.Module], Input]] = {
    "Llama": (_decoder("Llama"), _TOKENS),
    "Qwen3": (_decoder("Qwen3", head_dim=64), _TOKENS),
    "Gemma-2": (_decoder("Gemma2", head_dim=64, query_pre_attn_scalar=64), _TOKENS),
    "Mistral": (_decoder("Mistral", sliding_window=None), _TOKENS),
    "T5": (transformer("T5ForConditionalGeneration", "T5Config", **_T5), _TOKENS),
    "ModernBERT": (transformer("ModernBertForMaskedLM", "ModernBertConfig", **_SMALL, **_SPECIAL), _TOKENS),
    "BERT": (transformer("BertForMaskedLM", "BertConfig", **_SMALL, **_NO_DROPOUT), _TOKENS),
    "wav2vec 2.0": (transformer("Wav2Vec2Model", "Wav2Vec2Config", **_WAV), ("input_values", False, (2, 16000))),
    "MLP-Mixer": (picture("mixer_b16_224"), _IMAGES),
    "EVA-02": (picture("eva02_base_patch14_224", depth=2), _IMAGES),
    "DINOv2": (picture("vit_base_patch14_dinov2", img_size=224, num_classes=10, depth=2), _IMAGES),
    "ViT": (picture("vit_base_patch16_224", depth=2), _IMAGES),
    "Swin-T": (picture("swin_tiny_patch4_window7_224", depths=(2, 2, 2, 2)), _IMAGES),
    "ConvNeXt-T": (picture("convnext_tiny", depths=(2, 1, 1, 1)), _IMAGES),
}


def compared(name: str) -> tuple[Counter[Key], Counter[Key]]:
    """Returns what a compiled model in bfloat16 saves before and after optimize()."""
    build, (argument, labels, shape) = CASES[name]
    torch.manual_seed(0)
    plain = build().to(torch.bfloat16).train()
    ours = copy.deepcopy(plain)
    optimize(ours)
    x = torch.randint(3, 1024, shape) if labels else torch.randn(shape, dtype=torch.bfloat16)
    before, after = (saved(Step(model, argument, labels), x) for model in (plain, ours))
    return before, after


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.models.saved")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {', '.join(CASES)}")
    options = parser.parse_args(argv)
    print("| model | PyTorch, MiB | `optimize()` |\n| --- | --- | --- |")
    for name in options.models or CASES:
        try:
            before, after = compared(name)
        except Exception as error:  # one model must not lose the others
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(f"| {name} | {nbytes(before) / 2**20:.1f} | {nbytes(after) / nbytes(before):.3f} |", flush=True)
        if options.models:
            for key in sorted(before | after, key=_nbytes, reverse=True):
                if before[key] != after[key]:
                    print(f"  {key[0]} {key[1]}: {before[key]}, {after[key]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
