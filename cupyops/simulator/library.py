"""Lists the functions that CUDA has without a header, and the code that the simulator refuses. docs/simulator.md prints
both.
"""

__all__ = ["DECLINED", "INTRINSICS"]

# Functions that CUDA has without a header.
INTRINSICS = (
    "`__popc`, `__clz`, `__ffs`, `__fns`, `__brev`, `__byte_perm`, `__funnelshift_*`, `__mul24`, `__mulhi`, `__hadd`, "
    "`__rhadd`, `__sad`, `__dp4a`, `__dp2a_*`, the functions on halfwords and bytes from `__vabs2` to `__vsubus4`, "
    "`__vimax3_s32`, `__vibmax_s32`, `__vimax3_s16x2` and their relatives, `norm`, `rnorm`, `erfinv`, `normcdfinv`, "
    "`cyl_bessel_i0` and the other functions of `math.h` that CUDA adds"
)

# Code that does not compile in the simulator.
DECLINED: dict[str, str] = {
    "`cooperative_groups.h`": "tiles of more than 32 threads, `multi_grid_group`, split barriers of a grid, "
    "`reduce_update_async`, scans that update an atomic object",
    "`cub/device`": "NVRTC does not compile it",
    "CUB's operators `cub::Sum` and `cub::Max`": "CUB 3 has removed them: `cuda::std::plus<>{}`, `cuda::maximum<>{}`",
    "the other collectives of CUB": "histograms, merge sorts, adjacent differences, run lengths",
    "`cuda/barrier`": "`cuda::device::memcpy_async_tx` and other bulk copies: `bulk.cuh` has them",
    "`mma.h`": "4-bit and 1-bit fragments",
    "`curand_kernel.h`": "MRG32k3a, MTGP32, Sobol, log-normal and Poisson numbers",
    "PTX": "`cp.async.bulk`, `mbarrier`, `wgmma`, `tcgen05`, sparse `mma`, `bar.arrive`, `atom` on 16-bit floats, `tex`, `suld`",
}
