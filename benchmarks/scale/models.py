"""The models that are trained on several GPUs: built with random weights, nothing is downloaded."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MODELS", "VARIANTS", "Model", "characters", "images", "language"]

VARIANTS = ("torch", "cupyops")


@dataclass(frozen=True)
class Model:
    """A model, and how it is trained.

    Attributes:
        name: the name in tables and on the command line.
        build: makes the model with the modules of PyTorch ("torch") or with the shipped operators ("cupyops").
        blocks: the blocks that are sharded, compiled and checkpointed one by one.
        split: shards the model over a mesh by tensor and sequence parallelism, in place.
        draw: (rows, generator) to a batch, on the CPU.
        loss: (model, batch) to a loss without dimensions.
        rows: rows of a batch on each rank.
        unit: what is counted in a second.
        units: how many of them a row has.
        compile_rest: compiles what the model computes after its blocks, in place; by default nothing.
    """

    name: str
    build: Callable[[str], nn.Module]
    blocks: Callable[[Any], Sequence[nn.Module]]
    split: Callable[[Any, Any], nn.Module]
    draw: Callable[[int, torch.Generator], tuple[Tensor, ...]]
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
    rows: int
    unit: str
    units: int
    compile_rest: Callable[[Any], None] = lambda model: None


def characters(layers: int, heads: int, width: int, context: int, rows: int, name: str = "char_gpt") -> Model:
    """The transformer of ``examples.char_gpt`` on random characters."""
    from examples.gpt.model import build_model
    from examples.gpt.plans import split_matrices

    vocabulary = 96

    def build(variant: str) -> nn.Module:
        sizes = {"context": context, "layers": layers, "heads": heads, "width": width}
        return build_model(vocabulary, Namespace(**sizes, seed=0, backend={"cupyops": "kernels"}.get(variant, variant)))

    def draw(rows: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        drawn = torch.randint(vocabulary, (rows, context + 1), generator=generator)
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        characters, targets = batch
        # In float32, also of a model in bfloat16, whose loss would have three digits.
        return F.cross_entropy(model(characters).flatten(0, 1).float(), targets.flatten())

    return Model(name, build, lambda m: list(m.blocks), split_matrices, draw, loss, rows, "tokens", context)


def vit_large() -> nn.Module:
    """ViT-L/16 of timm, with the mean of the patches for the class token: ranks divide its 196 positions."""
    import timm

    made: nn.Module = timm.create_model("vit_large_patch16_224", pretrained=False, class_token=False, global_pool="avg")
    return made


def images(rows: int, name: str = "ViT-L/16", create: Callable[[], nn.Module] = vit_large, size: int = 224) -> Model:
    """A vision transformer as timm has it, on random images.

    The variant "cupyops" is the model after ``cupyops.torch.optimize``.

    Args:
        rows, name: of the :class:`Model`.
        create: makes the model.
        size: height and width of an image.
    """

    def build(variant: str) -> nn.Module:
        from cupyops.torch import optimize

        torch.manual_seed(0)
        made = create()
        if variant == "cupyops":
            optimize(made)
        return made

    def draw(rows: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return torch.randn(rows, 3, size, size, generator=generator), torch.randint(1000, (rows,), generator=generator)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    return Model(name, build, lambda m: list(m.blocks), split_vit, draw, loss, rows, "images", 1)


def split_vit(model: Any, mesh: Any) -> nn.Module:
    """Tensor parallelism with sequence parallelism for a vision transformer of timm."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    ranks = mesh.size()
    for block in model.blocks:
        attention = block.attn
        # timm's rows are q, k and v of all heads. A rank's rows have to be q, k and v of its heads.
        for parameter in (attention.qkv.weight, attention.qkv.bias):
            with torch.no_grad():
                by_head = parameter.unflatten(0, (3, ranks, -1)).transpose(0, 1)
                parameter.copy_(by_head.reshape(parameter.shape).clone())
        attention.num_heads //= ranks
        attention.attn_dim //= ranks
    split, whole = Shard(1), Replicate()
    rows = RowwiseParallel(output_layouts=split)
    plan = {
        "blocks": PrepareModuleInput(input_layouts=whole, desired_input_layouts=split, use_local_output=True),
        "blocks.*.norm1": SequenceParallel(use_local_output=True),
        "blocks.*.norm2": SequenceParallel(use_local_output=True),
        "blocks.*.attn": PrepareModuleInput(input_layouts=split, desired_input_layouts=whole, use_local_output=True),
        "blocks.*.attn.qkv": ColwiseParallel(),
        "blocks.*.attn.proj": rows,
        "blocks.*.mlp.fc1": ColwiseParallel(input_layouts=split),
        "blocks.*.mlp.fc2": rows,
        "norm": SequenceParallel(),
    }
    parallelize_module(model, mesh, plan)
    parallelize_module(model, mesh, {"norm": PrepareModuleOutput(output_layouts=split, desired_output_layouts=whole)})
    return model


def language(
    layers: int, heads: int, width: int, hidden: int, vocabulary: int, context: int, rows: int, name: str = "Llama"
) -> Model:
    """A Llama of transformers on random tokens.

    The variant "cupyops" is the model after ``cupyops.torch.optimize(model, lazy_logits=True)``.
    """

    def build(variant: str) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        from cupyops.torch import optimize

        sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers}
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocabulary}
        torch.manual_seed(0)
        made: Any = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=context, use_cache=False))
        if variant == "cupyops":
            optimize(made, lazy_logits=True)
        made.variant = variant
        found: nn.Module = made
        return found

    def draw(rows: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return (torch.randint(vocabulary, (rows, context), generator=generator),)

    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        (tokens,) = batch
        if (head := getattr(model, "sharded_head", None)) is None:
            found: Any = model(input_ids=tokens, labels=tokens).loss
        else:
            y = model.model(input_ids=tokens).last_hidden_state
            found = head(y, F.pad(tokens[:, 1:], (0, 1), value=-100))
        whole: Tensor = found.full_tensor() if hasattr(found, "full_tensor") else found
        return whole

    def compile_rest(model: Any) -> None:
        if model.variant == "torch":  # the loss of the other variant is one operator
            model.loss_function = torch.compile(model.loss_function)

    return Model(
        name, build, lambda m: list(m.model.layers), split_llama, draw, loss, rows, "tokens", context, compile_rest
    )


def split_llama(model: Any, mesh: Any) -> nn.Module:
    """Tensor parallelism for a Llama of transformers, with the vocabulary of the head divided among the ranks.

    PyTorch's variant has the logits of some classes on each rank, and its loss is that of ``loss_parallel``.
    """
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from autograd_bridge import LinearCrossEntropyLoss

    columns, rows = ColwiseParallel(), RowwiseParallel()
    inner = "model.layers.*"
    plan: dict[str, Any] = {
        f"{inner}.{name}": columns for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    }
    plan |= {f"{inner}.{name}": columns for name in ("mlp.gate_proj", "mlp.up_proj")}
    plan |= {f"{inner}.{name}": rows for name in ("self_attn.o_proj", "mlp.down_proj")}
    plan["lm_head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, plan)
    if model.variant == "cupyops":
        head = LinearCrossEntropyLoss(*reversed(model.lm_head.weight.shape), device="meta")
        head.linear = model.lm_head
        model.sharded_head = head
    whole: nn.Module = model
    return whole


# GPT-2's 12 blocks of width 768, with 65536 tokens, and timm's ViT-L. Under FSDP2 in eager mode, the host of two H100s
# took 7 ms of a step for each block of a transformer and 5 to 6 ms for each of ViT-L. The kernels of these batches take
# longer. Tensor parallelism takes the host 18 to 21 ms for each block, and stays bound by the host. The Llama has 0.44
# thousand million parameters in few and wide blocks, for the same reason.
MODELS = (
    characters(12, 12, 768, 1024, 64),
    images(192),
    language(12, 12, 1536, 4096, 32000, 2048, 12, name="Llama 0.4B"),
)
