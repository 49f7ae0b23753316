"""The export that two examples share: a model's ONNX file, written whole or not at all, and what runs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .command import naming


def exported(
    model: nn.Module, sample: Tensor, path: Path, names: tuple[str, str], **options: Any
) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Write a model as ONNX, with a free batch dimension; return the report of the export, and a function that runs the
    file under onnxruntime.

    Args:
        names: of the input and of the output.
        options: of ``export_onnx``.
    """
    from cupyops.torch.onnx.export import export_onnx

    shapes: dict[str, Any] = {"dynamic_shapes": ({0: "batch"},), "input_names": names[:1], "output_names": names[1:]}
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        report = export_onnx(model, (sample,), path, **shapes, **options)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return report, lambda x: torch.from_numpy(session.run(None, {names[0]: x.numpy()})[0])
