"""Layer normalisation on arrays of any library: checks, and launches of the programs of :mod:`.programs`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from cupyops.arrays import LIBRARIES, ArrayLibrary, check_devices, device_of, on_any_arrays
from cupyops.dtypes import DTYPES, dtype_name
from cupyops.launch.kernel import Kernel
from cupyops.launch.memo import memo
from cupyops.ops.checks import check_shapes
from cupyops.programs.row_config import RowKernels
from cupyops.programs.row_launch import row_launch
from cupyops.tiling.partial_sums import partial_sums

from .checks import Shape, as_shape, check, check_backward, check_tangent, stats_shape
from .programs import backward_program, forward_program, tangent_program

__all__ = ["add_layer_norm", "declare_ahead", "layer_norm", "layer_norm_backward"]

# Row lengths whose kernels are compiled ahead: a row in a warp, and in a block.
_AHEAD = (1024, 8192)


def forward(
    x: Any, weight: Any, bias: Any, normalized_shape: Shape, eps: float, dtype: str | None = None
) -> tuple[Any, Any]:
    """Returns y in x's shape, and the statistics (2, *batch, 1...): mean and 1/√(var + eps). y has ``dtype``, or x's
    dtype."""
    y, _, stats = add_forward(x, None, weight, bias, normalized_shape, eps, dtype)
    return y, stats


def inference(x: Any, weight: Any, bias: Any, normalized_shape: Shape, eps: float, dtype: str | None = None) -> Any:
    """Returns the y of :func:`forward`, without the statistics that only a gradient needs."""
    return add_forward(x, None, weight, bias, normalized_shape, eps, dtype, want_stats=False)[0]


@dataclass(frozen=True, slots=True)
class Call:
    """The checked configuration of a call, which :func:`cupyops.launch.memo.memo` caches.

    Attributes:
        library: the array library of the arrays.
        dtype: the dtype of x, or of the sum x + residual.
        acc: the accumulation dtype of ``dtype``.
        other: in a forward and in a tangent, the dtype of y; in a backward, the dtype of the gradients of weight and bias.
        stats: in a forward, the shape of the statistics.
        kernel: the kernel, or None if nothing is launched.
        arrays: selects the kernel's arrays from those of the call.
        sizes: the kernel's sizes.
        sums: the shape of the sums over the rows that the blocks write: (sums, parts, N).
        zeros: whether these sums start at zero.
    """

    library: ArrayLibrary
    dtype: str
    acc: str
    other: str
    stats: tuple[int, ...] = ()
    kernel: Kernel | None = None
    arrays: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple
    sizes: Sequence[int] = ()
    sums: tuple[int, ...] = ()
    zeros: bool = False

    def launching(
        self, made: RowKernels, names: Sequence[str], types: dict[str, str], rows: int, n: int, device: Any
    ) -> "Call":
        """Returns the configuration with the launch of a program.

        Args:
            made: the program and its kernels.
            names: the arrays of the call, in its order. The program has some of them.
            types: the dtypes of the arrays.
            rows, n: the number of rows, and the elements of a row.
            device: the GPU.
        """
        program = made.program
        takes = [program.stack_of(name) or (name, 0) for name in (*program.inputs, *program.results)]
        own = [names.index(name) for name, part in takes if part == 0]
        reads = {name: types[name] for name in (*program.inputs, *program.typed, program.lead) if name in types}
        reads |= {part: self.acc for _, parts in program.stacks for part in parts if part in program.inputs}
        found = row_launch(made, reads, rows, n, device)
        sums = list(program.kinds().values()).count("column")
        return replace(
            self,
            kernel=found.kernel,
            arrays=itemgetter(*own) if len(own) > 1 else lambda arrays: (arrays[own[0]],),
            sizes=found.sizes,
            sums=(sums, found.parts, n) if sums else (),
            zeros=found.zeros,
        )


def add_forward(
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    normalized_shape: Shape,
    eps: float,
    dtype: str | None = None,
    want_stats: bool = True,
) -> tuple[Any, Any, Any]:
    """Returns y, s = x + residual, and the statistics of s.

    s is None without a residual. The statistics are None unless ``want_stats``. ``dtype`` is the dtype of y.
    """
    call = forward_call(x, residual, weight, bias, tuple(normalized_shape), dtype, want_stats)
    return run_forward(call, x, residual, weight, bias, eps, want_stats)


def run_forward(
    call: Call, x: Any, residual: Any, weight: Any, bias: Any, eps: float, want_stats: bool = True
) -> tuple[Any, Any, Any]:
    """Returns the results of :func:`add_forward` for the configuration of the call."""
    library, contiguous = call.library, call.library.contiguous
    x = contiguous(x)
    weight = None if weight is None else contiguous(weight)
    bias = None if bias is None else contiguous(bias)
    residual = None if residual is None else contiguous(residual)
    s = None if residual is None else library.empty(x.shape, call.dtype, x)
    # empty_like is the fastest way to allocate an array.
    like = x if s is None else s
    y = library.empty_like(like) if call.other == call.dtype else library.empty(x.shape, call.other, x)
    stats = library.empty(call.stats, call.acc, x) if want_stats else None
    if call.kernel is not None:
        call.kernel.launch_vouched(*call.arrays((x, residual, weight, bias, y, s, stats)), eps, *call.sizes)
    elif stats is not None and not library.skips(y):
        stats[0], stats[1] = 0, math.nan  # PyTorch's statistics of rows without elements
    return y, s, stats


def declare_ahead() -> None:
    """Declares kernels of each kind for :func:`cupyops.warmup` and the compile command."""
    programs = [
        *(forward_program(False, False, True, True, stats, False) for stats in (False, True)),
        forward_program(True, False, True, True, True, False),
        backward_program(True, False, True, True, True),
        backward_program(False, False, True, False, False),
        tangent_program(True, True, True, False),
    ]
    for made in programs:
        made.ahead(_AHEAD)


_FORWARD = ("x", "residual", "weight", "bias", "y", "s", "stats")


@memo("x", "residual?", "weight?", "bias?")
def forward_call(
    x: Any, residual: Any, weight: Any, bias: Any, normalized_shape: Shape, result: str | None, want_stats: bool
) -> Call:
    """Returns the checked configuration of an :func:`add_forward`."""
    library = LIBRARIES[type(x)]
    check_shapes("add_layer_norm", residual=(residual, x.shape))
    dtype = library.dtype_name(x) if residual is None else library.result_type(x, residual)
    check(x, dtype, weight, bias, normalized_shape, result)
    check_devices("layer_norm", x=x, residual=residual, weight=weight, bias=bias)
    stats = stats_shape(x, normalized_shape)
    rows, n = math.prod(stats[1:]), math.prod(normalized_shape)
    call = Call(library, dtype, DTYPES[dtype].acc, result or dtype, stats)
    if library.skips(x) or rows == 0 or n == 0:
        return call
    given = {"x": x, "residual": residual, "weight": weight, "bias": bias}
    types = {name: library.dtype_name(a) for name, a in given.items() if a is not None}
    mixed = {types["x"], types.get("residual", dtype)} != {dtype}
    has = weight is not None, bias is not None
    made = forward_program(residual is not None, mixed, *has, want_stats, call.other != dtype)
    return call.launching(made, _FORWARD, {**types, "s": dtype, "y": call.other}, rows, n, device_of(library, x))


def backward(
    grad_y: Any, x: Any, stats: Any, weight: Any, grad_sum: Any, normalized_shape: Shape, eps: float, *wants: bool
) -> tuple[Any, Any, Any]:
    """Returns the gradients of x, weight and bias.

    The gradient of x has x's dtype. The gradients of weight and bias have weight's dtype, or x's dtype without a
    weight.

    Args:
        grad_y: the gradient of y.
        x: the operand of :func:`forward`, or the sum s of :func:`add_forward`.
        stats: the statistics that the forward returned.
        weight: the operand of the forward, or None.
        grad_sum: an array that is added to the gradient of x, or None.
        normalized_shape: the shape of a row.
        eps: unused here; the gradient of this gradient takes eps.
        wants: whether the gradients of x, weight and bias are wanted. An unwanted gradient has no elements.
    """
    call = _backward(grad_y, x, stats, weight, grad_sum, tuple(normalized_shape), wants)
    return _run_backward(call, grad_y, x, stats, weight, grad_sum, normalized_shape, wants)


def _run_backward(
    call: Call,
    grad_y: Any,
    x: Any,
    stats: Any,
    weight: Any,
    grad_sum: Any,
    normalized_shape: Shape,
    wants: Sequence[bool],
) -> tuple[Any, Any, Any]:
    want_x, want_weight, want_bias = wants
    library = call.library
    contiguous, empty, empty_like = library.contiguous, library.empty, library.empty_like
    x, grad_y, stats = contiguous(x), contiguous(grad_y), contiguous(stats)
    weight = None if weight is None else contiguous(weight)
    grad_sum = None if grad_sum is None else contiguous(grad_sum)
    grad_x = empty_like(x) if want_x else empty((0,), call.dtype, x)
    if weight is not None and want_weight and want_bias:
        grad_weight, grad_bias = empty_like(weight), empty_like(weight)
    else:
        grad_weight = empty(normalized_shape if want_weight else (0,), call.other, x)
        grad_bias = empty(normalized_shape if want_bias else (0,), call.other, x)
    if call.kernel is None:
        if not library.skips(grad_x):
            grad_weight[...] = grad_bias[...] = 0
        return grad_x, grad_weight, grad_bias
    sums = empty(call.sums, call.acc, x) if call.sums else None
    if sums is not None and call.zeros:
        sums[...] = 0
    arrays = call.arrays((grad_y, x, grad_sum, stats, weight, grad_x, sums, sums, sums))
    call.kernel.launch_vouched(*arrays, *call.sizes)
    if call.sums:
        count, parts, n = call.sums
        both = (grad_weight, grad_bias) if count == 2 else (grad_weight if want_weight else grad_bias, None)
        partial_sums(count, parts).launch_vouched(sums, *both, parts, n)
    return grad_x, grad_weight, grad_bias


_BACKWARD = ("grad_y", "x", "grad_sum", "stats", "weight", "grad_x", "sums", "grad_weight", "grad_bias")


@memo("grad_y", "x", "stats", "weight?", "grad_sum?")
def _backward(
    grad_y: Any, x: Any, stats: Any, weight: Any, grad_sum: Any, shape: Shape, wants: tuple[bool, ...]
) -> Call:
    """Returns the checked configuration of a :func:`backward`.

    Args:
        grad_y, x, stats, weight, grad_sum: the arrays of :func:`backward`.
        shape: the shape of a row.
        wants: whether the gradients of x, weight and bias are wanted.
    """
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    check_backward(grad_y, x, stats, weight, grad_sum, shape)
    check_devices("layer_norm_backward", x=x, grad_y=grad_y, stats=stats, weight=weight, grad_sum=grad_sum)
    given = {"grad_y": grad_y, "x": x, "grad_sum": grad_sum, "weight": weight}
    types = {name: library.dtype_name(a) for name, a in given.items() if a is not None}
    rows, n = math.prod(stats.shape[1:]), math.prod(shape)
    call = Call(library, dtype, DTYPES[dtype].acc, types.get("weight", dtype))
    if library.skips(x) or rows == 0 or n == 0 or not any(wants):
        return call
    made = backward_program(weight is not None, grad_sum is not None, *wants)
    return call.launching(made, _BACKWARD, types, rows, n, device_of(library, x))


def tangent(
    tangent_x: Any,
    x: Any,
    stats: Any,
    weight: Any,
    tangent_weight: Any,
    tangent_bias: Any,
    normalized_shape: Shape,
    eps: float,
    dtype: str | None = None,
) -> Any:
    """Returns the tangent of y: weight·rstd·(tangent_x - mean(tangent_x) - x̂·mean(tangent_x·x̂)) + tangent_weight·x̂ +
    tangent_bias.

    Args:
        tangent_x: the tangent of x.
        x, weight, normalized_shape, dtype: the operands of :func:`forward`.
        stats: the statistics that the forward returned.
        tangent_weight, tangent_bias: the tangents of weight and bias, or None for zeros.
        eps: unused here; the derivative of the tangent takes eps.
    """
    given = weight, tangent_weight, tangent_bias
    call = _tangent(tangent_x, x, stats, *given, tuple(normalized_shape), dtype)
    library, contiguous = call.library, call.library.contiguous
    x, tangent_x, stats = contiguous(x), contiguous(tangent_x), contiguous(stats)
    held = [None if p is None else contiguous(p) for p in given]
    y = library.empty_like(x) if call.other == call.dtype else library.empty(x.shape, call.other, x)
    if call.kernel is not None:
        call.kernel.launch_vouched(*call.arrays((x, tangent_x, stats, *held, y)), *call.sizes)
    return y


_TANGENT = ("x", "tangent_x", "stats", "weight", "tangent_weight", "tangent_bias", "y")


@memo("tangent_x", "x", "stats", "weight?", "tangent_weight?", "tangent_bias?")
def _tangent(
    tangent_x: Any,
    x: Any,
    stats: Any,
    weight: Any,
    tangent_weight: Any,
    tangent_bias: Any,
    shape: Shape,
    result: str | None,
) -> Call:
    """Returns the checked configuration of a :func:`tangent`."""
    library = LIBRARIES[type(x)]
    check_tangent(tangent_x, x, stats, weight, tangent_weight, tangent_bias, shape, result)
    parameters = {"weight": weight, "tangent_weight": tangent_weight, "tangent_bias": tangent_bias}
    check_devices("layer_norm_jvp", x=x, tangent_x=tangent_x, stats=stats, **parameters)
    dtype = library.dtype_name(x)
    call = Call(library, dtype, DTYPES[dtype].acc, result or dtype)
    rows, n = math.prod(stats.shape[1:]), math.prod(shape)
    if library.skips(x) or rows == 0 or n == 0:
        return call
    types = {name: library.dtype_name(p) for name, p in parameters.items() if p is not None}
    types |= {"x": dtype, "tangent_x": dtype, "y": call.other}
    made = tangent_program(*(p is not None for p in parameters.values()), call.other != dtype)
    return call.launching(made, _TANGENT, types, rows, n, device_of(library, x))


@on_any_arrays("x", "weight?", "bias?")
def layer_norm(
    x: Any,
    normalized_shape: int | Shape,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    return_stats: bool = False,
    dtype: Any = None,
) -> Any:
    """Returns the layer normalisation of an array on a GPU, without PyTorch.

    y = (x - mean)/√(var + eps)·weight + bias, with the mean and the (biased) variance of the last dimensions of x.

    Args:
        x: a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32 or float64, any
            layout.
        normalized_shape: the shape of x's last dimensions, which are normalised together.
        weight, bias: arrays of shape ``normalized_shape``, or None. Their dtype is x's dtype, or float32 for a 16-bit
            x.
        eps: a number that is added to the variance.
        return_stats: whether mean and rstd = 1/√(var + eps) are returned, too.
        dtype: the dtype of y, as a NumPy dtype or a name; by default x's dtype. y is rounded once.

    Returns:
        A CuPy array of x's shape, or (y, mean, rstd). The statistics are float32 (float64 for float64) and have size 1
        in each dimension of ``normalized_shape``. The arrays are computed on CuPy's current stream.

    Raises:
        TypeError: x is not an array, or the dtype of x or y is not floating.
        RuntimeError: the shapes or dtypes of x, weight and bias do not fit each other, in PyTorch's words.
        ValueError: an array is in host memory, or on another device than x.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    y, _, stats = add_forward(x, None, weight, bias, as_shape(normalized_shape), eps, dtype_name(dtype), return_stats)
    return (y, stats[0], stats[1]) if return_stats else y


@on_any_arrays("x", "residual", "weight?", "bias?")
def add_layer_norm(
    x: Any,
    residual: Any,
    normalized_shape: int | Shape,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """Returns s = x + residual and the layer normalisation y of s, in one pass over arrays on a GPU, without PyTorch.

    Args:
        x, residual: arrays of one shape. The dtype of s is promoted from their dtypes by the rules of
            ``cupy.result_type``.
        normalized_shape, weight, bias, eps: as for :func:`layer_norm` of s.
        dtype: the dtype of y; by default the dtype of s.

    Returns:
        CuPy arrays (y, s).

    Raises:
        ValueError: the shapes of x and residual differ, or as :func:`layer_norm`.
        TypeError, RuntimeError, MissingDependencyError: as :func:`layer_norm`.
    """
    y, s, _ = add_forward(x, residual, weight, bias, as_shape(normalized_shape), eps, dtype_name(dtype))
    return y, s


@on_any_arrays("grad_y", "x", "stats", "weight?", "grad_sum?")
def layer_norm_backward(
    grad_y: Any,
    x: Any,
    stats: Any,
    normalized_shape: int | Shape,
    weight: Any = None,
    eps: float = 1e-5,
    *,
    grad_sum: Any = None,
    wants: Sequence[bool] = (True, True, True),
) -> tuple[Any, Any, Any]:
    """Returns the gradients of :func:`layer_norm`, without PyTorch.

    Args:
        grad_y: the gradient of y, in x's shape and y's dtype.
        x, normalized_shape, weight, eps: the arguments of :func:`layer_norm`.
        stats: mean and rstd, stacked: (2, ...).
        grad_sum: an array that is added to the gradient of x, or None: the gradient of the sum s of
            :func:`add_layer_norm`.
        wants: whether the gradients of x, weight and bias are wanted.

    Returns:
        CuPy arrays (grad_x, grad_weight, grad_bias). An unwanted gradient has no elements.

    Raises:
        ValueError: the shape of grad_y, stats or grad_sum does not fit x.
        TypeError: grad_y is not floating, or grad_sum has another dtype than x.
        RuntimeError, MissingDependencyError: as :func:`layer_norm`.
    """
    return backward(grad_y, x, stats, weight, grad_sum, as_shape(normalized_shape), eps, *wants)
