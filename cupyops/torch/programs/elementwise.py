"""Operators from element-wise programs: ``elementwise("y = x / (1 + exp(-x))", backward="grad_x = ...")``."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.arrays import check_devices, is_dense
from cupyops.errors import nearest
from cupyops.programs.elementwise import Program, alike_kernel, check_names, strided_kernel, text_of
from cupyops.programs.expressions import Statement, check_operations, inputs_of, parse, results_of
from cupyops.tiling.broadcasting import spread, strided_loop
from cupyops.torch.core.gradients import Schema, gradient_of, named_for_its_arguments
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import TorchLibrary

from .reference import elementwise_reference

__all__ = ["Written", "elementwise"]


class Written(Operator):
    """An operator whose kernels were written from a program.

    Attributes:
        text: of the kernels, forward's before backward's.
    """

    text: str = ""

    def show(self) -> None:
        """Prints the kernels' text."""
        print(self.text)


def elementwise(
    program: str,
    backward: str | None = None,
    *,
    name: str | None = None,
    scalars: Sequence[str] = (),
    results: Sequence[str] = (),
    **options: Any,
) -> Written:
    """An operator that makes each element of its results of its inputs' elements at that place.

    >>> swish = elementwise("y = x / (1 + exp(-x))", name="mylib::swish")
    >>> swish
    <Operator mylib::swish(Tensor x) -> Tensor y>

    The program is of assignments in CUDA C++, which end at ``;`` or with their line; arithmetic is in float32, or float64
    for float64. Names that are only read are the inputs, in order of appearance; those that are assigned and not read
    again are the results. Inputs broadcast, and are promoted, as PyTorch does; a call is one pass over memory by accesses
    of 16 bytes.

    Args:
        program: ``"s = 1 / (1 + exp(-a)); y = a * s * b"``.
        backward: of the gradients, in terms of those of the results, of the inputs and of the results:
            ``"grad_a = grad_y * b * ..."``.
        name: ``"mylib::swiglu"``; by default made of the program.
        scalars: inputs that are numbers; they come behind the tensors.
        results: names of the results, where one of them is read again.
        options: as for :class:`cupyops.torch.Operator`: ``reference``, ``autocast``, ``vmap``.

    Returns:
        The operator, of floating tensors; ``op.show()`` prints its text.

    Raises:
        ValueError: the program is not of assignments, or of Python's or NumPy's words, or its backward reads what there is
            not or makes no gradient.
        TypeError: an option that there is not.
        CompileError: at the first call for a dtype: what the expressions say is no CUDA C++.
    """
    where = (name or "elementwise").rpartition(":")[2]
    statements = parse(program, where)
    check_options(where, options)
    check_operations(where, statements, rows=False)
    inputs = tuple(inputs_of(statements, scalars))
    results = named_results(where, statements, results)
    name = name or content_name(results[0], "elementwise", program, backward, scalars, results)
    where = name.rpartition(":")[2]
    check_names(where, [*inputs, *scalars, *(s.name for s in statements)])
    if not inputs:
        raise ValueError(f"{where}: `{program}` reads no tensor")
    forward = Program(where, tuple(statements), inputs, tuple(scalars), results)
    schema = schema_of(name, inputs, scalars, results)
    texts = [text_of(forward)]
    gradient, wrt = None, None
    if backward is not None:
        steps = parse(backward, f"{where}'s backward")
        wrt, reads = of_backward(where, steps, inputs, results, scalars)
        program_back = Program(
            f"{where}_backward", tuple(steps), reads, tuple(scalars), tuple(f"grad_{x}" for x in wrt)
        )
        check_names(where, [s.name for s in steps])
        check_operations(f"{where}'s backward", steps, rows=False)
        texts.append(text_of(program_back))
        text = named_for_its_arguments(
            f"{name}_backward", schema_of("", reads, scalars, program_back.results, wants=wrt)
        )
        takes = list(Schema.parse(text).types)
        gradient = Operator(
            text,
            body_of(program_back, texts[1], wants=len(wrt) > 1),
            elementwise=True,
            reference=_whole(gradient_of(options.get("reference"), Schema.parse(schema), takes, wrt), len(reads))
            or elementwise_reference(program_back, promoted),
        )
    made = Written(
        schema,
        body_of(forward, texts[0]),
        backward=gradient,
        wrt=wrt,
        elementwise=True,
        **options,
    )
    if made.reference is None:
        made._with_derivatives = elementwise_reference(forward, promoted)
    made.text = "\n".join(texts)
    return made


def check_options(where: str, options: Mapping[str, object]) -> None:
    """Refuses options that a written operator does not have.

    Raises:
        TypeError: `options` holds one.
    """
    known = ("reference", "autocast", "onnx", "record", "vmap")
    for name in options:
        if name == "dtypes":
            raise TypeError(
                f"{where}: there is no option `dtypes`: a program is of all floating dtypes, and a call's tensors decide"
            )
        if name not in known:
            raise TypeError(f"{where}: there is no option `{name}`{nearest(name, known)}; there are {', '.join(known)}")


def named_results(where: str, statements: Sequence[Statement], named: Sequence[str]) -> tuple[str, ...]:
    """The results: those that are named, else what is assigned and not read again.

    Raises:
        ValueError: one of the named is not assigned.
    """
    assigned = [s.name for s in statements]
    for name in named:
        if name not in assigned:
            raise ValueError(f"{where}: the result `{name}` is never assigned{nearest(name, assigned)}")
    return tuple(named) or tuple(results_of(statements))


def content_name(result: str, kind: str, *content: object) -> str:
    """A name for a program that was given none: the same for the same program, in every process."""
    return f"cupyops_{kind}::{result}_{hashlib.sha256(repr(content).encode()).hexdigest()[:8]}"


def schema_of(
    name: str, tensors: Sequence[str], scalars: Sequence[str], results: Sequence[str], wants: Sequence[str] = ()
) -> str:
    """``mylib::name(Tensor x, float limit) -> (Tensor y)``; ``wants`` are the inputs of which each gradient is asked for."""
    arguments = [f"Tensor {x}" for x in tensors] + [f"float {s}" for s in scalars]
    if len(wants) > 1:
        arguments += [f"bool want_{x}" for x in wants]
    return f"{name}({', '.join(arguments)}) -> ({', '.join(f'Tensor {y}' for y in results)})"


def of_backward(
    where: str, steps: Sequence[Statement], inputs: Sequence[str], results: Sequence[str], scalars: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of which inputs a backward program makes gradients, and the tensors that it reads, gradients first.

    Raises:
        ValueError: it makes none, or reads a name that means nothing.
    """
    assigned = [s.name for s in steps]
    wrt = tuple(x for x in inputs if f"grad_{x}" in assigned)
    if not wrt:
        raise ValueError(f"{where}: its backward must assign {' or '.join(f'`grad_{x}`' for x in inputs)}")
    known = [*(f"grad_{y}" for y in results), *inputs, *results]
    found = inputs_of(steps, [*scalars, "j", "N"])
    for read in found:
        if read not in known:
            raise ValueError(
                f"{where}: its backward reads `{read}`{nearest(read, known)}; there are {', '.join((*known, *scalars))}"
            )
    return wrt, tuple(x for x in known if x in found)


def _whole(gradient: Callable[..., Any] | None, count: int) -> Callable[..., Any] | None:
    """A gradient's reference as its kernel has it: of the shape and dtype that the tensors are broadcast and promoted to.
    Autograd sums what was broadcast."""
    if gradient is None:
        return None

    def whole(*args: Any) -> Any:
        tensors = args[:count]
        dtype = promoted(tensors)
        return gradient(*(x.to(dtype) for x in torch.broadcast_tensors(*tensors)), *args[count:])

    return whole


_library = TorchLibrary()


def body_of(program: Program, text: str, *, wants: bool = False) -> Callable[..., Any]:
    """The body: tensors, numbers and, where ``wants``, for each result whether it is wanted."""
    alike = alike_kernel(program, text)
    count, numbers, made = len(program.inputs), len(program.scalars), len(program.results)
    strided = functools.cache(lambda *cut: strided_kernel(program, text, *cut))

    def allocate(like: Tensor, dtype: torch.dtype, shape: Sequence[int] | None, wanted: Sequence[bool]) -> list[Any]:
        if shape is None:
            return [torch.empty_like(like, dtype=dtype) if w else None for w in wanted]
        return [like.new_empty(shape, dtype=dtype) if w else None for w in wanted]

    def results_of_call(outs: Sequence[Any], like: Tensor, dtype: torch.dtype) -> Any:
        filled = tuple(like.new_empty(0, dtype=dtype) if out is None else out for out in outs)
        return filled if made > 1 else filled[0]

    def body(*args: Any) -> Any:
        tensors = args[:count]
        scalars = args[count : count + numbers]
        wanted = args[count + numbers :] if wants else (True,) * made
        first = tensors[0]
        shape, dtype = first.shape, first.dtype
        if all(x.dtype is dtype and x.shape == shape and x.is_contiguous() for x in tensors):
            outs = allocate(first, dtype, None, wanted)
            if any(wanted):
                alike.launch_vouched(*tensors, *outs, *scalars, first.numel())
            return results_of_call(outs, first, dtype)
        check_devices(program.name, **dict(zip(program.inputs, tensors, strict=True)))
        shape = torch.broadcast_shapes(*(x.shape for x in tensors))
        dtype = promoted(tensors)
        strides = [x.stride() for x in tensors]
        if (
            all(x.shape == shape for x in tensors)
            and is_dense(shape, strides[0])
            and strides.count(strides[0]) == count
        ):
            outs = allocate(first, dtype, None, wanted)
            if any(wanted):
                alike.launch_vouched(*tensors, *outs, *scalars, first.numel())
            return results_of_call(outs, first, dtype)
        outs = allocate(first, dtype, shape, wanted)
        total = next((out.numel() for out in outs if out is not None), 0)
        # Sizes of fakes may be symbols; planning a loop by them would tie a compiled graph to their values.
        if not _library.is_fake(first) and total:
            widest = max(x.dtype.itemsize for x in (*tensors, *(out for out in outs if out is not None)))
            views = [spread(x.shape, stride, shape) for x, stride in zip(tensors, strides, strict=True)]
            vector_width, wide, sizes, dividers, *loop = strided_loop(shape, views, widest)
            strided(len(sizes), vector_width, wide).launch_vouched(
                *tensors, *outs, *scalars, total // vector_width, sizes, dividers, *loop
            )
        return results_of_call(outs, first, dtype)

    return body


def promoted(tensors: Sequence[Tensor]) -> torch.dtype:
    """The dtype of the results: that of the tensors with dimensions, where there are some, as PyTorch promotes."""
    leading = [x for x in tensors if x.dim()] or tensors
    return functools.reduce(torch.promote_types, (x.dtype for x in leading))
