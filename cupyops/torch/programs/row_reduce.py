"""Makes operators on rows from formulas: ``row_reduce("m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s")``."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cupyops.arrays import check_devices, device_of, library_of
from cupyops.errors import expected, nearest
from cupyops.launch.hooks import declare_later
from cupyops.launch.kernel import Kernel
from cupyops.ops.checks import check_floating
from cupyops.programs.expressions import Statement, check_operations, inputs_of, names_in, parse
from cupyops.programs.row_config import RowKernels
from cupyops.programs.row_launch import row_launch
from cupyops.programs.rows import RowProgram, check_row_names
from cupyops.programs.tree import bare, parsed
from cupyops.tiling.partial_sums import partial_sums
from cupyops.torch.core.gradients import Schema, gradient_of, named_for_its_arguments
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, TorchLibrary, wide_dtype
from cupyops.torch.scale.sharding import Place, Split

from .elementwise import Written, check_options, check_reference, content_name, named_results, of_backward, schema_of
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
    samples: Sequence[str] = (),
    scalars: Sequence[str] = (),
    results: Sequence[str] = (),
    wide: Sequence[str] = (),
    ahead: Sequence[int] = (),
    **options: Any,
) -> Written:
    """Returns an operator on rows, the last dimension of its inputs. The kernel reads a row once, into registers,
    unless the row is too long for them.

    >>> softmax = row_reduce("m = max(x); s = sum(exp(x - m)); y = exp(x - m) / s", name="mylib::row_softmax")
    >>> softmax
    <Operator mylib::row_softmax(Tensor x) -> Tensor y>

    The program has the syntax of :func:`cupyops.torch.elementwise`, with three reductions over a row: ``sum(...)``,
    ``max(...)`` and ``min(...)`` of one argument. ``j`` is the column index and ``N`` the length of a row.
    ``rounded(...)`` rounds to the dtype of the rows. In a backward, ``grad_weight = column_sum(...)`` sums over the rows
    in a fixed order, and ``grad_b = grad_a`` writes one gradient for two inputs. The bits of a row do not depend on the
    other rows.

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
        samples: inputs with one value per column and sample, of shape (B, N) beside rows (B, ..., N). In a backward,
            ``column_sum`` is then the sum over the rows of a sample.
        scalars: inputs that are numbers. The operator takes the numbers after the tensors.
        results: names of the results; needed if the program reads a result again.
        wide: results in the dtype of the arithmetic: float32 for rows in 16 bits.
        ahead: row lengths whose kernels :func:`cupyops.warmup` and the compile command compile. Every other kernel is
            created by the first call that needs it.
        options: other arguments of :class:`cupyops.torch.Operator`: ``reference``, ``autocast``, ``onnx``, ``record``,
            ``vmap``, ``compiled``, ``recompute``.

    Returns:
        The operator. Its inputs are floating tensors. The results have the dtype of the first element input; the other
        inputs may have other floating dtypes, such as a float32 weight with rows in bfloat16. A gradient has its
        input's dtype. ``op.show()`` prints the CUDA C++ text.

    Raises:
        ValueError: the program is not a list of assignments, or calls a function of Python or NumPy; the backward reads
            an unknown name or assigns no gradient; a reduction is in an invalid place; or `ahead` has no lengths.
        TypeError: an option is unknown.
        CompileError: raised by the first call for a dtype, if NVRTC rejects an expression.
    """
    where = (name or "row_reduce").rpartition(":")[2]
    statements = parse(program, where, indices)
    check_options(where, options)
    if not all(isinstance(n, int) and n > 0 for n in ahead):
        raise ValueError(expected(where, "ahead", "have lengths of rows", ahead))
    whole = ("j", "N", *indices)
    check_operations(where, statements, rows=True, whole=whole)
    inputs = tuple(inputs_of(statements, [*scalars, "j", "N"]))
    _check_kinds(where, inputs, rows=rows, indices=indices, columns=columns, samples=samples)
    results = named_results(where, statements, results)
    named_results(where, [s for s in statements if s.name in results], wide)
    content = (program, backward, rows, indices, columns, scalars, results, *(x for x in (wide, samples) if x))
    name = name or content_name(results[0], "rows", *content)
    where = name.rpartition(":")[2]
    kinds = {**dict.fromkeys(inputs, "element"), **dict.fromkeys(rows, "row"), **dict.fromkeys(indices, "index")}
    kinds |= dict.fromkeys((*columns, *samples), "column")

    def made(
        called: str, steps: Any, reads: Sequence[str], outputs: Sequence[str], like: Sequence[str] = ()
    ) -> RowProgram:
        check_row_names(where, [*reads, *scalars, *(s.name for s in steps)])
        of = {k: tuple(x for x in reads if kinds[x] == k) for k in ("element", "row", "index", "column")}
        if not of["element"]:
            raise ValueError(f"{where}: `{program}` reads no tensor of rows")
        # A wide result and its gradient have another dtype than the rows.
        of_rows = [x for x in of["element"] if x.removeprefix("grad_") not in wide]
        return RowProgram(
            called,
            tuple(steps),
            of["element"],
            of["row"],
            of["index"],
            of["column"],
            tuple(scalars),
            tuple(outputs),
            () if like else tuple(wide),
            tuple(zip(outputs, like, strict=True)) if like else (),
            (of_rows or of["element"])[0],
            samples=tuple(samples),
        )

    forward = made(where, statements, inputs, results)
    kinds |= forward.kinds()
    inputs = forward.inputs
    check_reference(where, options.get("reference"), (*inputs, *scalars))
    schema = schema_of(name, inputs, scalars, results)
    kernels = [RowKernels(forward)]
    gradient, wrt = None, None
    if backward is not None:
        steps = parse(backward, f"{where}'s backward", indices)
        check_operations(f"{where}'s backward", steps, rows=True, whole=whole)
        wrt, reads = of_backward(where, steps, inputs, results, scalars)
        kinds |= {f"grad_{y}": kinds[y] for y in results}
        shared = _shared_gradients(steps, kinds, wrt)
        steps = [s for s in steps if s.name.removeprefix("grad_") not in shared]
        own = [x for x in wrt if x not in shared]  # the gradients that the kernel writes
        back = made(f"{where}_backward", steps, reads, [f"grad_{x}" for x in own], own)
        _check_gradients(where, back, kinds, own)
        kernels.append(RowKernels(back))
        schema_back = named_for_its_arguments(
            f"{name}_backward", schema_of("", back.inputs, scalars, back.results, wants=own)
        )
        takes = list(Schema.parse(schema_back).types)
        kinds_back = [kinds[x] for x in own]
        by_reference = gradient_of(options.get("reference"), Schema.parse(schema), takes, own)
        gradient = Operator(
            schema_back,
            body_of(kernels[1], kinds_back, wants=len(own) > 1),
            reference=by_reference or row_reference(back, kinds_back, functools.partial(_dtype_of, back)),
            compiled="auto" if options.get("compiled") == "auto" else "kernel",
            repeats=True,
            sharding=_sharding_of(back, kinds_back),
        )
        gradient._shared = shared
    operator = Written(
        schema,
        body_of(kernels[0], [kinds[y] for y in results]),
        backward=gradient,
        wrt=wrt,
        repeats=True,
        sharding=_sharding_of(forward, [kinds[y] for y in results]),
        **options,
    )
    if operator.reference is None:
        of_results = [kinds[y] for y in results]
        operator._with_derivatives = row_reference(forward, of_results, functools.partial(_dtype_of, forward))
    operator.text, operator.programs = "\n".join(k.text for k in kernels), tuple(k.program for k in kernels)
    named: Any = {"name": name, "rows": rows, "indices": indices, "columns": columns, "scalars": scalars}
    named |= {"results": results, "wide": wide, "ahead": ahead, "samples": samples}
    operator.declare = functools.partial(row_reduce, program, backward, **named, **options)
    if ahead:
        declare_later(operator, functools.partial(_declare_ahead, tuple(ahead), kernels))
    return operator


def _declare_ahead(lengths: Sequence[int], kernels: Sequence[RowKernels]) -> None:
    for each in kernels:
        each.ahead(lengths)


def _check_kinds(where: str, inputs: Sequence[str], **given: Sequence[str]) -> None:
    """Raises unless each name in ``rows=``, ``indices=`` and ``columns=`` is an input, and occurs once.

    Raises:
        ValueError: a name is not an input of the program, or is in two places.
    """
    found: dict[str, str] = {}
    for kind, names in given.items():
        for name in names:
            if name not in inputs:
                raise ValueError(
                    f"{where}: `{kind}` names `{name}`, which the program does not read" + nearest(name, inputs)
                )
            if found.setdefault(name, kind) != kind:
                raise ValueError(f"{where}: `{found[name]}` and `{kind}` both name `{name}`")


def _sharding_of(program: RowProgram, results: Sequence[str]) -> Callable[..., Iterable[Split]]:
    """Returns the sharding rule of a program: it is split along each dimension of the rows; along the columns, too, if no
    value of a row is computed or read.

    Args:
        program: the program.
        results: the kind of each result. A column result of a program is a sum over the rows.
    """
    names = program.results
    read = {name for s in program.statements for name in names_in(s.expression)} & {"j", "N"}
    kinds = {**dict.fromkeys(program.elements, "element"), **dict.fromkeys(program.columns, "column")}
    by_row = program.rows or program.indices or any(step.kind == "row" for step in program.steps)

    def rule(*args: Any) -> Iterable[Split]:
        for dim in range(args[0].ndim - 1):
            apart = program.samples if dim == 0 else ()
            places: list[Place] = [None if x in program.columns and x not in apart else dim for x in program.inputs]
            own = [
                kind != "column" or (dim == 0 and program.of_samples(y)) for y, kind in zip(names, results, strict=True)
            ]
            yield [dim if mine else "sum" for mine in own], places
        if not (read or by_row):
            last = args[0].ndim - 1
            of = {"element": last, "column": 0}
            within: list[Place] = [1 if x in program.samples else of[kinds[x]] for x in program.inputs]
            yield [1 if program.of_samples(y) else of[kind] for y, kind in zip(names, results, strict=True)], within

    return rule


def _shared_gradients(steps: Sequence[Statement], kinds: dict[str, str], wrt: Sequence[str]) -> dict[str, str]:
    """Returns the inputs whose gradient a backward copies from another input, ``grad_b = grad_a``.

    The kernel writes such a gradient once, and autograd gets the same tensor for both inputs. If the backward reads both
    inputs, their dtypes may differ, and the kernel writes a gradient in the dtype of each.
    """
    own = {f"grad_{x}": x for x in wrt}
    read = [name for step in steps for name in names_in(step.expression)]
    of = {s.name: bare(parsed(s.expression)) for s in steps}
    shared = {x: own[of[y].word] for y, x in own.items() if y in of and of[y].kind == "name" and of[y].word in own}
    return {
        x: like
        for x, like in shared.items()
        if kinds[x] == kinds[like] and f"grad_{x}" not in read and not {x, like} <= set(read)
    }


def _check_gradients(where: str, back: RowProgram, kinds: dict[str, str], wrt: Sequence[str]) -> None:
    found = back.kinds()
    for x in wrt:
        if kinds[x] != found[f"grad_{x}"]:
            how = {"column": "a column_sum(...)", "row": "a value of the row", "element": "a value of the element"}
            raise ValueError(f"{where}: `grad_{x}` must be {how[kinds[x]]}, as `{x}` has one value per {kinds[x]}")


_library = TorchLibrary()


def body_of(kernels: RowKernels, kinds: Sequence[str], *, wants: bool = False) -> Callable[..., Any]:
    """Returns the operator's body, a function of the tensors, the numbers and, with ``wants``, a bool for each result.

    Args:
        kernels: the program of the forward or the backward, and its kernels. If the program has ``over``, that result is the
            overwritten array, or a copy of the array if the array is not contiguous.
        kinds: the kind of each result: ``"element"``, ``"row"`` or ``"column"``.
        wants: whether the body takes a bool for each result. A result whose bool is False is an empty tensor.
    """
    program = kernels.program
    names, lead = program.inputs, program.inputs.index(program.lead)
    count, numbers, made = len(names), len(program.scalars), len(program.results)
    column = any(kind == "column" for kind in kinds)
    overwritten, over = (
        (program.results.index(program.over[0]), names.index(program.over[1])) if program.over else (-1, -1)
    )
    calls: dict[Any, _Call] = {}
    translated = row_reference(program, kinds, functools.partial(_dtype_of, program))

    def configured(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> _Call:
        _check(program, tensors)
        x = tensors[lead]
        samples, of_sample = (x.shape[:1], x.shape[1:-1]) if program.samples else ((), x.shape[:-1])
        n, rows = x.shape[-1], math.prod(of_sample)
        shapes = {"element": x.shape, "row": x.shape[:-1], "column": x.shape[-1:]}
        dtypes = [_dtype_of(program, i, tensors) for i in range(made)]
        outs: list[Any] = [
            (shapes[kind], d, kind) if w else None for kind, d, w in zip(kinds, dtypes, wanted, strict=True)
        ]
        outs = [
            ((*samples, n), d, kind) if out and program.of_samples(y) else out
            for y, out, kind, d in zip(program.results, outs, kinds, dtypes, strict=True)
        ]
        call = _Call(None, (), outs, wide_dtype(x.dtype))
        count = math.prod(samples)
        if _library.skips(x) or rows == 0 or n == 0 or count == 0 or not any(wanted):
            return call
        dtype = DTYPE_NAMES[x.dtype]
        device = device_of(library_of(x), x)
        types = {name: DTYPE_NAMES[tensor.dtype] for name, tensor in zip(names, tensors, strict=True)}
        try:
            found = row_launch(kernels, types, rows, n, device, samples)
        except KeyError:
            check_floating(program.name, program.lead, dtype)
            raise
        summed = (*samples, found.parts, n) if column else ()
        return call._replace(kernel=found.kernel, sizes=found.sizes, summed=summed, zeros=found.zeros)

    # The other results for rows without elements have no elements.
    of_rows = any(program.kinds()[name] == "row" for name in program.results)

    def body(*args: Any) -> Any:
        tensors, scalars = args[:count], args[count : count + numbers]
        wanted = args[count + numbers :] if wants else (True,) * made
        x = tensors[lead]
        if x.shape and not _library.skips(x) and x.shape[-1] == 0 and x.numel() == 0:
            _check(program, tensors)
            if math.prod(x.shape[:-1]) and of_rows:
                return _of_no_elements(program, translated, args)
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
            make = [x.new_zeros if out is not None and out[2] == "column" else x.new_empty for out in call.outs]
            outs = [None if o is None else new(o[0], dtype=o[1]) for o, new in zip(call.outs, make, strict=True)]
        else:
            given = [t.contiguous() for t in tensors]
            outs = [
                None if out is None else given[over] if i == overwritten else _allocate(call, out, x)
                for i, out in enumerate(call.outs)
            ]
            call.kernel.launch_vouched(*given, *outs, *scalars, *call.sizes)
            if column:
                outs = [
                    y if y is None or out is None or out[2] != "column" else _summed(y, *out[:2])
                    for y, out in zip(outs, call.outs, strict=True)
                ]
        if made == 1:
            return x.new_empty(0) if outs[0] is None else outs[0]
        return tuple(x.new_empty(0) if y is None else y for y in outs)

    return body


def _of_no_elements(program: RowProgram, translated: Callable[..., Any] | None, args: Sequence[Any]) -> Any:
    """Returns the results for rows without elements, for which no kernel runs: the sums are 0.

    Raises:
        ValueError: the program takes the maximum or the minimum of a row, or has no translation to PyTorch.
    """
    for step in program.steps:
        if step.over in ("max", "min"):
            raise ValueError(f"{program.name}: a row of no elements has no {step.over}, got {tuple(args[0].shape)}")
    if translated is None:
        raise ValueError(f"{program.name}: rows must have elements, got {tuple(args[0].shape)}")
    return translated(*args)


def _allocate(call: "_Call", out: tuple[Any, torch.dtype, str], like: Tensor) -> Tensor:
    """Returns a tensor for a result of the kernel: for a sum over the rows, a row for each block."""
    shape, dtype, kind = out
    if kind == "column":
        return (like.new_zeros if call.zeros else like.new_empty)(call.summed, dtype=call.wide)
    made: Tensor = _library.empty(shape, DTYPE_NAMES[dtype], like)
    return made


def _summed(parts: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns the sum of the blocks' sums, one for each sample or one for all."""
    if len(shape) == 2:
        return (parts.sum(1) if parts.shape[1] > 1 else parts.squeeze(1)).to(dtype)
    n = parts.shape[-1]
    parts = parts.view(-1, n)
    blocks = parts.shape[0]
    name = DTYPE_NAMES[dtype]
    if wide_dtype(dtype) is not parts.dtype:  # a float64 result of float32 rows
        return parts.sum(0, dtype=dtype)
    found: Tensor = _library.empty((n,), name, parts)
    partial_sums(1, blocks).launch_vouched(parts, found, None, blocks, n)
    return found


_MOST_CALLS = 4096  # cached configurations of an operator


class _Call(NamedTuple):
    """The checked configuration of a call. It depends on the shapes, dtypes and devices of the tensors, and on the
    wanted results.

    Attributes:
        kernel: the kernel, or None if nothing is launched.
        sizes: the last arguments of the kernel.
        outs: shape, dtype and kind of each result, or None if the result is not wanted.
        wide: the dtype of the column sums that the blocks write.
        summed: the shape of the column sums that the blocks write.
        zeros: whether the column sums start at zero.
    """

    kernel: Kernel | None
    sizes: tuple[int, ...]
    outs: Sequence[tuple[Any, torch.dtype, str] | None]
    wide: torch.dtype
    summed: tuple[int, ...] = ()
    zeros: bool = False


def _dtype_of(program: RowProgram, i: int, tensors: Sequence[Tensor]) -> torch.dtype:
    """Returns the dtype of the i-th result.

    A gradient has the dtype of its input, if the program reads the input. Else the gradient of an array (N) or (M) has
    the dtype of the arithmetic, and autograd casts the gradient to the dtype of the input. A wide result has the dtype
    of the arithmetic. All others have the dtype of the rows.
    """
    result, of_rows = program.results[i], tensors[program.inputs.index(program.lead)].dtype
    like = dict(program.like).get(result)
    if like in program.inputs:
        return tensors[program.inputs.index(like)].dtype
    unread = like is not None and program.kinds()[result] != "element"
    return wide_dtype(of_rows) if unread or result in program.wide else of_rows


def _check(program: RowProgram, tensors: Sequence[Tensor]) -> None:
    """Raises unless all tensors match the shape and the device of the program's first tensor.

    Raises:
        ValueError: the first tensor has no dimension, or a shape or a device does not match.
    """
    lead, x = program.lead, tensors[program.inputs.index(program.lead)]
    if x.dim() == 0:
        raise ValueError(expected(program.name, lead, "have rows, at least one dimension", "a tensor of shape ()"))
    wanted = {
        **dict.fromkeys(program.elements, ("have the shape", x.shape)),
        **dict.fromkeys((*program.rows, *program.indices), ("have a value for each row", x.shape[:-1])),
        **dict.fromkeys(program.columns, ("have a value for each column", x.shape[-1:])),
        **dict.fromkeys(program.samples, ("have a row for each sample", (*x.shape[:1], x.shape[-1]))),
    }
    if program.samples and x.dim() < 2:
        raise ValueError(expected(program.name, lead, "have rows of samples, two dimensions", tuple(x.shape)))
    for name, tensor in zip(program.inputs, tensors, strict=True):
        words, shape = wanted[name]
        if tensor.shape != shape:
            raise ValueError(expected(program.name, name, f"{words} of `{lead}`, {tuple(shape)}", tuple(tensor.shape)))
    check_devices(program.name, **dict(zip(program.inputs, tensors, strict=True)))
