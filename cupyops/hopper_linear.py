"""A linear layer with GELU behind it by the matrix units of sm_90: launches of ``kernels_cu/hopper_linear.cu``."""

from functools import cache
from typing import Any

import kernels_cu

from . import driver, linear_plan
from .gelu import FORWARD
from .geometry import Rows
from .kernel import Kernel
from .linear_plan import LONG, MATRIX_UNITS, SHORT, TILE_M, TILE_N, MatrixPlan
from .tensor_map import tensor_map

__all__ = ["hopper_kernel", "linear_gelu_by_matrix_units"]

TEXT = kernels_cu.source("hopper_linear")

DTYPES = ("float16", "bfloat16")


@cache
def hopper_kernel(plan: MatrixPlan, approximate: str) -> Kernel:
    """The product with a form of GELU behind it."""
    return Kernel(
        TEXT,
        "hopper_linear",
        Rows("clusters", 384, blocks_per_row=2),
        dtypes=DTYPES,
        constants={**plan.constants, **({"TANH": 1} if approximate == "tanh" else {})},
        shared=plan.shared,
        since=MATRIX_UNITS,
        exactly=True,
    )


for _plan in (SHORT, LONG):
    for _form in FORWARD:
        hopper_kernel(_plan, _form)


def linear_gelu_by_matrix_units(
    library: Any, x: Any, weight: Any, bias: Any, approximate: str
) -> tuple[Any, Any] | None:
    """y = gelu(z) and z = x·Wᵀ + b, or None where the library is as fast, or has to say what is wrong."""
    if library.is_fake(x) or library.size(x) < linear_plan.LEAST_FOR_MATRIX_UNITS or approximate not in FORWARD:
        return None
    shape = x.shape
    if not shape or len(weight.shape) != 2 or weight.shape[1] != shape[-1]:
        return None
    n, k = weight.shape
    device = library.device_index(x)
    if not k:
        return None
    m = library.size(x) // k
    plan = linear_plan.matrix_plan(m, n, k, driver.capability(device), driver.multiprocessors(device))
    if plan is None or not _suits(library, x, weight, bias, n):
        return None
    dtype = library.dtype_name(x)
    z = library.empty((*shape[:-1], n), dtype, x)
    y = library.empty_like(z)
    maps = [
        tensor_map(library.address(a), rows, columns, dtype, box_rows, simulated=device < 0)
        for a, rows, columns, box_rows in ((x, m, k, TILE_M), (weight, n, k, TILE_N // 2), (z, m, n, 64), (y, m, n, 64))
    ]
    kernel = hopper_kernel(plan, approximate)
    pairs = -(-m // (2 * TILE_M)) * -(-n // TILE_N)
    clusters = min(pairs, kernel.resident_blocks({"scalar_t": dtype}, device) // 2)
    kernel.launch_vouched(x, weight, bias, z, y, *maps, m, n, k, 0 if bias is None else n, clusters)
    return y, z


def _suits(library: Any, x: Any, weight: Any, bias: Any, n: int) -> bool:
    """Whether the arrays are such as the kernel takes: the copying hardware wants rows at multiples of 16 bytes."""
    if library.dtype_name(x) not in DTYPES or x.shape[-1] % 8 or n % 8:
        return False
    arrays = [(x, 16), (weight, 16), *([] if bias is None else [(bias, 4)])]
    return (bias is None or bias.shape == (n,)) and all(
        library.is_contiguous(a)
        and a.dtype == x.dtype
        and library.device_index(a) == library.device_index(x)
        and library.address(a) % alignment == 0
        for a, alignment in arrays
    )
