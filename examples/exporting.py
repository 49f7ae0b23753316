"""A trained classifier of images as an ONNX file, and its accuracy there."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from cupyops.errors import ExportError
from cupyops.torch import export_onnx
from cupyops.torch.onnx.export import require_onnx
from examples.console import UserError
from examples.datasets import ImageSet
from examples.files import naming

__all__ = ["accuracy_of_file", "check_export", "export_classifier"]


def check_export(path: Path) -> None:
    """Refuse, before the training, what could not be written after it.

    Raises `UserError` where the folder is not there, `MissingDependencyError` where a package is not.
    """
    require_onnx()
    if not path.parent.is_dir():
        raise UserError(f"--export: there is no folder {path.parent}; make it, or name another file")


def export_classifier(
    model: nn.Module, path: Path, test: ImageSet, accuracy: float, batch_size: int, echo: Callable[[str], object]
) -> None:
    """Write `model`, on the CPU and in evaluation mode, and say how far its file is from it.

    `accuracy` is what PyTorch has measured on `test`, percent, for comparison. Raises `UserError` if the file is not right.
    """
    example = torch.zeros(1, 1, *test.images.shape[1:])
    example[0, 0] = test.images[0] / 255
    try:
        with naming(path):
            report = export_onnx(
                model, example, path, input_names=["images"], output_names=["logits"], dynamic_shapes=({0: "batch"},)
            )
    except ExportError as error:
        raise UserError(f"--export: {error}") from error
    found = accuracy_of_file(path, test, batch_size)
    echo(f"ONNX: {report}")
    echo(f"Test Accuracy under onnxruntime: {found:.2f} % (PyTorch: {accuracy:.2f} %)")


def accuracy_of_file(path: Path, test: ImageSet, batch_size: int) -> float:
    """Share of the test set that the file classifies correctly in onnxruntime, in percent."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    correct = 0
    for images, labels in zip(test.images.split(batch_size), test.labels.split(batch_size), strict=True):
        (logits,) = session.run(["logits"], {"images": (images[:, None].to(torch.float32) / 255).numpy()})
        correct += int((torch.from_numpy(logits).argmax(1) == labels).sum())
    return 100 * correct / len(test)
