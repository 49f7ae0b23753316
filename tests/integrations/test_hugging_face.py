"""The layers in Hugging Face's `kernels`, and in transformers' models by it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cupyops.integrations.hub import layers
from cupyops.torch import optimize
from cupyops.torch.models.classes import is_optimised
from cupyops.torch.models.rotary import own_rotary

from .modules import Turn, Zeroed

kernels = pytest.importorskip("kernels")
from cupyops.integrations import hugging_face  # noqa: E402 - it needs kernels

MODES = [kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE, kernels.Mode.TRAINING, kernels.Mode.INFERENCE]


def named(cls: type[nn.Module], name: str) -> type[nn.Module]:
    return type(cls.__name__, (cls,), {"kernel_layer_name": name})


def small_model() -> nn.Module:
    parts = [named(nn.LayerNorm, "LayerNorm")(24), named(nn.RMSNorm, "RMSNorm")(24), Zeroed(24)]
    return nn.Sequential(*parts, named(nn.GELU, "GeLU")(), nn.Linear(24, 5))


def kernelized(model: nn.Module, mode: Any = MODES[0], use_fallback: bool = False) -> nn.Module:
    with kernels.use_kernel_mapping(hugging_face.mapping(("cpu",)), inherit_mapping=False):
        return kernels.kernelize(model, mode=mode, device="cpu", use_fallback=use_fallback)


def of_hub(module: nn.Module) -> bool:
    """Returns whether a replaced forward computes a module."""
    return "forward" in vars(module) and module.forward.__func__ is not type(module).forward


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_kernelize_takes_every_layer_without_a_fallback(mode: Any) -> None:
    torch.manual_seed(0)
    model, x = small_model(), torch.randn(6, 24)
    right = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    kernelized(model, mode)
    assert [of_hub(m) for m in model] == [True] * 4 + [False]
    found = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    torch.testing.assert_close(found, right)


def test_optimize_comes_before_kernelize() -> None:
    """`kernelize` writes the `forward` of its class into a module for whose name it finds no kernel."""
    torch.manual_seed(0)
    model, x = small_model(), torch.randn(6, 24)
    right = model(x)
    assert len(optimize(model).replaced) == 3
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        kernels.kernelize(model, mode=MODES[1], device="cpu")
    assert is_optimised(type(model[0]))
    torch.testing.assert_close(model(x), right)
    assert "replaced on the instance" in str(optimize(kernelized(small_model())))


def test_a_kernelized_model_compiles_into_one_graph_with_the_operators() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    model, x = small_model(), torch.randn(6, 24)
    right = model(x)
    torch.testing.assert_close(torch.compile(kernelized(model), backend=backend, fullgraph=True)(x), right)
    assert [name in graphs[0].code for name in ("layer_norm", "rms_norm", "gelu")] == [True] * 3
    assert "cupyops" in graphs[0].code


def test_a_function_for_rotary_embedding_is_exchanged_and_found() -> None:
    """`kernels` makes a module of a decorated function, which `kernelize` sees at the class that names it."""

    @kernels.use_kernel_forward_from_hub("rotary_pos_emb")
    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        return Turn()(q, k, cos, sin, unsqueeze_dim)

    @kernels.use_kernelized_func(apply_rotary_pos_emb)
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
            return apply_rotary_pos_emb(q, k, cos, sin)

    q, k = torch.randn(2, 2, 3, 5, 8).unbind()
    angle = torch.randn(2, 5, 4).repeat(1, 1, 2)
    right = Attention()(q, k, angle.cos(), angle.sin())
    assert own_rotary("apply_rotary_pos_emb", apply_rotary_pos_emb) is not None
    attention = kernelized(Attention())
    assert of_hub(apply_rotary_pos_emb)
    torch.testing.assert_close(attention(q, k, angle.cos(), angle.sin()), right)
    assert own_rotary("apply_rotary_pos_emb", apply_rotary_pos_emb) is None  # another kernel was chosen


@pytest.mark.parametrize("name", sorted(hugging_face.LAYERS))
def test_layers_pass_the_checks_of_kernels_for_stateless_layers(name: str) -> None:
    from kernels.layer.layer import _validate_layer

    repository = hugging_face.mapping()[name]["cuda"]
    layer = repository.load()
    module = Turn if name == "rotary_pos_emb" else nn.GELU if "elu" in name.lower() else nn.RMSNorm
    _validate_layer(check_cls=module, cls=layer, repo=repository)
    assert (layer.__name__, layer.has_backward, layer.can_torch_compile) == (hugging_face.LAYERS[name], True, True)
    assert set(layers.__all__) == set(hugging_face.LAYERS.values())


def test_the_build_is_one_that_kernels_resolves_and_holds_to_its_digest(tmp_path: Path) -> None:
    from kernels._rust import Digest, DigestAlgorithm, DigestValidationError, Metadata
    from kernels.validate import default_metadata_validators
    from kernels.variants import get_variants_local, resolve_variant

    build = hugging_face.write_build(tmp_path)
    metadata = Metadata.read_from_file(build / "metadata.json")
    for validator in default_metadata_validators():
        validator.validate_metadata(metadata=metadata, variant=build.name)
    assert [v.variant_str for v in get_variants_local(tmp_path / "build")] == ["torch-cuda"]
    if torch.version.cuda:
        assert resolve_variant(get_variants_local(tmp_path / "build"))[0] is not None
    assert kernels.get_local_kernel(build).layers.RMSNorm.has_backward
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, build))
    (build / "layers.py").write_text("changed")
    with pytest.raises(DigestValidationError):
        metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, build))
    with pytest.raises(FileExistsError):
        hugging_face.write_build(tmp_path)


def test_the_version_of_the_build_is_that_of_the_package() -> None:
    import cupyops

    metadata = json.loads((hugging_face.PATH / "metadata.json").read_text())
    assert metadata["id"] == "_cupyops_cuda_" + cupyops.__version__.replace(".", "_")


def a_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    if not transformers.utils.import_utils.is_kernels_available():
        pytest.skip("transformers does not take this version of kernels")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def test_a_kernelized_llama_trains_with_equal_losses() -> None:
    losses = []
    for ours in (False, True):
        model = a_llama()
        if ours:
            kernelized(model, kernels.Mode.TRAINING, use_fallback=True)  # of rotary embeddings
            assert sum(map(of_hub, model.modules())) == 5
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        tokens = torch.randint(64, (2, 16))
        for _ in range(3):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_transformers_takes_the_folder_as_a_local_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_llama()
    from transformers.utils import kernel_config

    config = kernel_config.KernelConfig({"RMSNorm": f"{hugging_face.PATH}:RMSNorm"}, use_local_kernel=True)
    tokens = torch.arange(12).view(2, 6)
    own = model(tokens).logits
    monkeypatch.setattr(kernel_config, "KERNELS_SUPPORTED_DEVICE_TYPES", ["cpu"])  # it takes no CPU
    model.set_use_kernels(True, config)
    assert of_hub(model.model.norm)
    assert model.model.norm.forward.__func__.__qualname__ == "RMSNorm.forward"
    torch.testing.assert_close(model(tokens).logits, own)


def test_a_single_device_is_not_read_letter_by_letter() -> None:
    with pytest.raises(TypeError, match="mapping: `devices` must be a list of device types, got 'cuda'"):
        hugging_face.mapping("cuda")
