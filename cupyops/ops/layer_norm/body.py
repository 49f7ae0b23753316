"""Layer normalisation: checks, and launches of ``kernels_cu/layer_norm_*.cu`` and ``kernels_cu/column_sums.cu``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import kernels_cu
from cupyops.arrays import LIBRARIES, ArrayLibrary, check_devices, device_of, on_any_arrays
from cupyops.dtypes import DTYPES, FLOATS, dtype_name
from cupyops.errors import LaunchError
from cupyops.launch import driver
from cupyops.launch.geometry import PORTABLE_CLUSTER, Geometry
from cupyops.launch.kernel import Kernel
from cupyops.launch.memo import memo
from cupyops.ops.checks import check_shapes
from cupyops.sizes import least
from cupyops.tiling.config import CLUSTERS_SINCE
from cupyops.tiling.partial_sums import partial_sums
from cupyops.tiling.rows import at_once, is_few

from . import config as layer_norm_config
from .checks import Shape, as_shape, check, check_backward, stats_shape
from .config import LayerNormConfig, backward_columns, backward_config, backward_rows, forward_config

__all__ = ["add_layer_norm", "layer_norm", "layer_norm_backward"]

# A kernel of the backward takes some of the arrays (grad_y, x, stats, weight, grad_sum, grad_x, grad_weight, grad_bias,
# parts, None). Each selector below picks the arrays of one kind of launch.
ALL, X, X_AND_PARTS = itemgetter(slice(8)), itemgetter(slice(6)), itemgetter(0, 1, 2, 3, 4, 5, 8)
WEIGHT_AND_BIAS, PARTS = itemgetter(0, 1, 2, 9, 9, 9, 6, 7), itemgetter(0, 1, 2, 3, 9, 9, 8)
SUMS = itemgetter(8, 6, 7)


@cache
def forward_kernel(config: LayerNormConfig, dtype: str, residual: bool) -> Kernel:
    """Returns the forward kernel of a config for one dtype of the sum x + residual, with or without a residual."""
    geometry = config.persistent("groups") if config.kind == "wide" else config.rows("M")
    return _kernel("layer_norm_forward", replace(config, residual=residual), geometry, dtype)


@cache
def backward_kernel(config: LayerNormConfig, dtype: str, want_x: bool, want_affine: bool, grad_sum: bool) -> Kernel:
    """Returns the backward kernel of a config for one dtype of x.

    Args:
        config: the config.
        dtype: the dtype of x.
        want_x: the kernel computes the gradient of x.
        want_affine: the kernel computes the gradients of weight and bias.
        grad_sum: the kernel adds ``grad_sum`` to the gradient of x.
    """
    geometry = config.persistent(
        {"registers": "blocks", "apart": "blocks", "wide": "parts", "ring": "parts", "streaming": "M"}[config.kind]
    )
    config = replace(config, want_x=want_x, want_affine=want_affine, grad_sum=grad_sum)
    return _kernel("layer_norm_backward", config, geometry, dtype)


def _kernel(name: str, config: LayerNormConfig, geometry: Geometry, dtype: str) -> Kernel:
    """Returns the kernel of the config's strategy. Each strategy has a CUDA source, whose name is the kernel's name."""
    name += "" if config.kind == "registers" else f"_{config.kind}"
    choice = dict.fromkeys(("scalar_t", "x_t", "residual_t", "weight_t", "y_t"), dtype)
    return config.kernel(kernels_cu.source(name), name, choice, geometry=geometry, dtypes=FLOATS)


for _dtype in FLOATS:
    # Declares a kernel of each strategy for warmup() and the compile command. The kernels of 1024 elements fit every
    # GPU.
    for _n, _capability in ((1024, 75), (65536, CLUSTERS_SINCE), (1_000_000, CLUSTERS_SINCE)):
        _size = DTYPES[_dtype].itemsize
        _config = forward_config(_n, _dtype, _size, _size, _capability, _size)
        forward_kernel(_config, _dtype, False)
        for _given in (False, True):
            forward_kernel(_config.few_rows_forward(_n, _size, given=_given), _dtype, False)
        _config = backward_config(_n, _dtype, _size, _capability)
        backward_kernel(_config, _dtype, True, _config.kind != "streaming", False)
        if _config.kind != "streaming":
            backward_kernel(_config.few_rows_backward(_n, _dtype), _dtype, True, True, False)
            backward_kernel(backward_rows(_n, _dtype, _size, _capability), _dtype, True, False, False)
    if (_config := backward_config(2**18, _dtype, _size, CLUSTERS_SINCE)).kind == "ring":
        backward_kernel(_config, _dtype, True, True, False)


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


class Launch(NamedTuple):
    """A launch of a call.

    Attributes:
        kernel: the kernel.
        arrays: in a backward, the function that selects the kernel's arrays; in a forward, None.
        sizes: the values of the kernel's size parameters, in the kernel's order.
    """

    kernel: Kernel
    arrays: Any
    sizes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Call:
    """The checked configuration of a call, which :func:`cupyops.launch.memo.memo` caches.

    Attributes:
        library: the array library of the arrays.
        dtype: the dtype of x, or of the sum x + residual.
        acc: the accumulation dtype of ``dtype``.
        other: in a forward, the dtype of y; in a backward, the dtype of the gradients of weight and bias.
        aside: in a forward, the shape of the statistics; in a backward, the shape of the blocks' partial sums of the
            gradients of weight and bias.
        launches: the launches in order.
    """

    library: ArrayLibrary
    dtype: str
    acc: str
    other: str
    aside: tuple[int, ...] = ()
    launches: Sequence[Launch] = ()


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
    call = forward_call(x, residual, weight, bias, tuple(normalized_shape), dtype)
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
    stats = library.empty(call.aside, call.acc, x) if want_stats else None
    # The sizes are M and N, and for the strategy "wide" also groups. Because the number of sizes varies, the arguments
    # are passed by position.
    for kernel, _, sizes in call.launches:
        kernel.launch_vouched(x, residual, weight, bias, like, y, stats, *sizes, eps)
    if stats is not None and not call.launches and not library.skips(y):
        stats[0], stats[1] = 0, math.nan  # PyTorch's statistics of rows without elements
    return y, s, stats


@memo("x", "residual?", "weight?", "bias?")
def forward_call(x: Any, residual: Any, weight: Any, bias: Any, normalized_shape: Shape, result: str | None) -> Call:
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
    operands = {"x_t": x, "residual_t": residual, "weight_t": bias if weight is None else weight}
    given = {name: library.dtype_name(a) for name, a in operands.items() if a is not None}
    types = {"weight_t": dtype, "y_t": call.other} | given
    size = {name: DTYPES[of].itemsize for name, of in types.items()}
    device, sizes = device_of(library, x), [rows, n]
    row = n, dtype, size["x_t"] + size.get("residual_t", 0), size["weight_t"], driver.capability(device), size["y_t"]
    config = forward_config(*row)
    # The kernels for many rows are declared for few rows, too: a program that compiles ahead may only call with few rows.
    declared = forward_kernel(config, dtype, residual is not None)
    if config.cluster > PORTABLE_CLUSTER:
        try:
            at_once(declared, types, dtype, device)
        except LaunchError:  # this GPU has no room for a cluster of more than 8 blocks
            config = forward_config(*row, portable=True)
            forward_kernel(config, dtype, residual is not None)
    if is_few(rows, n, layer_norm_config.FEW_FORWARD):
        given_both = weight is not None and bias is not None
        config = config.few_rows_forward(n, size["weight_t"], given=given_both)
    kernel = forward_kernel(config, dtype, residual is not None)
    if config.kind == "wide":
        sizes.append(least(at_once(kernel, types, dtype, device), rows))
    return replace(call, launches=(Launch(kernel, None, tuple(sizes)),))


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
    library, launches = call.library, call.launches
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
    partial = empty(call.aside, call.acc, x) if call.aside else None
    of_weight, of_bias = grad_weight if want_weight else None, grad_bias if want_bias else None
    given = (grad_y, x, stats, weight, grad_sum, grad_x, of_weight, of_bias, partial, None)
    # Each kernel takes some of the arrays in `given`, in this order, then its sizes. Because the kernels take different
    # arrays and sizes, the arguments are passed by position.
    for kernel, arrays, sizes in launches:
        kernel.launch_vouched(*arrays(given), *sizes)
    if not launches and not library.skips(grad_x):
        grad_weight[...] = grad_bias[...] = 0
    return grad_x, grad_weight, grad_bias


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
    want_x, want_affine = wants[0], wants[1] or wants[2]
    library = LIBRARIES[type(x)]
    dtype = library.dtype_name(x)
    check_backward(grad_y, x, stats, weight, grad_sum, shape)
    check_devices("layer_norm_backward", x=x, grad_y=grad_y, stats=stats, weight=weight, grad_sum=grad_sum)
    types = {"y_t": library.dtype_name(grad_y), "weight_t": dtype if weight is None else library.dtype_name(weight)}
    rows, n = math.prod(stats.shape[1:]), math.prod(shape)
    call = Call(library, dtype, DTYPES[dtype].acc, types["weight_t"])
    if library.skips(x) or rows == 0 or n == 0 or not (want_x or want_affine):
        return call
    device, more = device_of(library, x), grad_sum is not None
    launches: list[Launch] = []
    grad_bytes, weight_bytes = (DTYPES[name].itemsize for name in types.values())
    row = n, dtype, 0 if weight is None else weight_bytes, driver.capability(device), grad_bytes
    config = (backward_config if want_affine else backward_rows)(*row, grad_sum=more)
    if want_x and config.cluster > PORTABLE_CLUSTER:
        try:
            at_once(backward_kernel(config, dtype, want_x, want_affine, more), types, dtype, device)
        except LaunchError:  # this GPU has no room for a cluster of more than 8 blocks
            config = backward_config(*row, grad_sum=more, portable=True)
    if config.kind == "streaming" and want_x:
        launches.append(Launch(backward_kernel(config, dtype, True, False, more), X, (rows, n)))
        want_x = False  # the launches that follow compute the other gradients
    more = more and want_x
    many = config if want_x else backward_columns(n, dtype)
    few = want_affine and is_few(rows, n, layer_norm_config.FEW_BACKWARD)
    if few:  # the kernel for many rows is declared, as in the forward
        backward_kernel(many, dtype, want_x, want_affine, more)
    config = config.few_rows_backward(n, dtype) if few else many
    if config.kind == "apart":
        strips = -(-n // (config.width * config.vector_width * config.cluster)) if want_affine else 0
        blocks = strips + (-(-rows // config.groups) if want_x else 0)
        kernel = backward_kernel(config, dtype, True, want_affine, more)
        launches.append(Launch(kernel, ALL if want_x else WEIGHT_AND_BIAS, (rows, n, strips, blocks)))
    elif want_x or want_affine:
        kernel = backward_kernel(config, dtype, want_x, want_affine, more)
        tiles = 1 if want_x else -(-n // config.slice)
        parts = max(1, min(at_once(kernel, types, dtype, device) // tiles, -(-rows // config.groups)))
        sizes = (rows, n, parts) if config.kind in ("wide", "ring") else (rows, n, parts, parts * tiles)
        launches.append(Launch(kernel, X_AND_PARTS if want_x else PARTS, sizes))
        if want_affine:
            launches.append(Launch(partial_sums(2, parts), SUMS, (parts, n)))
            call = replace(call, aside=(2, parts, n))
    return replace(call, launches=launches)


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
