"""Sums of columns: the kernels that are compiled ahead, and the width of a strip."""

import pytest

from cupyops.dtypes import DTYPES, FLOATS
from cupyops.ops.linear.body import SUMS
from cupyops.tiling.columns import _launches, columns_launch


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_types_of_a_launch_are_declared(dtype: str, capability: int) -> None:
    """The sums of several groups have the dtype of the arithmetic."""
    kernel, groups, *_ = _launches(SUMS, 2**14, 4096, dtype, capability, 132)
    assert {"x_t": dtype, "scalar_t": DTYPES[dtype].acc if groups > 1 else dtype} in [*kernel.type_choices()]


@pytest.mark.parametrize("n", [1, 3, 8, 24, 64, 1000])
def test_no_strip_is_twice_as_wide_as_the_row(n: int) -> None:
    config = columns_launch(2**14, n, 2, 90, 132).config
    assert config.width == 1 or config.width // 2 * config.vector_width < n
