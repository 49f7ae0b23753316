"""The launch of a row program: the kernel, its grid and its sums over the rows, for arrays of any library."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from cupyops.arrays import Device
from cupyops.dtypes import DTYPES
from cupyops.errors import expected
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.sizes import greatest, is_symbol, least, surely

from .program_config import MOST_COLUMNS
from .row_config import FEW_ROWS, RowKernels

__all__ = ["RowLaunch", "row_launch"]


class RowLaunch(NamedTuple):
    """A launch of a row program.

    Attributes:
        kernel: the kernel. Its arguments are the arrays that are read, the results, the numbers, and ``sizes``.
        sizes: the last arguments.
        parts: the sums over the rows that the blocks write, one row of N for each of them; 0 without such sums.
        zeros: whether these sums start at zero: if neither registers nor shared memory hold the sums of a block, the kernel adds to
            them in global memory.
    """

    kernel: Kernel
    sizes: tuple[int, ...]
    parts: int = 0
    zeros: bool = False


def row_launch(
    kernels: RowKernels, types: Mapping[str, str], rows: int, n: int, device: Device, samples: Sequence[int] = ()
) -> RowLaunch:
    """Returns the launch for a number of rows, of each sample if there are ``samples``.

    Args:
        kernels: the program and its kernels.
        types: the dtype of each input, of each result of a dtype that the call chooses, and of the lead.
        rows: the number of rows. No size is zero.
        n: elements of a row.
        device: the GPU.
        samples: the number of samples, or nothing.

    Raises:
        KeyError: the lead's dtype is not floating.
        ValueError: a row has more than 2^31 - 2^16 elements.
    """
    program = kernels.program
    if surely(n > MOST_COLUMNS):
        raise ValueError(expected(program.name, program.lead, f"have rows of at most {MOST_COLUMNS} elements", n))
    dtype, count, work = types[program.lead], prod(samples), kernels.work(types)
    config = kernels.config(n, types, device)
    few = surely(rows * count <= FEW_ROWS)
    if config.stages:
        teams = 0 if samples else config.teams * kernels.at_once(config, types, device)
        tiled = next(
            (c for c in config.tile_sizes(n, work.slots) if teams and surely(rows >= c.least_rows(teams))), None
        )
        # Without tiles, a thread loads single elements, and a block of few threads has few loads in flight: more threads take a row.
        few, config = few or (teams > 0 and not is_symbol(rows)), tiled or config.untiled()
    if few and not work.sums and not config.stages:
        config = config.few_rows(n, work, DTYPES[DTYPES[dtype].acc].itemsize, driver.capability(device))
    blocks = least(-(-rows // config.groups), 2**31 - 1)
    if work.sums or config.prefetch or config.stages:  # persistent blocks
        blocks = greatest(1, least(blocks, kernels.at_once(config, types, device) // count))
    chosen = kernels.kernel(config, dtype)
    if not work.sums:
        return RowLaunch(chosen, (rows, n, blocks, *samples))
    return RowLaunch(chosen, (rows, n, blocks, blocks, *samples), blocks, config.stream and not config.sums_shared)
