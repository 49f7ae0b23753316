"""Layer normalisation: checks and launches of ``kernels_cu/layer_norm.cu`` and ``layer_norm_backward.cu``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernels_cu

from . import driver
from .arrays import LIBRARIES, as_cupy, check_devices
from .dtypes import DTYPES, FLOATS
from .errors import LaunchError
from .geometry import PORTABLE_CLUSTER, Geometry, Threads
from .kernel import Kernel
from .layer_norm_checks import check, check_backward, check_residual
from .layer_norm_plan import CLUSTERS_SINCE, Plan, backward_columns, backward_plan, forward_plan

__all__ = ["add_layer_norm", "layer_norm", "layer_norm_backward"]

FORWARD, BACKWARD = kernels_cu.source("layer_norm"), kernels_cu.source("layer_norm_backward")

COLUMN_SUMS = Kernel(kernels_cu.source("column_sums"), "column_sums", Threads("N", block=(32, 32, 1)), dtypes=FLOATS)


@cache
def forward_kernel(plan: Plan, dtype: str, residual: bool) -> Kernel:
    """The forward of one plan and one dtype of the result, of x alone or of x and a residual."""
    name = "layer_norm_forward" + ("" if plan.kind == "registers" else f"_{plan.kind}")
    geometry = plan.rows("M") if plan.kind != "wide" else plan.stay("groups")
    return _kernel(FORWARD, name, geometry, plan, dtype, {"RESIDUAL": 1} if residual else {})


@cache
def backward_kernel(plan: Plan, dtype: str, want_x: bool, want_affine: bool, grad_sum: bool) -> Kernel:
    """The backward of one plan and one dtype of x, for some of the gradients."""
    name = "layer_norm_backward" + ("" if plan.kind == "registers" else f"_{plan.kind}")
    geometry = plan.stay({"registers": "blocks", "wide": "parts", "streaming": "M"}[plan.kind])
    wants = {"WANT_X": (want_x, True), "WANT_AFFINE": (want_affine, True), "GRAD_SUM": (grad_sum, False)}
    constants = {name: int(value) for name, (value, usual) in wants.items() if value != usual}
    return _kernel(BACKWARD, name, geometry, plan, dtype, constants)


def _kernel(text: str, name: str, geometry: Geometry, plan: Plan, dtype: str, constants: Mapping[str, int]) -> Kernel:
    choice = dict.fromkeys(("scalar_t", "x_t", "residual_t", "weight_t", "y_t"), dtype)
    return Kernel(
        text,
        name,
        geometry,
        dtypes=FLOATS,
        constants={**plan.constants, **constants},
        shared=plan.shared,
        since=plan.since,
        choices=[choice],
    )


for _dtype in FLOATS:
    # One of each kind, so that warmup() and the compile command find them.
    for _n in (1024, 65536, 1_000_000):
        _size = DTYPES[_dtype].itemsize
        forward_kernel(forward_plan(_n, _dtype, _size, _size, CLUSTERS_SINCE), _dtype, False)
        _plan = backward_plan(_n, _dtype, _size, CLUSTERS_SINCE)
        backward_kernel(_plan, _dtype, True, _plan.kind != "streaming", False)


def forward(
    x: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], eps: float, dtype: str | None = None
) -> tuple[Any, Any]:
    """The body of layer_norm: y of x's shape, in x's dtype or the one named, and the statistics (2, *batch, 1...)."""
    y, _, stats = add_forward(x, None, weight, bias, normalized_shape, eps, dtype)
    return y, stats


@dataclass(frozen=True, slots=True)
class Call:
    """What a call comes to, once its arrays' shapes, dtypes and devices have been checked.

    Attributes:
        launches: kernels in this order, what each is for, and its sizes.
        dtype, stats: of the sum, and the shape of the statistics.
        result: dtype of y.
        rows, n: the matrix.
        partial: shape of what blocks leave of the gradients of weight and bias, or None.
    """

    launches: tuple[tuple[Kernel, str, tuple[int, ...]], ...]
    dtype: str
    stats: tuple[int, ...]
    result: str
    rows: int
    n: int
    partial: tuple[int, int, int] | None = None


# Calls by all that they depend on; those of a backward depend on more. To check and to choose takes twice as long as to
# launch, and a key that is written out half as long as one by a loop.
_CALLS: dict[tuple[Any, ...], Call] = {}
_MOST_CALLS = 4096


def _remember(key: tuple[Any, ...], call: Call) -> Call:
    if len(_CALLS) >= _MOST_CALLS:
        _CALLS.clear()
    _CALLS[key] = call
    return call


def add_forward(
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    normalized_shape: Sequence[int],
    eps: float,
    dtype: str | None = None,
) -> tuple[Any, Any, Any]:
    """The body of add_layer_norm: y, s = x + residual (None without one), and the statistics of s."""
    library = LIBRARIES[type(x)]
    if library.is_fake(x):  # sizes may be symbols
        call = _forward_call(library, normalized_shape, x, residual, weight, bias, dtype)
    else:
        device = library.device_index
        key = (
            tuple(normalized_shape),
            dtype,
            (x.shape, x.dtype, device(x)),
            None if residual is None else (residual.shape, residual.dtype, device(residual)),
            None if weight is None else (weight.shape, weight.dtype, device(weight)),
            None if bias is None else (bias.shape, bias.dtype, device(bias)),
        )
        call = _CALLS.get(key) or _remember(
            key, _forward_call(library, normalized_shape, x, residual, weight, bias, dtype)
        )
    contiguous = library.contiguous
    x = contiguous(x)
    weight = None if weight is None else contiguous(weight)
    bias = None if bias is None else contiguous(bias)
    s = None
    if residual is not None:
        residual = contiguous(residual)
        s = library.empty(x.shape, call.dtype, x)
    # The cheapest way to an array is one like another.
    like = x if s is None else s
    y = library.empty_like(like) if call.result == call.dtype else library.empty(x.shape, call.result, x)
    stats = library.empty(call.stats, DTYPES[call.dtype].acc, x)
    for kernel, _, sizes in call.launches:
        kernel.launch_vouched(x, residual, weight, bias, like, y, stats, *sizes, eps)
    if not call.launches and not library.is_fake(y):
        _fill_empty(stats, call.rows)
    return y, s, stats


def _forward_call(
    library: Any,
    normalized_shape: Sequence[int],
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    result: str | None,
) -> Call:
    if residual is not None:
        check_residual(x, residual)
    dtype = library.dtype_name(x) if residual is None else library.result_type(x, residual)
    check(x, dtype, weight, bias, normalized_shape, result)
    check_devices("layer_norm", x=x, residual=residual, weight=weight, bias=bias)
    batch = x.shape[: len(x.shape) - len(normalized_shape)]
    n, rows = math.prod(normalized_shape), math.prod(batch)
    stats = (2, *batch, *(1,) * len(normalized_shape))
    about = dtype, stats, result or dtype, rows, n
    if library.is_fake(x) or rows == 0 or n == 0:
        return Call((), *about)
    input_bytes = sum(DTYPES[library.dtype_name(a)].itemsize for a in (x, residual) if a is not None)
    weights = next((a for a in (weight, bias) if a is not None), None)
    weight_bytes = DTYPES[dtype if weights is None else library.dtype_name(weights)].itemsize
    device = library.device_index(x)
    result_bytes = DTYPES[result or dtype].itemsize
    named = {"x_t": library.dtype_name(x), "y_t": result or dtype}
    named |= {} if residual is None else {"residual_t": library.dtype_name(residual)}
    named |= {} if weights is None else {"weight_t": library.dtype_name(weights)}

    def launch(portable: bool) -> tuple[Kernel, str, tuple[int, ...]]:
        row = n, dtype, input_bytes, weight_bytes, driver.capability(device), result_bytes
        plan = forward_plan(*row, portable=portable)
        kernel = forward_kernel(plan, dtype, residual is not None)
        if plan.kind != "wide":
            return kernel, "y", (rows, n)
        try:
            at_once = _at_once(kernel, dtype, named, device) // plan.cluster
        except LaunchError:
            if portable or plan.cluster <= PORTABLE_CLUSTER:
                raise
            return launch(portable=True)  # a GPU of which so many multiprocessors do not lie together
        return kernel, "y", (rows, n, min(at_once, rows))

    return Call((launch(portable=False),), *about)


def _at_once(kernel: Kernel, dtype: str, named: Mapping[str, str], device: int) -> int:
    """How many blocks run at once, for blocks that stay: types that are not named are the dtype of the sum."""
    return kernel.resident_blocks({name: named.get(name, dtype) for name in kernel.signature.bindings}, device)


def _fill_empty(stats: Any, rows: int) -> None:
    """The statistics of rows without elements, as PyTorch has them: a mean of 0, and NaN."""
    if rows:
        stats[0] = 0
        stats[1] = math.nan


def backward(
    grad_y: Any,
    x: Any,
    stats: Any,
    weight: Any,
    grad_sum: Any,
    normalized_shape: Sequence[int],
    eps: float,
    want_x: bool,
    want_weight: bool,
    want_bias: bool,
) -> tuple[Any, Any, Any]:
    """The body of the gradient: of x in its dtype, of weight and bias in weight's (x's without one); what is not wanted
    has no elements. ``grad_sum`` is added to the gradient of x. ``eps`` is for the gradient of this gradient."""
    library = LIBRARIES[type(x)]
    about = x, grad_y, stats, weight, grad_sum, want_x, want_weight or want_bias
    if library.is_fake(x):  # sizes may be symbols
        call = _backward_call(library, normalized_shape, *about)
    else:
        device = library.device_index
        key = (
            tuple(normalized_shape),
            (want_x, want_weight or want_bias),
            (x.shape, x.dtype, device(x)),
            (grad_y.shape, grad_y.dtype, device(grad_y)),
            (stats.shape, stats.dtype, device(stats)),
            None if weight is None else (weight.shape, weight.dtype, device(weight)),
            None if grad_sum is None else (grad_sum.shape, grad_sum.dtype, device(grad_sum)),
        )
        call = _CALLS.get(key) or _remember(key, _backward_call(library, normalized_shape, *about))
    contiguous, empty, empty_like = library.contiguous, library.empty, library.empty_like
    x, grad_y, stats = contiguous(x), contiguous(grad_y), contiguous(stats)
    weight = None if weight is None else contiguous(weight)
    grad_sum = None if grad_sum is None else contiguous(grad_sum)
    grad_x = empty_like(x) if want_x else empty((0,), call.dtype, x)
    if weight is not None and want_weight and want_bias:
        grad_weight, grad_bias = empty_like(weight), empty_like(weight)
    else:
        weight_dtype = call.dtype if weight is None else library.dtype_name(weight)
        grad_weight = empty(normalized_shape if want_weight else (0,), weight_dtype, x)
        grad_bias = empty(normalized_shape if want_bias else (0,), weight_dtype, x)
    partial = None if call.partial is None else empty(call.partial, DTYPES[call.dtype].acc, x)
    for kernel, makes, sizes in call.launches:
        if makes == "x and parts":
            kernel.launch_vouched(grad_y, x, stats, weight, grad_sum, grad_x, partial, *sizes)
        elif makes == "sums":
            of_weight, of_bias = (grad_weight if want_weight else None), (grad_bias if want_bias else None)
            kernel.launch_vouched(partial, of_weight, of_bias, *sizes)
        elif makes == "x":
            kernel.launch_vouched(grad_y, x, stats, weight, grad_sum, grad_x, *sizes)
        else:
            kernel.launch_vouched(grad_y, x, stats, weight, None, None, partial, *sizes)
    if not call.launches and not library.is_fake(grad_x):
        for gradient in (grad_weight, grad_bias):
            gradient[...] = 0
    return grad_x, grad_weight, grad_bias


def _backward_call(
    library: Any,
    normalized_shape: Sequence[int],
    x: Any,
    grad_y: Any,
    stats: Any,
    weight: Any,
    grad_sum: Any,
    want_x: bool,
    want_affine: bool,
) -> Call:
    dtype = library.dtype_name(x)
    check_backward(grad_y, x, dtype, stats, weight, grad_sum, normalized_shape)
    check_devices("layer_norm_backward", x=x, grad_y=grad_y, stats=stats, weight=weight, grad_sum=grad_sum)
    n, rows = math.prod(normalized_shape), math.prod(x.shape[: len(x.shape) - len(normalized_shape)])
    result = library.dtype_name(grad_y)
    about = dtype, (), result, rows, n
    if library.is_fake(x) or rows == 0 or n == 0:
        return Call((), *about)
    weight_dtype = dtype if weight is None else library.dtype_name(weight)
    device = library.device_index(x)
    sizes_of = DTYPES[weight_dtype].itemsize, driver.capability(device), DTYPES[result].itemsize
    more = grad_sum is not None
    plan = backward_plan(n, dtype, *sizes_of, grad_sum=more)
    launches: list[tuple[Kernel, str, tuple[int, ...]]] = []
    if not want_x or plan.kind == "streaming":
        if want_x:
            launches.append((backward_kernel(plan, dtype, True, False, more), "x", (rows, n)))
        plan, want_x, more = backward_columns(n, dtype), False, False
    partial = None
    if want_x or want_affine:
        kernel = backward_kernel(plan, dtype, want_x, want_affine, more)
        at_once = _at_once(kernel, dtype, {"y_t": result, "weight_t": weight_dtype}, device) // plan.cluster
        tiles = 1 if want_x else -(-n // plan.slice)
        parts = max(1, min(at_once // tiles, -(-rows // plan.groups)))
        sizes = (rows, n, parts) if plan.kind == "wide" else (rows, n, parts, parts * tiles)
        launches.append((kernel, "x and parts" if want_x else "parts", sizes))
        if want_affine:
            partial = (2, parts, n)
            launches.append((COLUMN_SUMS, "sums", (parts, n)))
    return Call(tuple(launches), *about, partial)


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def _as_cupy(where: str, **arrays: Any) -> list[Any]:
    return [None if a is None else as_cupy(a, where, name) for name, a in arrays.items()]


def _name_of(dtype: Any) -> str | None:
    """Of a dtype as NumPy and CuPy take them."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    import numpy

    return str(numpy.dtype(dtype))


def layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    return_stats: bool = False,
    dtype: Any = None,
) -> Any:
    """Layer normalisation of any array on a GPU, without PyTorch.

    y = (x - mean)/√(var + eps)·weight + bias, with mean and (biased) variance over the last dimensions of x.

    Args:
        x: a CuPy array, or any array that exports DLPack from GPU memory; float16, bfloat16, float32 or float64, any
            layout.
        normalized_shape: the last dimensions of x.
        weight, bias: of that shape, and of x's dtype or float32 beside x of 16 bits; each may be absent.
        eps: what is added to the variance.
        return_stats: also give mean and 1/√(var + eps).
        dtype: of y, rounded to it once, as NumPy's or by its name; by default x's.

    Returns:
        A CuPy array of x's shape, or (y, mean, rstd) with the statistics in float32 (float64 for float64) and 1
        in place of each dimension of ``normalized_shape``. Computed on CuPy's current stream.

    Raises:
        TypeError: x is no array, or it or the dtype not floating.
        RuntimeError: shapes or dtypes that do not belong together, in PyTorch's words.
        ValueError: an array in host memory, or on another device than x.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    x, weight, bias = _as_cupy("layer_norm", x=x, weight=weight, bias=bias)
    y, stats = forward(x, weight, bias, _shape(normalized_shape), eps, _name_of(dtype))
    return (y, stats[0], stats[1]) if return_stats else y


def add_layer_norm(
    x: Any,
    residual: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """s = x + residual and the layer normalisation of s in one pass, of any arrays on a GPU, without PyTorch.

    Args:
        x, residual: of one shape; their dtypes are promoted as ``cupy.result_type`` says.
        normalized_shape, weight, bias, eps, dtype: as for :func:`layer_norm` of s; s itself keeps its dtype.

    Returns:
        CuPy arrays (y, s).

    Raises:
        ValueError: residual has not x's shape; else as :func:`layer_norm`.
    """
    x, residual, weight, bias = _as_cupy("add_layer_norm", x=x, residual=residual, weight=weight, bias=bias)
    y, s, _ = add_forward(x, residual, weight, bias, _shape(normalized_shape), eps, _name_of(dtype))
    return y, s


def layer_norm_backward(
    grad_y: Any,
    x: Any,
    stats: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    eps: float = 1e-5,
    *,
    grad_sum: Any = None,
    wants: Sequence[bool] = (True, True, True),
) -> tuple[Any, Any, Any]:
    """Gradient of :func:`layer_norm`, without PyTorch.

    Args:
        grad_y: gradient of the result, of x's shape and the result's dtype.
        x, normalized_shape, weight, eps: what :func:`layer_norm` was given.
        stats: mean and rstd, stacked: (2, ...).
        grad_sum: added to the gradient of x: that of the sum of :func:`add_layer_norm`, if it has been used further.
        wants: whether the gradients of x, weight and bias are wanted.

    Returns:
        CuPy arrays (grad_x, grad_weight, grad_bias); those that are not wanted have no elements.

    Raises:
        ValueError, TypeError: operands that do not belong together; else as :func:`layer_norm`.
    """
    grad_y, x, stats, weight, grad_sum = _as_cupy(
        "layer_norm_backward", grad_y=grad_y, x=x, stats=stats, weight=weight, grad_sum=grad_sum
    )
    return backward(grad_y, x, stats, weight, grad_sum, _shape(normalized_shape), eps, *wants)
