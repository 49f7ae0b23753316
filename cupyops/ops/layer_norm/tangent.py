"""The tangent of layer normalisation: checks, and launches of ``kernels_cu/layer_norm_tangent*.cu``."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import kernels_cu
from cupyops.arrays import LIBRARIES, check_devices, device_of
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.errors import LaunchError
from cupyops.launch import driver
from cupyops.launch.geometry import PORTABLE_CLUSTER
from cupyops.launch.kernel import Kernel
from cupyops.launch.memo import memo
from cupyops.ops.checks import check_like, check_shapes
from cupyops.sizes import least
from cupyops.tiling.config import CLUSTERS_SINCE, vector_width_for
from cupyops.tiling.rows import at_once, is_few

from . import config as layer_norm_config
from .backward_tables import backward_config, backward_rows
from .body import Call, Launch
from .checks import Shape, check, check_parameters, stats_shape
from .cut import LayerNormConfig, fitting, resident

__all__ = ["check_tangent", "tangent"]

# Bytes of the longest row that one block has. Longer rows have persistent blocks, whose threads hold the accesses to both arrays of
# two rows in 128 registers, or eight accesses to both arrays of one float32 row.
_ONE_BLOCK = 2**15
_MOST_THREADS, _LEAST_THREADS = 512, 352


@cache
def tangent_kernel(config: LayerNormConfig, dtype: str) -> Kernel:
    """Returns the kernel of a config for one dtype of x."""
    name = "layer_norm_tangent" + ("" if config.kind == "registers" else f"_{config.kind}")
    choice = dict.fromkeys(("scalar_t", "weight_t", "y_t"), dtype)
    geometry = config.persistent("groups") if config.kind == "wide" else config.rows("M")
    return config.kernel(kernels_cu.source(name), name, choice, geometry=geometry, dtypes=FLOATS)


def _wide(n: int, dtype: str, capability: int, most_blocks: int) -> LayerNormConfig | None:
    """Returns the config of persistent blocks, or None if no cluster holds a row, or the GPU has no shared memory for a row in flight.

    The cluster is the smallest in which threads hold a row and the next row with four accesses to each array, in blocks of up
    to 512 threads. If its blocks have fewer than 352 threads, threads have three or two accesses: more warps hide more of the time
    of a row. A third row is in flight in shared memory. float32 rows that no cluster holds so have eight accesses of one row.

    Measured on an H200 in bfloat16, in percent of the bandwidth of a copy of x, for this cluster, and for clusters of twice as many
    blocks of half the threads, two on each multiprocessor: 32768 elements 103, 95; 65536 96, 86; 131072 94, 87. With four
    accesses, and with fewer: 16640 elements 77, 92; 20480 89, 98; 36864 72, 83; 40960 82, 88.

    Args:
        n, dtype, capability: as for :func:`config_of`.
        most_blocks: the most blocks of a cluster.
    """
    itemsize = DTYPES[dtype].itemsize

    def cut(cluster: int, vectors: int) -> LayerNormConfig:
        return LayerNormConfig.of(
            n, 16 // itemsize, vectors, cluster=cluster, kind="wide", sum_ahead=vectors <= 4, stages=1
        )

    def fits(vectors: int) -> int:
        clusters = (c for c in (2, 4, 8, 16) if c <= most_blocks and cut(c, vectors).block <= _MOST_THREADS)
        return next(clusters, 0)

    if cluster := fits(4):
        cuts = [c for c in (cut(cluster, vectors) for vectors in (4, 3, 2)) if c.block >= _LEAST_THREADS]
        best = cuts[0] if cuts[0].vectors == 4 else next((c for c in cuts if c.full), cuts[0])
    elif itemsize == 4 and (cluster := fits(8)):
        best = cut(cluster, 8)
    else:
        return None
    return best.staged(2 * itemsize, 0, capability)


@cache
def config_of(
    n: int, dtype: str, parameter_bytes: int, capability: int, result_bytes: int, portable: bool = False
) -> LayerNormConfig:
    """Returns the config of a tangent. Rows that are too long for one block have persistent blocks, if the GPU has clusters and
    room for a stage. Other rows have the cut of a gradient of x alone, which reads and writes as many rows.

    The parameters are read where a row is stored, so they take few registers, and more blocks are resident. Measured on an H200
    in bfloat16, in percent of a copy's bandwidth, with the blocks of the gradient and with these: 1024 elements 95, 101; 5120 69,
    98; 16384 76, 97; 32768 63, 71.

    Args:
        n, dtype, capability: as for :func:`cupyops.ops.layer_norm.backward_tables.backward_rows`.
        parameter_bytes: bytes of an element of weight or of a tangent of weight or bias; 0 if all three are absent.
        result_bytes: bytes of an element of the result.
        portable: considers only clusters of up to 8 blocks, which every GPU with clusters supports.
    """
    itemsize = DTYPES[dtype].itemsize
    whole = vector_width_for(n, itemsize) * itemsize == 16 and max(itemsize, parameter_bytes, result_bytes) <= 4
    if n * itemsize > _ONE_BLOCK and capability >= CLUSTERS_SINCE and whole:
        wide = _wide(n, dtype, capability, PORTABLE_CLUSTER if portable else 16)
        if wide is not None:
            # Without bounds checks, the compiler loads the parameters of all accesses at once. For wider ones, registers run short.
            full = wide.full and max(parameter_bytes, result_bytes) <= itemsize
            return replace(wide, weighted=parameter_bytes > 0, full=full)
    row = n, dtype, min(parameter_bytes, itemsize), capability, result_bytes
    config = backward_rows(*row)
    if portable and config.cluster > PORTABLE_CLUSTER:
        config = backward_config(*row, portable=True)
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
    for _n, _capability in ((1024, 75), (32768, CLUSTERS_SINCE), (1_000_000, CLUSTERS_SINCE)):
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
    if library.skips(x) or rows == 0 or n == 0:
        return call
    given = [library.dtype_name(p) for p in parameters.values() if p is not None]
    parameter_bytes = DTYPES[given[0]].itemsize if given else 0
    device = device_of(library, x)
    row = n, dtype, parameter_bytes, driver.capability(device), DTYPES[call.other].itemsize
    config, types = config_of(*row), {"weight_t": given[0] if given else dtype, "y_t": call.other}
    # The kernel for many rows is declared for few rows, too: a program that compiles ahead may only call with few rows.
    kernel, sizes = tangent_kernel(config, dtype), [rows, n]
    if config.cluster > PORTABLE_CLUSTER:
        try:
            at_once(kernel, types, dtype, device)
        except LaunchError:  # this GPU has no room for a cluster of more than 8 blocks
            config = config_of(*row, portable=True)
            kernel = tangent_kernel(config, dtype)
    if config.kind == "wide" and is_few(rows, n, layer_norm_config.FEW_FORWARD):
        # Persistent blocks would copy one row or two into shared memory. Other blocks load the row into registers, and give the
        # same bits.
        config = replace(config.one_a_block(), kind="registers", stages=0, shared=0, sum_ahead=False)
        kernel = tangent_kernel(config, dtype)
    if config.kind == "wide":
        sizes.append(least(at_once(kernel, types, dtype, device), rows))
    return replace(call, launches=(Launch(kernel, None, tuple(sizes)),))


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
