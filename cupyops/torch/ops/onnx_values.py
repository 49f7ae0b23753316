"""Helper functions for the operators' ONNX forms.

An ONNX form is a function of ``op`` and the operator's arguments in order. The attributes of ``op`` are ONNX's
operators of opset 20 (``op.Mul(x, 2.0)``). A tensor argument is an ONNX value with a ``dtype`` and a ``shape``, an
absent tensor is None, and other arguments are Python objects. The form returns an ONNX value for each result. A Python
number next to an ONNX value takes the dtype of the value.

16-bit floats are computed in float32, as in the kernels. Some ONNX operators are not accurate in float64, because they
have float32 constants or attributes, or have no float64 implementation in common runtimes. For float64, the forms write
such an operator as elementary operations.
"""

from typing import Any

__all__ = ["BFLOAT16", "DOUBLE", "FLOAT", "FLOAT16", "FLOATS", "cast", "in_float32"]

# onnx.TensorProto.DataType
FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 1, 10, 11, 16
FLOATS = {"float32": FLOAT, "float16": FLOAT16, "float64": DOUBLE, "bfloat16": BFLOAT16}


def in_float32(op: Any, *values: Any) -> Any:
    """Returns the values with 16-bit floats converted to float32. Other values, and None, are unchanged."""
    wide = [op.Cast(x, to=FLOAT) if x is not None and x.dtype in (FLOAT16, BFLOAT16) else x for x in values]
    return wide[0] if len(wide) == 1 else wide


def cast(op: Any, x: Any, dtype: int) -> Any:
    """Returns the value converted to a dtype; the value itself if it already has that dtype."""
    return x if x.dtype == dtype else op.Cast(x, to=dtype)
