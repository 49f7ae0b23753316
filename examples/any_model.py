"""Models of timm and transformers by name, with random weights, and inputs for them. Nothing is downloaded."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.installing import pip_install

from .command import UserError

NAMES = "a name of timm.list_models(), a model type of transformers such as bert, or small"


def maker(name: str) -> Callable[[], Any]:
    """The function that builds the model of a name.

    Raises:
        UserError: no installed package has the model.
    """
    with suppress(ImportError):
        import timm

        if timm.is_model(name):
            return lambda: timm.create_model(name, pretrained=False)
    with suppress(ImportError):
        from transformers import MODEL_MAPPING, AutoConfig, AutoModel
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        if name in CONFIG_MAPPING_NAMES:
            config = AutoConfig.for_model(name)
            if type(config) in MODEL_MAPPING:
                return lambda: AutoModel.from_config(completed(config))
    install = pip_install("models")
    raise UserError(f"no model {name!r} in the packages installed here; name {NAMES}. Install them with: {install}")


def completed(config: Any) -> Any:
    """The configuration, with values for what some models leave to their checkpoints."""
    for key, value in (("vocab_size", 64), ("pad_token_id", 1)):
        if getattr(config, key, 0) is None:
            setattr(config, key, value)
    return config


def built(name: str, make: Callable[[], Any]) -> Any:
    """The model of a name.

    Raises:
        UserError: the default configuration builds no model.
    """
    try:
        return make()
    except Exception as error:  # of another package
        raise UserError(f"the default configuration of {name} builds no model: {of_one_line(error)}") from error


def check_memory(name: str, make: Callable[[], Any], copies: int, device: torch.device, dtype: torch.dtype) -> None:
    """Check that copies of a model fit into memory, before any of them is built.

    A copy that is trained with AdamW has four numbers for each parameter: itself, its gradient and two moments.

    Raises:
        UserError: they do not fit.
    """
    try:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in make().parameters())
    except Exception:  # a model that cannot be built without weights: its size is not known
        return
    needed = parameters * 4 * copies * dtype.itemsize
    there = memory_of(device)
    if there is not None and needed > there:
        raise UserError(
            f"{name} has {parameters / 1e9:.1f} billion parameters: {copies} copies of it need {needed / 1e9:.0f} GB in training, "
            f"and {device} has {there / 1e9:.0f} GB; name a smaller model"
        )


def memory_of(device: torch.device) -> int | None:
    """The free bytes of a GPU, or all bytes of the machine's memory; None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def inputs_of(model: Any, batch: int, length: int) -> dict[str, Tensor]:
    """Random inputs of a model, by the names of the parameters of its ``forward``.

    Args:
        batch: the number of samples.
        length: the number of tokens of a sample, at most as many as the model takes.
    """
    if not hasattr(model, "config"):
        return {"x": torch.randn(batch, *model.pretrained_cfg.get("input_size", (3, 224, 224)))}
    config, kind = model.config, str(model.main_input_name)
    text, vision = (getattr(config, part, config) for part in ("text_config", "vision_config"))
    if kind == "input_ids":
        inputs = {kind: tokens(text, batch, length)}
        if hasattr(model, "get_image_features") and hasattr(model, "get_text_features"):  # CLIP and its kin read both
            inputs["pixel_values"] = images(vision, batch)
    elif kind in ("pixel_values", "pixel_values_videos"):
        inputs = {kind: images(vision, batch)}
    elif kind in ("input_features", "input_values"):
        inputs = {kind: sound(config, batch)}
    else:
        raise UserError(f"{config.model_type} takes {kind}, for which this example draws no inputs; name {NAMES}")
    if "decoder_input_ids" in signature(model.forward).parameters:
        inputs["decoder_input_ids"] = tokens(text, batch, length)
    return inputs


def tokens(config: Any, batch: int, length: int) -> Tensor:
    """Numbers of words. In most vocabularies, the first few are special tokens."""
    limits = ("max_position_embeddings", "n_positions", "max_target_positions")
    most = [value for limit in limits if isinstance(value := getattr(config, limit, None), int) and value > 0]
    return torch.randint(4, config.vocab_size, (batch, min([length, *most])))


def images(config: Any, batch: int) -> Tensor:
    """Images, or clips of images for a model of videos."""
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    frames = getattr(config, "num_frames", None)
    channels = getattr(config, "num_channels", None) or 3
    return torch.randn(batch, *([frames] if isinstance(frames, int) else []), channels, height, width)


def sound(config: Any, batch: int) -> Tensor:
    """Spectrograms for a model that declares their size, else a second of sound at 16 kHz."""
    bands = getattr(config, "num_mel_bins", None)
    if bands is not None and hasattr(config, "max_source_positions"):
        return torch.randn(batch, bands, 2 * config.max_source_positions)
    if bands is not None and hasattr(config, "max_length"):
        return torch.randn(batch, config.max_length, bands)
    return torch.randn(batch, 16000)


def tensors(found: Any) -> Iterator[Tensor]:
    """The tensors of a model's result."""
    if isinstance(found, Tensor):
        yield found
    elif hasattr(found, "values") or isinstance(found, (list, tuple)):
        for part in found.values() if hasattr(found, "values") else found:
            yield from tensors(part)


def first_tensor(found: Any) -> Tensor:
    """The first floating tensor of a model's result.

    Raises:
        UserError: there is none.
    """
    first = next((x for x in tensors(found) if x.is_floating_point()), None)
    if first is None:
        raise UserError("the model's result has no floating tensor, so that there is nothing to train on")
    return first


def check_run(name: str, model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Check that a model runs on the inputs, before it is changed.

    Raises:
        UserError: the model raises an error.
    """
    try:
        with torch.no_grad():
            first_tensor(model(**inputs))
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of another package: this example draws inputs by rules that not every model follows
        shapes = ", ".join(f"{key} of shape {tuple(x.shape)}" for key, x in inputs.items())
        raise UserError(f"{name} does not run on {shapes}: {of_one_line(error)}; name another model") from error


def of_one_line(error: Exception) -> str:
    """The type of an error, and the first line of its message."""
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}{': ' if words else ''}{words}"
