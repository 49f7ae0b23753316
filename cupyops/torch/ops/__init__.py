"""The shipped operators for PyTorch: functions, modules, references, ONNX forms."""
