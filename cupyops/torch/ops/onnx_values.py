"""What the operators' ONNX forms share.

An ONNX form gets ``op``, whose attributes are ONNX's operators of opset 20 (``op.Mul(x, 2.0)``), and the operator's own
arguments in order: tensors as values that know their ``dtype`` and ``shape``, absent ones as None, everything else as it was
given. The form returns a value for each result. Numbers beside values take their dtype.

16-bit floats are computed in float32, as the kernels compute them. Where a runtime's operator is not as wide as float64
(constants and attributes of float32, or no implementation at all), float64 is written out.
"""

from typing import Any

__all__ = ["BFLOAT16", "DOUBLE", "FLOAT", "FLOAT16", "FLOATS", "cast", "in_float32"]

# onnx.TensorProto.DataType
FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 1, 10, 11, 16
FLOATS = {"float32": FLOAT, "float16": FLOAT16, "float64": DOUBLE, "bfloat16": BFLOAT16}


def in_float32(op: Any, *values: Any) -> Any:
    """16-bit floats as float32, others as they are; None stays None."""
    wide = [op.Cast(x, to=FLOAT) if x is not None and x.dtype in (FLOAT16, BFLOAT16) else x for x in values]
    return wide[0] if len(wide) == 1 else wide


def cast(op: Any, x: Any, dtype: int) -> Any:
    """The value in a dtype; the value itself where it has that dtype."""
    return x if x.dtype == dtype else op.Cast(x, to=dtype)
