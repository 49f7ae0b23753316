"""Exports a model that calls operators of :class:`cupyops.torch.Operator` to an ONNX file.

``torch.export`` traces the model. ``torch.onnx.export`` translates the traced program, with the translation that each
operator declares (``Operator(onnx=...)``). This module imports onnx only when it is called. An export needs neither a
GPU nor CuPy.
"""

import importlib
import inspect
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cupyops.errors import ExportError, MissingDependencyError, expected
from cupyops.installing import pip_install
from cupyops.torch.core.operator import Operator, operator_of

from .check import ExportReport, run_and_compare, traced_inputs
from .functions import Functions

__all__ = ["OPSET", "ExportReport", "export_onnx", "require_onnx"]

OPSET = 20  # the first opset with Gelu


def export_onnx(
    model: nn.Module,
    args: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    custom_domain: bool = False,
    check: bool = True,
) -> ExportReport:
    """Writes a model as an ONNX file (opset 20) that any ONNX runtime can run.

    Args:
        model: a module in evaluation mode, on any device.
        args: an example of the positional arguments: a tuple, or one tensor.
        path: path of the file. An existing file is replaced after the new file is complete and checked.
        input_names, output_names: names for the file's inputs and outputs, in order.
        dynamic_shapes: the free dimensions: for each argument, in order or by the name of the parameter, a
            ``{dimension: "name"}``, or a value that ``torch.export.export`` accepts. The example may have size 1 there.
        custom_domain: keep each operator as one node in the domain of its namespace (``cupyops::gelu``). Arguments
            that are not tensors become the node's attributes. Runtimes that do not implement the node use its function
            body of standard operators. With ``check=False``, an operator without an ONNX form is a node without a body,
            for a runtime that has a kernel of its own for it. If False, the file has only standard operators.
        check: run ``onnx.checker``; run the file in onnxruntime on a CPU, on the example and, if dimensions are free,
            on other sizes; compare the results with the model's results.

    Returns:
        The report, with the largest difference of each output if the file was checked.

    Raises:
        TypeError: `model` is not an ``nn.Module``.
        ValueError: the model is in training mode, or `dynamic_shapes` does not fit the parameters of forward.
        FileNotFoundError, IsADirectoryError: the folder of `path` does not exist, or `path` is a folder.
        ExportError: an operator has no ONNX form, or onnxruntime does not run the file or gives other results. No file
            is written.
        MissingDependencyError: onnx, onnxscript or onnxruntime is not installed; the message has the install command.

    Errors of ``torch.export`` pass through unchanged.
    """
    require_onnx(check=check)
    path = Path(path)
    if not isinstance(model, nn.Module):
        raise TypeError(expected("export_onnx", "model", "be an nn.Module", type(model).__name__))
    if model.training:
        raise ValueError(expected("export_onnx", "model", "be in evaluation mode: call model.eval()", "training mode"))
    if not path.parent.is_dir():
        raise FileNotFoundError(expected("export_onnx", "path", "be in a folder that exists", str(path)))
    if path.is_dir():
        raise IsADirectoryError(expected("export_onnx", "path", "name a file", f"the folder {path}"))
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    specs = _specs(model, args, dynamic_shapes)
    program = _capture(model, args, specs)
    functions = Functions(OPSET)
    table = functions.table(_operators(model, program, without_body=custom_domain and not check))
    translated = _translate(model, program, specs, table, input_names, output_names)
    with _quiet():
        _put_in(translated.model, functions, custom_domain)
    # The temporary folder is beside the target, because a rename within one file system is atomic. Large weights are in
    # a second file.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        file = Path(folder) / path.name
        translated.save(file)
        report = run_and_compare(model, args, program, file, path) if check else ExportReport(path)
        # The weights are moved first, because the model file refers to them.
        for written in sorted(Path(folder).iterdir(), key=lambda f: f == file):
            os.replace(written, path.with_name(written.name))
    return report


def require_onnx(*, check: bool = True) -> None:
    """Raises unless the packages that an export needs are installed.

    Args:
        check: whether to require onnxruntime, which checks the file.

    Raises:
        MissingDependencyError: a package is not installed, does not import, or is too old.
    """
    for name in ("onnx", "onnxscript", *(["onnxruntime"] if check else [])):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            problem = f"{name} is not installed" if missing else f"{name} does not import ({error})"
            raise MissingDependencyError(_needs(problem)) from error
        if name == "onnxscript" and not hasattr(module, "build_function"):
            raise MissingDependencyError(_needs(f"onnxscript {module.__version__} is older than 0.7"))


def _needs(problem: str) -> str:
    return (
        f"Exporting to ONNX needs onnx and onnxscript, and checking the file onnxruntime; {problem}. "
        f"Install them with: {pip_install('onnx')}"
    )


# Free dimensions


def _specs(model: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any) -> list[Mapping[int, Any]]:
    """Returns the free dimensions of each leaf of the arguments.

    Raises:
        ValueError: `dynamic_shapes` names an unknown parameter, or has no place for an argument.
    """
    leaves, _ = pytree.tree_flatten_with_path(args)
    if isinstance(dynamic_shapes, Mapping):
        parameters = list(inspect.signature(model.forward).parameters)
        if unknown := [name for name in dynamic_shapes if name not in parameters]:
            raise ValueError(
                expected("export_onnx", "dynamic_shapes", f"name parameters of forward {tuple(parameters)}", unknown[0])
            )
        dynamic_shapes = tuple(dynamic_shapes.get(name) for name in parameters[: len(args)])
    specs: list[Mapping[int, Any]] = []
    for keys, leaf in leaves:
        spec = dynamic_shapes
        try:
            for key in keys:
                spec = None if spec is None else spec[key.key if isinstance(key, pytree.MappingKey) else key.idx]  # type: ignore[attr-defined]
        except (IndexError, KeyError, TypeError):
            place = f"args{pytree.keystr(keys)}"
            raise ValueError(expected("export_onnx", "dynamic_shapes", f"have a place for {place}", spec)) from None
        if spec is None or not isinstance(leaf, Tensor):
            specs.append({})
            continue
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        specs.append({d: s for d, s in items if s is not None})
    return specs


def _capture(model: nn.Module, args: tuple[Any, ...], specs: Sequence[Mapping[int, Any]]) -> Any:
    """Traces the model by ``torch.export``, which makes a size of 1 constant: free sizes of 1 are traced as 2."""
    leaves, tree = pytree.tree_flatten(args)
    # A tensor that is passed twice must be two inputs.
    leaves = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
    static = torch.export.Dim.STATIC
    for i, spec in enumerate(specs):
        for d, s in spec.items():
            if not isinstance(s, int) and s != static and leaves[i].shape[d] == 1:
                leaves[i] = torch.cat([leaves[i], leaves[i]], d)
    # A name gives no limits: with Dim.DYNAMIC, torch.export finds the limits.
    dynamic = [{d: torch.export.Dim.DYNAMIC if isinstance(s, str) else s for d, s in spec.items()} for spec in specs]
    shapes = pytree.tree_unflatten([spec or None for spec in dynamic], tree) if any(specs) else None
    kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    if shapes is not None and inspect.Parameter.VAR_POSITIONAL in kinds[: len(args)]:
        rest = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        shapes = (*shapes[:rest], shapes[rest:])  # torch.export takes *args as one argument
    with _quiet():
        return torch.export.export(model, pytree.tree_unflatten(leaves, tree), dynamic_shapes=shapes)


# Translation


def _operators(model: nn.Module, program: Any, without_body: bool) -> list[Operator]:
    """Returns the operators that the program calls.

    Args:
        without_body: whether an operator may lack an ONNX translation.

    Raises:
        ExportError: an operator lacks an ONNX translation, and must not.
    """
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    found = [operator_of(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"]
    operators = {o.qualified_name: o for o in found if o is not None}
    if (without := [name for name, o in operators.items() if o.onnx is None]) and not without_body:
        raise ExportError(
            f"export_onnx: {type(model).__name__} calls {' and '.join(without)}, which has no ONNX form; "
            "declare one with Operator(..., onnx=...), or, for a runtime with a kernel of its own, export a node without a "
            "body by custom_domain=True and check=False"
        )
    return list(operators.values())


def _translate(
    model: nn.Module,
    program: Any,
    specs: Sequence[Mapping[int, Any]],
    table: Mapping[Any, Callable[..., Any]],
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> Any:
    """Returns the ``ONNXProgram``; each operator call in it is one node, and the model has no function bodies yet.

    Raises:
        ExportError: a call in the program has no ONNX form, or a translation failed.
    """
    # For a traced program, torch.onnx.export reads only names from `dynamic_shapes`, and accepts one name per symbol.
    named: set[str] = set()
    shapes = []
    for spec, value in zip(specs, traced_inputs(program, len(specs)), strict=True):
        if isinstance(value, Tensor):
            names = {d: s for d, s in spec.items() if isinstance(s, (str, torch.export.Dim))}
            shapes.append({d: s for d, s in names.items() if str(value.shape[d]) not in named})
            named.update(str(value.shape[d]) for d in names)
    try:
        with _quiet():
            return torch.onnx.export(
                program,
                (),
                input_names=input_names,
                output_names=output_names,
                opset_version=OPSET,
                dynamic_shapes=tuple(shapes) if any(shapes) else None,
                custom_translation_table=dict(table),
                optimize=False,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        causes = list(_causes(error))
        for cause in causes:
            if isinstance(cause, ExportError):
                raise cause from cause.__cause__
        raise ExportError(
            f"export_onnx: {type(model).__name__} has no ONNX form: {str(causes[-1]).splitlines()[0]}"
        ) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _put_in(model: Any, functions: Functions, custom_domain: bool) -> None:
    """Inlines the bodies of the operators' nodes, or with `custom_domain` adds the bodies to the model as functions.

    Removes unused nodes, functions and opsets, and the stack traces, which have paths of this machine.
    ``onnxscript.optimizer.optimize`` is not used: its rewriter removes additions of constants below 1e-8.
    """
    from onnx_ir import passes, traversal
    from onnx_ir.passes import common
    from onnxscript import optimizer

    for node in traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    if not custom_domain:
        model.functions.update(functions.by_identifier())
    common.InlinePass()(model)
    common.ShapeInferencePass()(model)  # values of the inlined bodies have no types
    optimizer.fold_constants_ir(model)
    told = [(y.type, y.shape) for y in model.graph.outputs]
    passes.Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)
    # A result that is also a part of another, or equals it, has become a value without a type.
    for y, (dtype, shape) in zip(model.graph.outputs, told, strict=True):
        y.type, y.shape = dtype, shape
    if custom_domain:
        model.functions.update(functions.by_identifier())


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses warnings of the exporters about their internals and about optional packages."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
