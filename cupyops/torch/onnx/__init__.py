"""The export of models to ONNX."""
