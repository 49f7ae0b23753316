"""Layer normalisation: checks and launches of ``kernels_cu/layer_norm.cu`` and ``layer_norm_backward.cu``."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernels_cu

from . import driver
from .arrays import LIBRARIES, as_cupy, check_devices
from .dtypes import DTYPES, FLOATS
from .geometry import Geometry, Threads
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
    choice = dict.fromkeys(("scalar_t", "x_t", "residual_t", "weight_t"), dtype)
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


def forward(x: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], eps: float) -> tuple[Any, Any]:
    """The body of layer_norm: y of x's shape and dtype, and the statistics (2, *batch, 1...)."""
    y, _, stats = _forward(x, None, weight, bias, normalized_shape, eps)
    return y, stats


def add_forward(
    x: Any, residual: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], eps: float
) -> tuple[Any, Any, Any]:
    """The body of add_layer_norm: y, s = x + residual, and the statistics of s."""
    return _forward(x, residual, weight, bias, normalized_shape, eps)


@dataclass(frozen=True, slots=True)
class Call:
    """What a call comes to, once its arrays' shapes, dtypes and devices have been checked.

    Attributes:
        kernels: what is launched, in this order, each with its sizes.
        dtype, stats: of the sum, and the shape of the statistics.
        rows, n: the matrix.
        partial: shape of what blocks leave of the gradients of weight and bias, or None.
    """

    kernels: tuple[tuple[Kernel, tuple[int, ...]], ...]
    dtype: str
    stats: tuple[int, ...]
    rows: int
    n: int
    partial: tuple[int, int, int] | None = None


# Calls by all that they depend on. To check and to choose takes twice as long as to launch.
_CALLS: dict[tuple[Any, ...], Call] = {}
_MOST_CALLS = 4096


def _remembered(choose: Callable[..., Call], library: Any, shape: Sequence[int], *arrays: Any, **wants: bool) -> Call:
    if library.is_fake(arrays[0]):
        return choose(library, shape, *arrays, **wants)  # sizes may be symbols
    # CuPy's devices have no hash.
    of_arrays = [None if a is None else (a.shape, a.dtype, getattr(a.device, "id", a.device)) for a in arrays]
    key = (choose, tuple(shape), *of_arrays, *wants.values())
    call = _CALLS.get(key)
    if call is None:
        call = choose(library, shape, *arrays, **wants)
        if len(_CALLS) >= _MOST_CALLS:
            _CALLS.clear()
        _CALLS[key] = call
    return call


def _forward(
    x: Any, residual: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], eps: float
) -> tuple[Any, Any, Any]:
    library = LIBRARIES[type(x)]
    call = _remembered(_forward_call, library, normalized_shape, x, residual, weight, bias)
    x, residual, weight, bias = (None if a is None else library.contiguous(a) for a in (x, residual, weight, bias))
    y = library.empty(x.shape, call.dtype, x)
    s = None if residual is None else library.empty(x.shape, call.dtype, x)
    stats = library.empty(call.stats, DTYPES[call.dtype].acc, x)
    for kernel, sizes in call.kernels:
        kernel.launch_fresh(x, residual, weight, bias, s, y, stats, *sizes, eps)
    if not call.kernels and not library.is_fake(y):
        _fill_empty(stats, call.rows)
    return y, s, stats


def _forward_call(library: Any, normalized_shape: Sequence[int], x: Any, residual: Any, weight: Any, bias: Any) -> Call:
    if residual is not None:
        check_residual(x, residual)
    dtype = library.dtype_name(x) if residual is None else library.result_type(x, residual)
    check(x, dtype, weight, bias, normalized_shape)
    check_devices("layer_norm", x=x, residual=residual, weight=weight, bias=bias)
    batch = x.shape[: len(x.shape) - len(normalized_shape)]
    n, rows = math.prod(normalized_shape), math.prod(batch)
    stats = (2, *batch, *(1,) * len(normalized_shape))
    if library.is_fake(x) or rows == 0 or n == 0:
        return Call((), dtype, stats, rows, n)
    input_bytes = sum(DTYPES[library.dtype_name(a)].itemsize for a in (x, residual) if a is not None)
    weights = next((a for a in (weight, bias) if a is not None), None)
    weight_bytes = DTYPES[dtype if weights is None else library.dtype_name(weights)].itemsize
    device = library.device_index(x)
    plan = forward_plan(n, dtype, input_bytes, weight_bytes, driver.capability(device))
    kernel = forward_kernel(plan, dtype, residual is not None)
    if plan.kind != "wide":
        return Call(((kernel, (rows, n)),), dtype, stats, rows, n)
    types = (library.dtype_name(x), None if residual is None else library.dtype_name(residual), dtype)
    at_once = _at_once(kernel, (*types, None if weights is None else library.dtype_name(weights)), device)
    return Call(((kernel, (rows, n, min(at_once // plan.cluster, rows))),), dtype, stats, rows, n)


def _at_once(kernel: Kernel, types: tuple[str | None, ...], device: int) -> int:
    """How many blocks run at once, for blocks that stay: types of x, residual, sum and weight, None for an absent one."""
    x, residual, dtype, weight = types
    assert dtype is not None
    named = {"x_t": x or dtype, "residual_t": residual or dtype, "scalar_t": dtype, "weight_t": weight or dtype}
    return kernel.resident_blocks({name: named[name] for name in kernel.signature.bindings}, device)


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
    arrays = (x, grad_y, stats, weight, grad_sum)
    call = _remembered(
        _backward_call, library, normalized_shape, *arrays, want_x=want_x, want_affine=want_weight or want_bias
    )
    x, grad_y, stats, weight, grad_sum = (None if a is None else library.contiguous(a) for a in arrays)
    weight_dtype = call.dtype if weight is None else library.dtype_name(weight)
    grad_x = library.empty(x.shape if want_x else (0,), call.dtype, x)
    grad_weight = library.empty(normalized_shape if want_weight else (0,), weight_dtype, x)
    grad_bias = library.empty(normalized_shape if want_bias else (0,), weight_dtype, x)
    found = grad_x, grad_weight, grad_bias
    partial = None if call.partial is None else library.empty(call.partial, DTYPES[call.dtype].acc, x)
    for kernel, sizes in call.kernels:
        if kernel is COLUMN_SUMS:
            of_weight, of_bias = (grad_weight if want_weight else None), (grad_bias if want_bias else None)
            kernel.launch_fresh(partial, of_weight, of_bias, *sizes)
        elif "partial" not in kernel.signature.names:
            kernel.launch_fresh(grad_y, x, stats, weight, grad_sum, grad_x, *sizes)
        else:
            makes_x = kernel.constants.get("WANT_X", 1)
            more, written = (grad_sum, grad_x) if makes_x else (None, None)
            kernel.launch_fresh(grad_y, x, stats, weight, more, written, partial, *sizes)
    if not call.kernels and not library.is_fake(grad_x):
        for gradient in (grad_weight, grad_bias):
            gradient[...] = 0
    return found


def _backward_call(
    library: Any,
    normalized_shape: Sequence[int],
    x: Any,
    grad_y: Any,
    stats: Any,
    weight: Any,
    grad_sum: Any,
    *,
    want_x: bool,
    want_affine: bool,
) -> Call:
    dtype = library.dtype_name(x)
    check_backward(grad_y, x, dtype, stats, weight, grad_sum, normalized_shape)
    check_devices("layer_norm_backward", x=x, grad_y=grad_y, stats=stats, weight=weight, grad_sum=grad_sum)
    n, rows = math.prod(normalized_shape), math.prod(x.shape[: len(x.shape) - len(normalized_shape)])
    if library.is_fake(x) or rows == 0 or n == 0:
        return Call((), dtype, (), rows, n)
    weight_dtype = dtype if weight is None else library.dtype_name(weight)
    device = library.device_index(x)
    plan = backward_plan(n, dtype, DTYPES[weight_dtype].itemsize, driver.capability(device))
    kernels: list[tuple[Kernel, tuple[int, ...]]] = []
    more = grad_sum is not None
    if not want_x or plan.kind == "streaming":
        if want_x:
            kernels.append((backward_kernel(plan, dtype, True, False, more), (rows, n)))
        plan, want_x, more = backward_columns(n, dtype), False, False
    partial = None
    if want_x or want_affine:
        kernel = backward_kernel(plan, dtype, want_x, want_affine, more)
        at_once = _at_once(kernel, (None, None, dtype, weight_dtype), device) // plan.cluster
        tiles = 1 if want_x else -(-n // plan.slice)
        parts = max(1, min(at_once // tiles, -(-rows // plan.groups)))
        kernels.append((kernel, (rows, n, parts) if plan.kind == "wide" else (rows, n, parts, parts * tiles)))
        if want_affine:
            partial = (2, parts, n)
            kernels.append((COLUMN_SUMS, (parts, n)))
    return Call(tuple(kernels), dtype, (), rows, n, partial)


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def _as_cupy(where: str, **arrays: Any) -> list[Any]:
    return [None if a is None else as_cupy(a, where, name) for name, a in arrays.items()]


def layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    return_stats: bool = False,
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

    Returns:
        A CuPy array of x's shape and dtype, or (y, mean, rstd) with the statistics in float32 (float64 for float64) and 1
        in place of each dimension of ``normalized_shape``. Computed on CuPy's current stream.

    Raises:
        TypeError: x is no array, or not floating.
        RuntimeError: shapes or dtypes that do not belong together, in PyTorch's words.
        ValueError: an array in host memory, or on another device than x.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing; the message says what installs them.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    x, weight, bias = _as_cupy("layer_norm", x=x, weight=weight, bias=bias)
    y, stats = forward(x, weight, bias, _shape(normalized_shape), eps)
    return (y, stats[0], stats[1]) if return_stats else y


def add_layer_norm(
    x: Any,
    residual: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> tuple[Any, Any]:
    """s = x + residual and the layer normalisation of s in one pass, of any arrays on a GPU, without PyTorch.

    Args:
        x, residual: of one shape; their dtypes are promoted as ``cupy.result_type`` says.
        normalized_shape, weight, bias, eps: as for :func:`layer_norm` of s.

    Returns:
        CuPy arrays (y, s).

    Raises:
        ValueError: residual has not x's shape; else as :func:`layer_norm`.
    """
    x, residual, weight, bias = _as_cupy("add_layer_norm", x=x, residual=residual, weight=weight, bias=bias)
    y, s, _ = add_forward(x, residual, weight, bias, _shape(normalized_shape), eps)
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
        grad_y: gradient of the result, of x's shape and dtype.
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
