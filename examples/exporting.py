"""The export to ONNX that two examples share: writes the file atomically, and runs the file under onnxruntime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .command import naming
from .data import ImageSet


def exported(
    model: nn.Module, sample: Tensor, path: Path, names: tuple[str, str], **options: Any
) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Write a model as ONNX, with a free batch dimension; return the report of the export, and a function that runs the
    file under onnxruntime.

    Args:
        names: the names of the input and of the output.
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


def export_and_test(
    model: nn.Module,
    path: Path,
    test: ImageSet,
    accuracy: Callable[..., float],
    percent: float,
    echo: Callable[[str], object],
) -> None:
    """Write a classifier as ONNX, and print the file's accuracy on the test set compared with PyTorch's `percent`."""
    report, run = exported(model, test[0][0][None], path, ("images", "logits"))
    found = accuracy(run, test.batches(64, "cpu"))
    echo(f"ONNX: {report}")
    echo(f"Test Accuracy under onnxruntime: {found:.2f} % (PyTorch: {percent:.2f} %)")
