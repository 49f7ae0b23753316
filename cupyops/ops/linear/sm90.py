"""The linear layer and GELU in one kernel on the tensor cores of sm_90: launches of
``kernels_cu/linear_gelu_sm90.cu``."""

from functools import cache
from typing import Any

import kernels_cu
from cupyops.arrays import device_of
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.launch.tensor_map import tensor_map

from . import config as linear_config
from .config import FORMS, LONG, SHORT, SM90, TILE_M, TILE_N, Sm90Config

__all__ = ["linear_gelu_by_tensor_cores", "sm90_kernel", "worth_a_look"]

TEXT = kernels_cu.source("linear_gelu_sm90")

DTYPES = ("float16", "bfloat16")


@cache
def sm90_kernel(config: Sm90Config, approximate: str) -> Kernel:
    """Returns the kernel of a config for a form of GELU."""
    return config.kernel(
        TEXT, "linear_gelu_sm90", constants=FORMS[approximate], dtypes=DTYPES, since=SM90, exactly=True
    )


for _config in (SHORT, LONG):
    for _form in FORMS:
        sm90_kernel(_config, _form)


def worth_a_look(library: Any, x: Any, approximate: str) -> bool:
    """Returns whether a product is large enough for the checks of :func:`linear_gelu_by_tensor_cores` to pay off."""
    return not library.is_fake(x) and library.size(x) >= linear_config.LEAST_LARGE and approximate in FORMS


def linear_gelu_by_tensor_cores(
    library: Any, x: Any, weight: Any, bias: Any, approximate: str
) -> tuple[Any, Any] | None:
    """Returns (y, z) with y = gelu(z) and z = x·Wᵀ + b.

    Returns None if the library is as fast, or if the operands do not fit each other. The library then raises.
    """
    shape, of_weight = x.shape, weight.shape
    if not (shape and len(of_weight) == 2 and of_weight[1] == shape[-1] > 0):
        return None
    (n, k), device = of_weight, device_of(library, x)
    m = library.size(x) // k
    config = linear_config.sm90_config(m, n, k, driver.capability(device), driver.multiprocessors(device))
    if config is None or not _suits(library, x, weight, bias, n, k):
        return None
    dtype = library.dtype_name(x)
    z = library.empty((*shape[:-1], n), dtype, x)
    y = library.empty_like(z)
    x_map, weight_map, z_map, y_map = [
        tensor_map(library.address(a), rows, columns, dtype, box_rows, simulated=not isinstance(device, int))
        for a, rows, columns, box_rows in ((x, m, k, TILE_M), (weight, n, k, TILE_N // 2), (z, m, n, 64), (y, m, n, 64))
    ]
    kernel = sm90_kernel(config, approximate)
    pairs = -(-m // (2 * TILE_M)) * -(-n // TILE_N)
    clusters = min(pairs, kernel.resident_blocks({"scalar_t": dtype}, device) // 2)
    kernel.launch_vouched(
        x=x,
        weight=weight,
        bias=bias,
        z=z,
        y=y,
        x_map=x_map,
        weight_map=weight_map,
        z_map=z_map,
        y_map=y_map,
        M=m,
        N=n,
        K=k,
        B=0 if bias is None else n,
        clusters=clusters,
    )
    return y, z


def _suits(library: Any, x: Any, weight: Any, bias: Any, n: int, k: int) -> bool:
    """Returns whether the kernel takes the arrays. TMA needs rows that begin at multiples of 16 bytes."""
    if library.dtype_name(x) not in DTYPES or k % 8 or n % 8 or not (bias is None or bias.shape == (n,)):
        return False
    return all(
        library.is_contiguous(a)
        and a.dtype == x.dtype
        and library.device_index(a) == library.device_index(x)
        and library.address(a) % alignment == 0
        for a, alignment in ((x, 16), (weight, 16), (bias, 4))
        if a is not None
    )
