"""The tangent of layer normalisation: checks, and launches of ``kernels_cu/layer_norm_tangent*.cu``."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import kernels_cu
from cupyops.arrays import LIBRARIES, check_devices, device_of
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.launch.memo import memo
from cupyops.ops.checks import check_like, check_shapes
from cupyops.tiling.config import CLUSTERS_SINCE

from .backward_tables import backward_rows
from .body import Call, Launch
from .checks import Shape, check, check_parameters, stats_shape
from .cut import LayerNormConfig, fitting, resident

__all__ = ["check_tangent", "tangent"]


@cache
def tangent_kernel(config: LayerNormConfig, dtype: str) -> Kernel:
    """Returns the kernel of a config for one dtype of x."""
    name = "layer_norm_tangent" + ("_streaming" if config.kind == "streaming" else "")
    choice = dict.fromkeys(("scalar_t", "weight_t", "y_t"), dtype)
    return config.kernel(kernels_cu.source(name), name, choice, geometry=config.rows("M"), dtypes=FLOATS)


@cache
def config_of(n: int, dtype: str, parameter_bytes: int, capability: int, result_bytes: int) -> LayerNormConfig:
    """Returns the config of a tangent: the cut of a gradient of x alone, which reads and writes as many rows.

    The parameters are read where a row is stored, so they take few registers, and more blocks are resident. Measured on an H200
    in bfloat16, in percent of a copy's bandwidth, with the blocks of the gradient and with these: 1024 elements 95, 101; 5120 69,
    98; 16384 76, 97; 32768 63, 71.

    Args:
        n, dtype, capability: as for :func:`cupyops.ops.layer_norm.backward_tables.backward_rows`.
        parameter_bytes: bytes of an element of weight or of a tangent of weight or bias; 0 if all three are absent.
        result_bytes: bytes of an element of the result.
    """
    itemsize = DTYPES[dtype].itemsize
    config = backward_rows(n, dtype, min(parameter_bytes, itemsize), capability, result_bytes)
    kind = "streaming" if config.kind == "streaming" else "registers"
    config = replace(config, kind=kind, weighted=parameter_bytes > 0, aligned_apart=False, stages=0, shared=0)
    if kind == "streaming" or not config.weighted or itemsize > 4 or result_bytes > itemsize:
        return config
    # Registers for an access of 16 bytes to both rows, and others. The compiler packs elements of float16 late. In a large block
    # whose threads have no access beyond the end, fewer others are enough.
    # Threads of float16 rows spill about 100 bytes. Rows of 8192 elements reach 102 percent of a copy's bandwidth with them, and 88
    # with fewer threads, which spill none.
    of_access, others = (12, 32 if config.full else 40) if dtype == "float16" else (10, 24)
    others = 16 if config.full and config.block > 256 else others
    registers = others + of_access * config.vectors * config.vector_width * itemsize // 16
    return replace(config, min_blocks=fitting(resident(registers, config.block), config.block, capability))


for _dtype in FLOATS:
    # Declares a kernel of each strategy for warmup() and the compile command. The kernel of 1024 elements fits every GPU.
    for _n, _capability in ((1024, 75), (1_000_000, CLUSTERS_SINCE)):
        _size = DTYPES[_dtype].itemsize
        tangent_kernel(config_of(_n, _dtype, _size, _capability, _size), _dtype)


def check_tangent(
    tangent_x: Any, x: Any, stats: Any, weight: Any, tangent_weight: Any, tangent_bias: Any, shape: Shape, result: Any
) -> None:
    """Raises unless the tangent of layer normalisation takes the operands.

    Raises:
        ValueError: tangent_x has another shape than x, or stats does not have the shape of x's statistics.
        TypeError: tangent_x has another dtype than x.
        RuntimeError: as :func:`cupyops.ops.layer_norm.checks.check`, also for the tangents of weight and bias.
    """
    where, dtype = "layer_norm_jvp", LIBRARIES[type(x)].dtype_name(x)
    check(x, dtype, weight, tangent_weight, shape, result)
    check(x, dtype, weight, tangent_bias, shape, result)
    check_parameters(where, dtype, tangent_weight=tangent_weight, tangent_bias=tangent_bias)
    check_shapes(where, stats=(stats, stats_shape(x, shape)))
    check_like(where, x, tangent_x=(tangent_x, x.shape))


@memo("tangent_x", "x", "stats", "weight?", "tangent_weight?", "tangent_bias?")
def _call(
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
    if library.is_fake(x) or rows == 0 or n == 0:
        return call
    given = [library.dtype_name(p) for p in parameters.values() if p is not None]
    parameter_bytes = DTYPES[given[0]].itemsize if given else 0
    capability = driver.capability(device_of(library, x))
    config = config_of(n, dtype, parameter_bytes, capability, DTYPES[call.other].itemsize)
    return replace(call, launches=(Launch(tangent_kernel(config, dtype), None, (rows, n)),))


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
        x, weight, normalized_shape, dtype: the operands of :func:`cupyops.ops.layer_norm.body.forward`.
        stats: the statistics that the forward returned.
        tangent_weight, tangent_bias: the tangents of weight and bias, or None for zeros.
        eps: unused here; the derivative of the tangent takes eps.
    """
    given = weight, tangent_weight, tangent_bias
    call = _call(tangent_x, x, stats, *given, tuple(normalized_shape), dtype)
    library, contiguous = call.library, call.library.contiguous
    x, tangent_x, stats = contiguous(x), contiguous(tangent_x), contiguous(stats)
    held = [None if p is None else contiguous(p) for p in given]
    tangent_y = library.empty_like(x) if call.other == call.dtype else library.empty(x.shape, call.other, x)
    for kernel, _, sizes in call.launches:
        kernel.launch_vouched(tangent_x, x, stats, *held, tangent_y, *sizes)
    return tangent_y
