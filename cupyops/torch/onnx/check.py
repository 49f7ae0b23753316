"""Checks an ONNX file: runs onnx.checker, and compares onnxruntime's results on a CPU with PyTorch's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cupyops.errors import ExportError

__all__ = ["ExportReport", "run_and_compare", "traced_inputs"]

# Allowed difference of an output from PyTorch's, by the lowest precision in the model: (relative to the largest element
# of the output, absolute). The allowed difference is the sum of both. Integers and bools must be equal.
_TOLERANCES = {
    torch.bfloat16: (5e-2, 1e-5),
    torch.float16: (1e-2, 1e-5),
    torch.float32: (1e-4, 1e-6),
    torch.float64: (1e-8, 1e-12),
}


@dataclass(frozen=True)
class ExportReport:
    """The result of an export; ``str(report)`` is a sentence.

    Attributes:
        path: the file.
        errors: the largest difference of an element between onnxruntime and PyTorch, by name of the output; empty if
            the file was not checked.
        shapes: the shapes of the inputs of each checked run, the example's first; empty if the file was not checked.
    """

    path: Path
    errors: Mapping[str, float] = field(default_factory=dict)
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def __str__(self) -> str:
        if not self.shapes:
            return f"{self.path}, not checked"
        errors = ", ".join(f"{name} {error:.3g}" for name, error in self.errors.items())
        inputs = " and ".join(" ".join(str(tuple(s)) for s in shapes) for shapes in self.shapes)
        return f"{self.path}: the largest difference between onnxruntime and PyTorch is {errors}, for inputs {inputs}"


def run_and_compare(model: nn.Module, args: tuple[Any, ...], program: Any, file: Path, path: Path) -> ExportReport:
    """Checks the file at the temporary path `file`; returns a report with the final path.

    Raises:
        ExportError: onnx.checker or onnxruntime refuses the file, or a result differs from the model's result.
    """
    import onnx
    import onnxruntime

    try:
        onnx.checker.check_model(str(file), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"export_onnx: onnx.checker refuses the file: {_first_line(error)}") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a different exception type for each status code
        raise ExportError(
            f"export_onnx: onnxruntime refuses the file: {_first_line(error)}; check=False writes it anyway"
        ) from error
    errors: dict[str, float] = {}
    shapes = []
    for inputs in (args, *_other_sizes(args, program)):
        given = [x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor)]
        shapes.append(tuple(tuple(x.shape) for x in given))
        where = f"for inputs of shape {' '.join(map(str, shapes[-1]))}"
        for name, difference in _compared(model, inputs, session, given, where).items():
            errors[name] = max(difference, errors.get(name, 0.0))
    return ExportReport(path, errors, tuple(shapes))


def _compared(
    model: nn.Module, inputs: tuple[Any, ...], session: Any, given: Sequence[Tensor], where: str
) -> dict[str, float]:
    try:
        with torch.no_grad():
            wanted = [y for y in pytree.tree_leaves(model(*inputs)) if isinstance(y, Tensor)]
    except Exception as error:  # a model may raise any exception
        raise ExportError(f"export_onnx: the model itself fails {where}: {_first_line(error)}") from error
    names = [i.name for i in session.get_inputs()]
    outputs = [o.name for o in session.get_outputs()]
    if (len(names), len(outputs)) != (len(given), len(wanted)):
        raise ExportError(
            f"export_onnx: the file must have an input for each of {len(given)} tensors and an output for each of "
            f"{len(wanted)}, got inputs {names} and outputs {outputs}"
        )
    dtypes = {x.dtype for x in (*given, *wanted, *model.parameters(), *model.buffers())}
    tolerance = next((t for dtype, t in _TOLERANCES.items() if dtype in dtypes), (0.0, 0.0))
    try:
        found = session.run_with_ort_values(None, {n: to_runtime(x) for n, x in zip(names, given, strict=True)})
    except Exception as error:
        raise ExportError(f"export_onnx: onnxruntime fails {where}: {_first_line(error)}") from error
    return {
        name: _difference(name, from_runtime(got), y, tolerance, where)
        for name, got, y in zip(outputs, found, wanted, strict=True)
    }


def _difference(name: str, got: Tensor, wanted: Tensor, tolerance: tuple[float, float], where: str) -> float:
    """Returns the largest difference of an element.

    Raises:
        ExportError: the difference is larger than allowed, or shape or dtype differs.
    """
    wanted = wanted.detach().cpu()
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        raise ExportError(
            f"export_onnx: output {name!r} must be {wanted.dtype} of shape {tuple(wanted.shape)} {where}, "
            f"got {got.dtype} of shape {tuple(got.shape)}"
        )
    relative, absolute = tolerance if wanted.is_floating_point() else (0.0, 0.0)
    a, b = got.double(), wanted.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    scale = torch.where(b.isfinite(), b.abs(), 0.0)
    largest, allowed = (float(x.max()) if x.numel() else 0.0 for x in (error, scale))
    allowed = relative * allowed + absolute
    if largest > allowed:
        raise ExportError(
            f"export_onnx: output {name!r} differs from PyTorch's by {largest:.3g} {where}, "
            f"where {allowed:.3g} is allowed; check=False writes the file anyway"
        )
    return largest


def _other_sizes(args: tuple[Any, ...], program: Any) -> list[tuple[Any, ...]]:
    """Returns the example with other sizes of its free dimensions, as a list; an empty list if no dimension is free."""
    leaves, tree = pytree.tree_flatten(args)
    values = traced_inputs(program, len(leaves))
    free = {}  # for the symbol of each free size, a size that differs from the example's
    for x, value in zip(leaves, values, strict=True):
        for size, traced in zip(x.shape, value.shape, strict=True) if isinstance(x, Tensor) else ():
            if isinstance(traced, torch.SymInt) and traced.node.expr.is_Symbol:
                limits = program.range_constraints.get(traced.node.expr)
                free[traced.node.expr] = size + 1 if limits is None or size + 1 <= limits.upper else size - 1
    if not free:
        return []
    for i, (x, value) in enumerate(zip(leaves, values, strict=True)):
        for d, traced in enumerate(value.shape if isinstance(x, Tensor) else ()):
            if isinstance(traced, torch.SymInt):
                size = int(traced.node.expr.subs(free))
                leaves[i] = leaves[i].index_select(d, torch.arange(size, device=x.device) % x.shape[d])
    return [pytree.tree_unflatten(leaves, tree)]


def traced_inputs(program: Any, count: int) -> list[Any]:
    """Returns the traced values of the last `count` inputs of a program, which are the inputs that are not weights.

    A tensor input has a fake tensor, whose free sizes are symbols. The values of other inputs are not used.
    """
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [node.meta.get("val") for node in nodes[len(nodes) - count :]]


def to_runtime(x: Tensor) -> Any:
    """Converts a tensor to an onnxruntime value; bfloat16 is passed as uint16, because NumPy has no bfloat16."""
    import onnxruntime

    x = x.detach().cpu().contiguous()
    if x.dtype == torch.bfloat16:
        bits = x.view(torch.uint16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)  # TensorProto.BFLOAT16
    return onnxruntime.OrtValue.ortvalue_from_numpy(x.numpy())


def from_runtime(value: Any) -> Tensor:
    """Converts an onnxruntime value to a tensor."""
    if value.data_type() == "tensor(bfloat16)":
        return torch.from_dlpack(value)
    return torch.from_numpy(value.numpy())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
