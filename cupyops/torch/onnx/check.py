"""Whether an ONNX file gives what the model gives: onnx's checker, and onnxruntime on a CPU beside PyTorch."""

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

# How far an output may be from PyTorch's, by the coarsest dtype in the model: a part of the output's largest element, and a
# little where all are small. Integers and bools must be equal.
_TOLERANCES = {
    torch.bfloat16: (5e-2, 1e-5),
    torch.float16: (1e-2, 1e-5),
    torch.float32: (1e-4, 1e-6),
    torch.float64: (1e-8, 1e-12),
}


@dataclass(frozen=True)
class ExportReport:
    """What became of an export.

    Attributes:
        path: the file.
        errors: of each output, the largest difference of an element between onnxruntime and PyTorch; empty if unchecked.
        shapes: the inputs' shapes that were run, the example's first; empty if unchecked.
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
    """Checks a file, under its temporary name, and reports of it under its own.

    Raises:
        ExportError: the checker or onnxruntime refuses the file, or a result is not the model's.
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
    except Exception as error:  # onnxruntime has an exception of its own for each of its status codes
        raise ExportError(
            f"export_onnx: onnxruntime refuses the file: {_first_line(error)}; check=False writes it all the same"
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
    except Exception as error:  # whatever a model may raise
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
    """The largest difference of an element.

    Raises:
        ExportError: it is too large, or shape or dtype is another.
    """
    wanted = wanted.detach().cpu()
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        raise ExportError(
            f"export_onnx: output {name!r} must be {wanted.dtype} of shape {tuple(wanted.shape)} {where}, got {got.dtype} "
            f"of shape {tuple(got.shape)}"
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
            f"export_onnx: output {name!r} differs from PyTorch's by {largest:.3g} {where}, where {allowed:.3g} is allowed; "
            "check=False writes the file all the same"
        )
    return largest


def _other_sizes(args: tuple[Any, ...], program: Any) -> list[tuple[Any, ...]]:
    """The example with other sizes of its free dimensions, made of the example's own slices; nothing if none is free."""
    leaves, tree = pytree.tree_flatten(args)
    values = traced_inputs(program, len(leaves))
    free = {}  # of each size's symbol, another value than the example's
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
    """What a traced program takes for the last `count` of its inputs, those that are no weights: tensors with symbols for free
    sizes; else something of no interest."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [node.meta.get("val") for node in nodes[len(nodes) - count :]]


def to_runtime(x: Tensor) -> Any:
    """A tensor as onnxruntime takes it; NumPy has no bfloat16."""
    import onnxruntime

    x = x.detach().cpu().contiguous()
    if x.dtype == torch.bfloat16:
        bits = x.view(torch.uint16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)  # TensorProto.BFLOAT16
    return onnxruntime.OrtValue.ortvalue_from_numpy(x.numpy())


def from_runtime(value: Any) -> Tensor:
    """What onnxruntime gives, as a tensor."""
    if value.data_type() == "tensor(bfloat16)":
        return torch.from_dlpack(value)
    return torch.from_numpy(value.numpy())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
