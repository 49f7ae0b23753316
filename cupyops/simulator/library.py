"""What the simulator has of CUDA's headers. docs/simulator.md prints this table, and error messages name its entries."""

__all__ = ["DECLINED", "HEADERS", "INTRINSICS", "WHEELS", "hint"]

# The folders of wheels below `nvidia`, each with an `include`, that have the headers for NVRTC.
WHEELS = ("cuda_runtime", "cuda_nvcc", "curand", "cuda_cccl", "cu13")

# By header, what it has here. A header of several names stands for all of them.
HEADERS: dict[str, str] = {
    "cooperative_groups.h": "`thread_block`, `thread_group`, `tiled_partition` with tiles of 1 to 32 threads, "
    "`coalesced_threads`, `binary_partition`, `labeled_partition`, `this_grid` (its `sync` needs `cooperative=True`), "
    "`this_cluster`, `invoke_one`",
    "cooperative_groups/reduce.h": "`reduce` with `plus`, `less`, `greater`, `bit_and`, `bit_or`, `bit_xor` or a function",
    "cooperative_groups/scan.h": "`inclusive_scan`, `exclusive_scan`",
    "cooperative_groups/memcpy_async.h": "`memcpy_async`, `wait`, `wait_prior`",
    "cuda/barrier": "`barrier` with `arrive`, `wait`, `arrive_and_wait`, `arrive_and_drop`, `wait_parity` and a completion "
    "function; `memcpy_async`, `aligned_size_t`",
    "cuda/pipeline": "`make_pipeline` of a thread, of a group, and of producers and consumers; `memcpy_async`, "
    "`pipeline_consumer_wait_prior`",
    "cuda_pipeline.h": "`__pipeline_memcpy_async`, `__pipeline_commit`, `__pipeline_wait_prior`",
    "cuda_pipeline_primitives.h": "the same",
    "cuda/atomic": "`atomic` and `atomic_ref` of 4 and 8 bytes, `atomic_thread_fence`",
    "cuda/functional": "`maximum`, `minimum`",
    "cuda/std/array": "`array`",
    "cuda/std/atomic": "`atomic`, `atomic_ref`",
    "cuda/std/cmath": "the functions that `<math.h>` has, with overloads",
    "cuda/std/cstddef": "`size_t`, `ptrdiff_t`, `byte`",
    "cuda/std/cstdint": "`int32_t` and the other integers",
    "cuda/std/functional": "`plus`, `multiplies`, `less` and the other function objects",
    "cuda/std/limits": "`numeric_limits`",
    "cuda/std/tuple": "`tuple`, `make_tuple`, `tie`, `get`, `apply`",
    "cuda/std/type_traits": "`is_same`, `conditional`, `enable_if` and the like",
    "cuda/std/utility": "`pair`, `move`, `forward`, `swap`, `index_sequence`",
    "mma.h": "`wmma` fragments of 16x16x16, 32x8x16 and 8x32x16 in float16, bfloat16 and 8-bit integers, of 16x16x8 in "
    "tf32, of 8x8x4 in float64; `load_matrix_sync`, `store_matrix_sync`, `fill_fragment`, `mma_sync`",
    "cub/block/block_reduce.cuh": "`BlockReduce`",
    "cub/block/block_scan.cuh": "`BlockScan`, with prefix functions for sums",
    "cub/block/block_load.cuh": "`BlockLoad`",
    "cub/block/block_store.cuh": "`BlockStore`",
    "cub/block/block_exchange.cuh": "`BlockExchange`",
    "cub/block/block_radix_sort.cuh": "`BlockRadixSort` of integers and floats",
    "cub/warp/warp_reduce.cuh": "`WarpReduce::Sum`, `WarpReduce::Reduce`",
    "cub/warp/warp_scan.cuh": "`WarpScan`",
    "cub/util_ptx.cuh": "`ShuffleUp`, `ShuffleDown`, `ShuffleIndex`",
    "curand_kernel.h": "Philox4x32-10 and XORWOW with the bits of a GPU: `curand_init`, `curand`, `curand4`, "
    "`curand_uniform`, `curand_normal`, their variants of two and four numbers and in float64, `skipahead`",
    "math_constants.h": "`CUDART_PI_F` and the other constants",
}

# Functions that CUDA has without a header.
INTRINSICS = (
    "`__popc`, `__clz`, `__ffs`, `__fns`, `__brev`, `__byte_perm`, `__funnelshift_*`, `__mul24`, `__mulhi`, `__hadd`, "
    "`__rhadd`, `__sad`, `__dp4a`, `__dp2a_*`, the functions on halfwords and bytes from `__vabs2` to `__vsubus4`, "
    "`__vimax3_s32` and its relatives"
)

# What does not compile in the simulator.
DECLINED: dict[str, str] = {
    "`cooperative_groups.h`": "tiles of more than 32 threads, `multi_grid_group`, split barriers of a grid, "
    "`reduce_update_async`, scans that update an atomic object",
    "`cub/cub.cuh`, `cub/device`": "NVRTC does not compile them",
    "CUB's operators `cub::Sum` and `cub::Max`": "CUB 3 has removed them: `cuda::std::plus<>{}`, `cuda::maximum<>{}`",
    "the other collectives of CUB": "histograms, merge sorts, adjacent differences, run lengths",
    "`cuda/barrier`": "`cuda::device::memcpy_async_tx` and other bulk copies: `bulk.cuh` has them",
    "`mma.h`": "4-bit and 1-bit fragments",
    "`curand_kernel.h`": "MRG32k3a, MTGP32, Sobol, log-normal and Poisson numbers",
    "PTX": "`cp.async.bulk`, `mbarrier`, `wgmma`, `tcgen05`, sparse `mma`, `bar.arrive`, `atom` on 16-bit floats, textures",
}


def hint(header: str) -> str:
    """Returns what to say of a header that the simulator lacks."""
    near = [
        name
        for name in HEADERS
        if name.partition("/")[0].partition(".")[0] == header.partition("/")[0].partition(".")[0]
    ]
    there = f"; it has {', '.join(near)}" if near else ""
    return f"the simulator does not have the header {header}{there}"
