"""Makes operators on rows from formulas: ``row_reduce("m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s")``."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cupyops.arrays import check_devices, device_of, library_of
from cupyops.dtypes import FLOATS
from cupyops.errors import expected
from cupyops.launch.kernel import Kernel
from cupyops.ops.checks import check_floating
from cupyops.programs.elementwise import check_names
from cupyops.programs.expressions import check_operations, inputs_of, parse
from cupyops.programs.rows import ProgramConfig, RowProgram, config_of, kernel_of, text_of
from cupyops.torch.core.gradients import Schema, gradient_of, named_for_its_arguments
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, TorchLibrary, wide_dtype
from cupyops.torch.scale.sharding import Place, Split

from .elementwise import Written, check_options, content_name, named_results, of_backward, schema_of
from .reference import row_reference

__all__ = ["row_reduce"]


def row_reduce(
    program: str,
    backward: str | None = None,
    *,
    name: str | None = None,
    rows: Sequence[str] = (),
    indices: Sequence[str] = (),
    columns: Sequence[str] = (),
    scalars: Sequence[str] = (),
    results: Sequence[str] = (),
    ahead: Sequence[int] = (),
    **options: Any,
) -> Written:
    """Returns an operator on rows, the last dimension of its inputs. The kernel reads a row once, into registers,
    unless the row is too long for them.

    >>> softmax = row_reduce("m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s", name="mylib::row_softmax")
    >>> softmax
    <Operator mylib::row_softmax(Tensor x) -> Tensor y>

    The program has the syntax of :func:`cupyops.torch.elementwise`, with three reductions over a row: ``sum(...)``,
    ``max(...)`` and ``min(...)`` of one argument. ``j`` is the column index and ``N`` the length of a row. In a
    backward, ``grad_weight = column_sum(...)`` sums over the rows in a fixed order. The bits of a row do not depend on
    the other rows.

    For 16-bit dtypes ``exp`` is a multiplication and one hardware instruction, with a relative error of about
    |x|·2^-24 + 2^-22. A name whose expression calls a function is kept in registers if several passes read the name. If
    ``exp(x - m)`` occurs twice, assign it to a name.

    Args:
        program: the formulas. An element result has x's shape; a row result has x's shape without the last dimension.
        backward: a program that computes the gradients, as in :func:`cupyops.torch.elementwise`.
        name: the operator's name, ``"mylib::softmax"``; by default a name with a hash of the program.
        rows: inputs with one value per row; their shape is x's without the last dimension.
        indices: int64 inputs with one value per row. In the program an index is an int; values outside an int's range
            are clamped to ±(2^31 - 1).
        columns: inputs with one value per column, such as a weight of shape (N).
        scalars: inputs that are numbers. The operator takes the numbers after the tensors.
        results: names of the results; needed if the program reads a result again.
        ahead: row lengths whose kernels :func:`cupyops.warmup` and the compile command compile. The kernel of any other
            length is created by the first call with that length.
        options: other arguments of :class:`cupyops.torch.Operator`: ``reference``, ``autocast``, ``onnx``, ``record``,
            ``vmap``, ``compiled``.

    Returns:
        The operator. Its element inputs are floating tensors of one dtype; inputs in ``rows`` and ``columns`` may have
        another floating dtype. ``op.show()`` prints the CUDA C++ text.

    Raises:
        ValueError: the program is not a list of assignments, or calls a function of Python or NumPy; the backward reads
            an unknown name or assigns no gradient; or a reduction is in an invalid place.
        TypeError: an option is unknown.
        CompileError: raised by the first call for a dtype, if NVRTC rejects an expression.
    """
    where = (name or "row_reduce").rpartition(":")[2]
    statements = parse(program, where)
    check_options(where, options)
    whole = ("j", "N", *indices)
    check_operations(where, statements, rows=True, whole=whole)
    inputs = tuple(inputs_of(statements, [*scalars, "j", "N"]))
    results = named_results(where, statements, results)
    name = name or content_name(results[0], "rows", program, backward, rows, indices, columns, scalars, results)
    where = name.rpartition(":")[2]
    kinds = {**dict.fromkeys(inputs, "element"), **dict.fromkeys(rows, "row"), **dict.fromkeys(indices, "index")}
    kinds |= dict.fromkeys(columns, "column")

    def made(called: str, steps: Any, reads: Sequence[str], outputs: Sequence[str]) -> RowProgram:
        check_names(where, [*reads, *scalars, *(s.name for s in steps)])
        of = {k: tuple(x for x in reads if kinds[x] == k) for k in ("element", "row", "index", "column")}
        if not of["element"]:
            raise ValueError(f"{where}: `{program}` reads no tensor of rows")
        return RowProgram(
            called, tuple(steps), of["element"], of["row"], of["index"], of["column"], tuple(scalars), tuple(outputs)
        )

    forward = made(where, statements, inputs, results)
    kinds |= forward.kinds()
    inputs = ordered(forward)
    schema = schema_of(name, inputs, scalars, results)
    programs, texts = [forward], [text_of(forward)]
    kernels = [functools.cache(functools.partial(kernel_of, forward, texts[0]))]
    gradient, wrt = None, None
    if backward is not None:
        steps = parse(backward, f"{where}'s backward")
        check_operations(f"{where}'s backward", steps, rows=True, whole=whole)
        wrt, reads = of_backward(where, steps, inputs, results, scalars)
        kinds |= {f"grad_{y}": kinds[y] for y in results}
        back = made(f"{where}_backward", steps, reads, [f"grad_{x}" for x in wrt])
        _check_gradients(where, back, kinds, wrt)
        programs.append(back)
        texts.append(text_of(back))
        kernels.append(functools.cache(functools.partial(kernel_of, back, texts[1])))
        schema_back = named_for_its_arguments(
            f"{name}_backward", schema_of("", ordered(back), scalars, back.results, wants=wrt)
        )
        takes = list(Schema.parse(schema_back).types)
        kinds_back = [kinds[x] for x in wrt]
        by_reference = gradient_of(options.get("reference"), Schema.parse(schema), takes, wrt)
        gradient = Operator(
            schema_back,
            body_of(back, kernels[1], kinds_back, wants=len(wrt) > 1, columns_like=wrt),
            reference=by_reference
            or row_reference(back, kinds_back, functools.partial(_dtype_like, wrt, ordered(back))),
            repeats=True,
            sharding=_sharding_of(back, kinds_back),
        )
    operator = Written(
        schema,
        body_of(forward, kernels[0], [kinds[y] for y in results]),
        backward=gradient,
        wrt=wrt,
        repeats=True,
        sharding=_sharding_of(forward, [kinds[y] for y in results]),
        **options,
    )
    if operator.reference is None:
        of_results = [kinds[y] for y in results]
        operator._with_derivatives = row_reference(forward, of_results, lambda i, tensors: tensors[0].dtype)
    operator.text = "\n".join(texts)
    for n, dtype in itertools.product(ahead, FLOATS):
        for written, kernel in zip(programs, kernels, strict=True):
            kernel(config_of(n, dtype, written.held), dtype)
    return operator


def _sharding_of(program: RowProgram, results: Sequence[str]) -> Callable[..., Iterable[Split]]:
    """Returns the sharding rule of a program: it is split along each dimension of the rows.

    Args:
        program: the program.
        results: the kind of each result. A column result of a program is a sum over the rows.
    """

    def rule(*args: Any) -> Iterable[Split]:
        for dim in range(args[0].ndim - 1):
            places: list[Place] = [None if x in program.columns else dim for x in ordered(program)]
            yield ["sum" if kind == "column" else dim for kind in results], places

    return rule


def ordered(program: RowProgram) -> tuple[str, ...]:
    """Returns the names of the tensors in the order of the kernel's parameters."""
    return (*program.elements, *program.rows, *program.indices, *program.columns)


def _check_gradients(where: str, back: RowProgram, kinds: dict[str, str], wrt: Sequence[str]) -> None:
    found = back.kinds()
    for x in wrt:
        if kinds[x] != found[f"grad_{x}"]:
            how = {"column": "a column_sum(...)", "row": "a value of the row", "element": "a value of the element"}
            raise ValueError(f"{where}: `grad_{x}` must be {how[kinds[x]]}, as `{x}` has one value per {kinds[x]}")


_library = TorchLibrary()


def body_of(
    program: RowProgram,
    kernel: Callable[[ProgramConfig, str], Kernel],
    kinds: Sequence[str],
    *,
    wants: bool = False,
    columns_like: Sequence[str] = (),
) -> Callable[..., Any]:
    """Returns the operator's body, a function of the tensors, the numbers and, with ``wants``, a bool for each result.

    Args:
        program: the program of the forward or the backward.
        kernel: returns the kernel for a config and the dtype of the rows.
        kinds: the kind of each result: ``"element"``, ``"row"`` or ``"column"``.
        wants: whether the body takes a bool for each result. A result whose bool is False is an empty tensor.
        columns_like: for a backward, the input whose gradient each result is. A column result has the dtype of that
            input.
    """
    names, held = ordered(program), program.held
    count, numbers, made = len(names), len(program.scalars), len(program.results)
    column = any(kind == "column" for kind in kinds)
    calls: dict[Any, _Call] = {}

    def configured(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> _Call:
        _check(program, tensors)
        x = tensors[0]
        n, rows = x.shape[-1], math.prod(x.shape[:-1])
        shapes = {"element": x.shape, "row": x.shape[:-1]}
        dtypes = [
            _dtype_like(columns_like, names, i, tensors) if w and kind == "column" else None
            for i, (kind, w) in enumerate(zip(kinds, wanted, strict=True))
        ]
        outs = [shapes[kind] if w and d is None else None for kind, w, d in zip(kinds, wanted, dtypes, strict=True)]
        call = _Call(None, (), outs, dtypes, (n,), wide_dtype(x.dtype), zeros=True, dtype="")
        if _library.is_fake(x) or rows == 0 or not any(wanted):
            return call
        dtype = DTYPE_NAMES[x.dtype]
        try:
            config = config_of(n, dtype, held)
        except KeyError:
            check_floating(program.name, names[0], dtype)
            raise
        chosen = kernel(config, dtype)
        blocks = min(-(-rows // config.groups), 2**31 - 1)
        if not column:
            return call._replace(kernel=chosen, sizes=(rows, n, blocks), dtype=dtype)
        blocks = min(blocks, chosen.resident_blocks(_types(chosen, names, tensors), device_of(library_of(x), x)))
        parts = blocks * config.groups
        # If a row is too long for registers, the kernel adds to the column sums in global memory, which must start at
        # zero.
        return call._replace(
            kernel=chosen, sizes=(rows, n, blocks, parts), summed=(parts, n), zeros=bool(config.stream), dtype=dtype
        )

    def body(*args: Any) -> Any:
        tensors, scalars = args[:count], args[count : count + numbers]
        wanted = args[count + numbers :] if wants else (True,) * made
        x = tensors[0]
        if _library.is_fake(x):  # its sizes may be symbols
            call = configured(tensors, wanted)
        else:
            key = (*[(t.shape, t.dtype, t.device) for t in tensors], *wanted)
            found = calls.get(key)
            if found is None:
                if len(calls) >= _MOST_CALLS:
                    calls.clear()
                found = calls[key] = configured(tensors, wanted)
            call = found
        if call.kernel is None:
            outs = [None if shape is None else x.new_empty(shape) for shape in call.outs]
        else:
            outs = [None if shape is None else _library.empty(shape, call.dtype, x) for shape in call.outs]
        if column:
            make = x.new_zeros if call.zeros else x.new_empty
            outs = [
                out if d is None else make(call.summed, dtype=call.wide)
                for out, d in zip(outs, call.dtypes, strict=True)
            ]
        if call.kernel is not None:
            given = [t.contiguous() for t in tensors]
            call.kernel.launch_vouched(*given, *outs, *scalars, *call.sizes)
        if column:
            outs = [
                out if d is None or out is None else (out if call.kernel is None else out.sum(0)).to(d)
                for out, d in zip(outs, call.dtypes, strict=True)
            ]
        if made == 1:
            return x.new_empty(0) if outs[0] is None else outs[0]
        return tuple(x.new_empty(0) if y is None else y for y in outs)

    return body


_MOST_CALLS = 4096  # cached configurations of an operator


class _Call(NamedTuple):
    """The checked configuration of a call. It depends on the shapes, dtypes and devices of the tensors, and on the
    wanted results.

    Attributes:
        kernel: the kernel, or None if nothing is launched.
        sizes: the last arguments of the kernel.
        outs: the shape of each result that the kernel writes, else None.
        dtypes: the dtype of each result that is a column sum, else None.
        summed: the shape of the column sums that the blocks write.
        wide: the dtype of the column sums that the blocks write.
        zeros: whether the column sums start at zero.
        dtype: the dtype of the results that the kernel writes.
    """

    kernel: Kernel | None
    sizes: tuple[int, ...]
    outs: Sequence[Any]
    dtypes: Sequence[torch.dtype | None]
    summed: tuple[int, ...]
    wide: torch.dtype
    zeros: bool
    dtype: str


def _dtype_like(of: Sequence[str], names: Sequence[str], i: int, tensors: Sequence[Tensor]) -> torch.dtype:
    """Returns the dtype of the gradient of the input ``of[i]``: the input's dtype, or x's if the program does not read
    the input."""
    return tensors[names.index(of[i])].dtype if of[i] in names else tensors[0].dtype


def _types(kernel: Any, names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, str]:
    given = dict(zip(names, tensors, strict=True))
    parameters = kernel.signature.parameters
    return {
        kind: next(DTYPE_NAMES[given[parameters[i].name].dtype] for i in places if parameters[i].name in given)
        for kind, places in kernel.signature.bindings.items()
    }


def _check(program: RowProgram, tensors: Sequence[Tensor]) -> None:
    """Raises unless all tensors match the shape and the device of the program's first tensor.

    Raises:
        ValueError: the first tensor has no dimension, or a shape or a device does not match.
    """
    lead, x = program.elements[0], tensors[0]
    if x.dim() == 0:
        raise ValueError(expected(program.name, lead, "have rows, at least one dimension", "a tensor of shape ()"))
    wanted = {
        **dict.fromkeys(program.elements, ("have the shape", x.shape)),
        **dict.fromkeys((*program.rows, *program.indices), ("have a value for each row", x.shape[:-1])),
        **dict.fromkeys(program.columns, ("have a value for each column", x.shape[-1:])),
    }
    for name, tensor in zip(ordered(program), tensors, strict=True):
        words, shape = wanted[name]
        if tensor.shape != shape:
            raise ValueError(expected(program.name, name, f"{words} of `{lead}`, {tuple(shape)}", tuple(tensor.shape)))
    check_devices(program.name, **dict(zip(ordered(program), tensors, strict=True)))
