"""The export of models to ONNX."""

from cupyops.deprecated import moved_names

__getattr__ = moved_names(__name__, "cupyops.torch.onnx.export")
