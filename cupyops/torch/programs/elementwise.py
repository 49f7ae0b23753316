"""Makes elementwise operators from formulas: ``elementwise("y = x / (1 + exp(-x))", backward="grad_x = ...")``."""

import functools
import hashlib
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.arrays import check_devices, is_dense
from cupyops.errors import expected, nearest
from cupyops.programs.elementwise import Program, alike_kernel, strided_kernel, text_of
from cupyops.programs.expressions import Statement, check_operations, inputs_of, parse, results_of
from cupyops.tiling.broadcasting import spread, strided_loop
from cupyops.torch.core.gradients import Schema, gradient_of, named_for_its_arguments
from cupyops.torch.core.operator import Operator, declared
from cupyops.torch.core.tensors import DTYPE_NAMES, TorchLibrary

from .reference import elementwise_reference

__all__ = ["Written", "elementwise"]


class Written(Operator):
    """An operator whose kernels were generated from a program.

    Attributes:
        text: the CUDA C++ text of the forward kernel, and then of the backward kernel.
        programs: the programs of the forward and, if there is one, of the backward.
    """

    text: str = ""
    programs: tuple[Any, ...] = ()
    declare: Callable[[], "Written"] | None = None  # declares the same operator, in a process that loads a pickled one

    def __reduce__(self) -> Any:
        try:
            pickle.dumps(self.declare)
        except Exception:  # an option is a function without a name, such as a lambda: another process must declare it
            return super().__reduce__()
        return declared, (self.qualified_name, self.declare)

    def show(self) -> None:
        """Prints the CUDA C++ text of the kernels."""
        print(self.text)


def elementwise(
    program: str,
    backward: str | None = None,
    *,
    name: str | None = None,
    scalars: Sequence[str] = (),
    results: Sequence[str] = (),
    headers: Sequence[str] = (),
    **options: Any,
) -> Written:
    """Returns an operator that computes each element of its results from the inputs' elements at the same index.

    >>> swish = elementwise("y = x / (1 + exp(-x))", name="mylib::swish")
    >>> swish
    <Operator mylib::swish(Tensor x) -> Tensor y>

    The program is a list of assignments in CUDA C++, separated by ``;`` or line ends. The arithmetic is float32, or
    float64 for float64 tensors. A name that is read and never assigned is an input; the inputs are in order of
    appearance. A name that is assigned and not read again is a result. Inputs are broadcast and promoted by PyTorch's
    rules. A call is one pass over memory with accesses of 16 bytes.

    Args:
        program: ``"s = 1 / (1 + exp(-a)); y = a * s * b"``.
        backward: a program that computes the gradients from the gradients of the results, the inputs and the results:
            ``"grad_a = grad_y * b * ..."``.
        name: the operator's name, ``"mylib::swiglu"``; by default a name with a hash of the program.
        scalars: inputs that are numbers. The operator takes the numbers after the tensors.
        results: names of the results; needed if the program reads a result again.
        headers: names of headers of :mod:`kernels_cu` whose functions the program calls, ``::normal_cdf(x)``; needs a
            ``reference``.
        options: other arguments of :class:`cupyops.torch.Operator`: ``reference``, ``autocast``, ``onnx``, ``record``,
            ``vmap``, ``compiled``, ``recompute``.

    Returns:
        The operator, which takes floating tensors. ``op.show()`` prints the CUDA C++ text.

    Raises:
        ValueError: the program is not a list of assignments, or calls a function of Python or NumPy; or the backward
            reads an unknown name or assigns no gradient.
        TypeError: an option is unknown.
        CompileError: raised by the first call for a dtype, if NVRTC rejects an expression.
    """
    where = (name or "elementwise").rpartition(":")[2]
    statements = parse(program, where)
    check_options(where, options)
    check_operations(where, statements, rows=False)
    inputs = tuple(inputs_of(statements, scalars))
    results = named_results(where, statements, results)
    name = name or content_name(results[0], "elementwise", program, backward, scalars, results)
    where = name.rpartition(":")[2]
    if not inputs:
        raise ValueError(f"{where}: `{program}` reads no tensor")
    check_reference(where, options.get("reference"), (*inputs, *scalars))
    if headers and options.get("reference") is None:
        raise ValueError(f"{where}: a program that calls functions of {', '.join(headers)} needs a `reference`")
    forward = Program(where, tuple(statements), inputs, tuple(scalars), results, tuple(headers))
    schema = schema_of(name, inputs, scalars, results)
    texts = [text_of(forward)]
    gradient, wrt = None, None
    if backward is not None:
        steps = parse(backward, f"{where}'s backward")
        wrt, reads = of_backward(where, steps, inputs, results, scalars)
        back = f"{where}_backward", tuple(steps), reads, tuple(scalars), tuple(f"grad_{x}" for x in wrt)
        program_back = Program(*back, tuple(headers))
        check_operations(f"{where}'s backward", steps, rows=False)
        texts.append(text_of(program_back))
        text = named_for_its_arguments(
            f"{name}_backward", schema_of("", reads, scalars, program_back.results, wants=wrt)
        )
        takes = list(Schema.parse(text).types)
        gradient = Operator(
            text,
            body_of(program_back, texts[1], wants=len(wrt) > 1),
            inplace=None if len(wrt) > 1 else body_of(program_back, texts[1], in_place=True),
            elementwise=True,
            reference=_whole(gradient_of(options.get("reference"), Schema.parse(schema), takes, wrt), len(reads))
            or elementwise_reference(program_back, promoted),
            compiled="auto" if options.get("compiled") == "auto" else "kernel",
            repeats=True,
        )
    made = Written(
        schema,
        body_of(forward, texts[0]),
        inplace=body_of(forward, texts[0], in_place=True),
        backward=gradient,
        wrt=wrt,
        elementwise=True,
        repeats=True,
        **options,
    )
    if made.reference is None:
        made._with_derivatives = elementwise_reference(forward, promoted)
    made.text = "\n".join(texts)
    made.programs = (forward,) if backward is None else (forward, program_back)
    named: Any = {"name": name, "scalars": scalars, "results": results, "headers": headers}
    made.declare = functools.partial(elementwise, program, backward, **named, **options)
    return made


def check_options(where: str, options: Mapping[str, object]) -> None:
    """Raises unless every option is one that :func:`elementwise` and ``row_reduce`` accept.

    Raises:
        TypeError: an option is unknown.
    """
    known = ("reference", "autocast", "onnx", "record", "vmap", "compiled", "recompute")
    for name in options:
        if name == "dtypes":
            raise TypeError(
                f"{where}: there is no option `dtypes`: a program is of all floating dtypes, and a call's tensors select one"
            )
        if name not in known:
            raise TypeError(f"{where}: there is no option `{name}`{nearest(name, known)}; there are {', '.join(known)}")


def check_reference(where: str, reference: object, inputs: Sequence[str]) -> None:
    """Raises if the parameters of a reference have the names of a program's inputs, in another order.

    A call passes the arguments to both by position.

    Raises:
        ValueError: two parameters are exchanged.
    """
    try:
        parameters = list(inspect.signature(reference).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a builtin function
        return
    named = [x for x in parameters if x in inputs]
    wanted = [x for x in inputs if x in named]
    if named != wanted:
        raise ValueError(
            f"{where}: the inputs are in the order in which the program reads them, ({', '.join(inputs)}), and the reference "
            f"takes ({', '.join(parameters)}): give its parameters the order of the inputs"
        )


def named_results(where: str, statements: Sequence[Statement], named: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the results: ``named`` if it is not empty, else the names that are assigned and not read
    again.

    Raises:
        ValueError: a name in ``named`` is never assigned.
    """
    assigned = [s.name for s in statements]
    for name in named:
        if name not in assigned:
            raise ValueError(f"{where}: the result `{name}` is never assigned{nearest(name, assigned)}")
    return tuple(named) or tuple(results_of(statements))


def content_name(result: str, kind: str, *content: object) -> str:
    """Returns the default name of a program's operator. The name ends in a hash of the program, so it is equal in every
    process."""
    return f"cupyops_{kind}::{result}_{hashlib.sha256(repr(content).encode()).hexdigest()[:8]}"


def schema_of(
    name: str, tensors: Sequence[str], scalars: Sequence[str], results: Sequence[str], wants: Sequence[str] = ()
) -> str:
    """Returns a schema: ``mylib::name(Tensor x, float limit) -> (Tensor y)``.

    If ``wants`` has several names, the schema has an argument ``bool want_x`` for each name x.
    """
    arguments = [f"Tensor {x}" for x in tensors] + [f"float {s}" for s in scalars]
    if len(wants) > 1:
        arguments += [f"bool want_{x}" for x in wants]
    return f"{name}({', '.join(arguments)}) -> ({', '.join(f'Tensor {y}' for y in results)})"


def of_backward(
    where: str, steps: Sequence[Statement], inputs: Sequence[str], results: Sequence[str], scalars: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the inputs whose gradients a backward program computes, and the tensors that the program reads, gradients
    first.

    Raises:
        ValueError: the program assigns no gradient of an input, or reads an unknown name.
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
    """Returns a gradient's reference with its tensors first broadcast and promoted to one shape and dtype, as in the
    kernel.

    Autograd sums the gradients over the broadcast dimensions afterwards.
    """
    if gradient is None:
        return None

    def whole(*args: Any) -> Any:
        tensors = args[:count]
        dtype = promoted(tensors)
        return gradient(*(x.to(dtype) for x in torch.broadcast_tensors(*tensors)), *args[count:])

    return whole


_library = TorchLibrary()


def body_of(program: Program, text: str, *, wants: bool = False, in_place: bool = False) -> Callable[..., Any]:
    """Returns the operator's body, a function of the tensors, the numbers and, with ``wants``, a bool for each result.

    Args:
        program: the program of the forward or the backward.
        text: the CUDA C++ text of the program.
        wants: whether the body takes a bool for each result. A result whose bool is False is an empty tensor.
        in_place: whether the body writes the first result over the first tensor, and returns the others. A thread reads
            an element of each tensor before it writes that of the results, and no other thread reads or writes the
            element, so that no order of loads and stores that ``__restrict__`` permits changes a value.
    """
    alike = alike_kernel(program, text)
    count, numbers, made = len(program.inputs), len(program.scalars), len(program.results)
    strided = functools.cache(lambda *cut: strided_kernel(program, text, *cut))

    def allocate(like: Tensor, dtype: torch.dtype, shape: Sequence[int] | None, wanted: Sequence[bool]) -> list[Any]:
        if in_place:
            check_place(like, dtype, shape)
            return [like, *allocate_all(like, dtype, shape, wanted[1:])]
        return allocate_all(like, dtype, shape, wanted)

    def allocate_all(
        like: Tensor, dtype: torch.dtype, shape: Sequence[int] | None, wanted: Sequence[bool]
    ) -> list[Any]:
        if shape is None:
            return [torch.empty_like(like, dtype=dtype) if w else None for w in wanted]
        return [like.new_empty(shape, dtype=dtype) if w else None for w in wanted]

    def check_place(x: Tensor, dtype: torch.dtype, shape: Sequence[int] | None) -> None:
        if x.dtype is not dtype or (shape is not None and x.shape != torch.Size(shape)):
            wanted = f"have the shape and dtype of the result, {tuple(shape or x.shape)} {DTYPE_NAMES[dtype]}"
            raise ValueError(
                expected(f"{program.name}_", program.inputs[0], wanted, f"{tuple(x.shape)} {DTYPE_NAMES[x.dtype]}")
            )

    def results_of_call(outs: Sequence[Any], like: Tensor, dtype: torch.dtype) -> Any:
        filled = tuple(like.new_empty(0, dtype=dtype) if out is None else out for out in outs[in_place:])
        return filled if len(filled) > 1 else filled[0] if filled else None

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
        # The sizes of fake tensors may be symbolic. strided_loop would specialise a compiled graph to their values.
        if not _library.skips(first) and total:
            widest = max(x.dtype.itemsize for x in (*tensors, *(out for out in outs if out is not None)))
            views = [spread(x.shape, stride, shape) for x, stride in zip(tensors, strides, strict=True)]
            vector_width, wide, sizes, dividers, *loop = strided_loop(shape, views, widest)
            strided(len(sizes), vector_width, wide).launch_vouched(
                *tensors, *outs, *scalars, total // vector_width, sizes, dividers, *loop
            )
        return results_of_call(outs, first, dtype)

    return body


def promoted(tensors: Sequence[Tensor]) -> torch.dtype:
    """Returns the dtype of the results by PyTorch's promotion. 0-d tensors count only if no tensor has dimensions."""
    leading = [x for x in tensors if x.dim()] or tensors
    return functools.reduce(torch.promote_types, (x.dtype for x in leading))
