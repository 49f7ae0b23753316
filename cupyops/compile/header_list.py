"""The list of the headers that a kernel's text may include in angle brackets: for each header, the package that has it
under NVRTC, and its replacement in the simulator.

The first row whose pattern fits a header counts. A header without a row is refused, unless an option ``-I`` names a
folder that has it. If NVRTC or the simulator lacks a header that the other has, this list gives the reason.
docs/cuda_support.md and docs/simulator.md print the list.
"""

from dataclasses import dataclass

from .host_headers import OF_HOST, OF_HOST_ALONE

__all__ = ["HEADERS", "PARTS", "SAME", "SystemHeader"]

SAME = "the header itself"  # a host compiler reads the header that NVRTC reads
PARTS = "the headers of its parts"  # those that the text uses


@dataclass(frozen=True)
class SystemHeader:
    """A row of the list.

    Attributes:
        names: names of headers, or patterns of names.
        folders: the folders that NVRTC needs, by the keys of :data:`_FOLDERS`. Without a folder, NVRTC has the names of
            the header without an include, or :mod:`cupyops.compile.standard` defines them; the directive is removed.
        twin: what the simulator compiles: :data:`SAME`, :data:`PARTS`, the name of a file in ``cupyops/simulator/cuda`` or
            ``cupyops/simulator/include``, or None.
        reason: why there is no twin; or why kernels cannot have the header at all.
        host: only host code uses the header, so its directive is left out. The compiler names what a kernel lacks.
        has: what the twin has of the header, if it has a part.
        reads_cuda: the twin includes headers of CUDA, too.
        of_project: a project may bring the header, which is then a part of the text, also in angle brackets.
        nowhere: the header is left out also where a folder has it.
        shared: the header of ``kernels_cu`` that takes its place in a text that uses the names of that header.
    """

    names: tuple[str, ...]
    folders: tuple[str, ...] = ()
    twin: str | None = SAME
    reason: str = ""
    host: bool = False
    has: str = ""
    reads_cuda: bool = False
    of_project: bool = False
    nowhere: bool = False
    shared: str = ""


_NO_TWIN = "the simulator has no twin of it"
_OF_HOST = (
    "it belongs to host code, and NVRTC compiles kernels alone: keep the __global__ functions and what they call "
    "(<cuda/std/...> has array, tuple, complex, optional and others for kernels)"
)
_CCCL = ("cuda", "cccl")
# Headers of CUDA's C++ library that the host's C++ library replaces as a whole in the simulator.
_HOST_LIBRARY = (
    "cassert",
    "cfloat",
    "climits",
    "cstdlib",
    "cstring",
    "initializer_list",
    "optional",
    "ratio",
    "variant",
)

HEADERS = (
    # Their names are built in, or defined by cupyops.compile.standard on their first use.
    SystemHeader(
        (
            *("assert.h", "cassert", "cctype", "cerrno", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio"),
            *("cstdlib", "cstring", "ctype.h", "errno.h", "float.h", "inttypes.h", "limits.h", "math.h", "memory.h"),
            *("stdalign.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"),
            *("algorithm", "limits", "type_traits", "utility", "initializer_list", "cinttypes", "iso646.h", "ciso646"),
            *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cuda_device_runtime_api.h", "driver_types.h"),
            *("device_launch_parameters.h", "device_functions.h", "device_atomic_functions.h", "math_functions.h"),
            *("device_double_functions.h", "builtin_types.h", "device_types.h", "host_defines.h", "library_types.h"),
            *("vector_types.h", "vector_functions.h", "vector_functions.hpp", "common_functions.h", "host_config.h"),
            *("sm_*_functions.h", "sm_*_intrinsics.h", "crt/host_defines.h", "crt/device_functions.h"),
            *("cuda_texture_types.h", "cuda_surface_types.h"),  # CUDA 13 has no such files
        )
    ),
    SystemHeader(("cuda_fp16.h",), ("cuda",), "cuda_fp16.h", reads_cuda=True),
    SystemHeader(("cuda_bf16.h",), ("cuda",), "cuda_bf16.h", reads_cuda=True),
    SystemHeader(("math_constants.h", "cuComplex.h"), ("cuda",)),
    *(SystemHeader((name,), ("cuda",), name, reads_cuda=True) for name in ("cuda_fp4.h", "cuda_fp6.h", "cuda_fp8.h")),
    SystemHeader(
        ("cuda_pipeline.h",),
        ("cuda",),
        "cuda_pipeline.h",
        has="`__pipeline_memcpy_async`, `__pipeline_commit`, `__pipeline_wait_prior`",
    ),
    SystemHeader(("cuda_pipeline_primitives.h",), ("cuda",), "cuda_pipeline_primitives.h", has="the same"),
    SystemHeader(("cuda_pipeline_*.h", "cuda_awbarrier*.h"), ("cuda",), None, _NO_TWIN),
    SystemHeader(("texture_*.h", "surface_*.h"), ("cuda",), None, _NO_TWIN),
    SystemHeader(
        ("cooperative_groups.h",),
        _CCCL,
        "cooperative_groups.h",
        has="`thread_block`, `thread_group`, `tiled_partition` with tiles of 1 to 32 threads, "
        "`coalesced_threads`, `binary_partition`, `labeled_partition`, `this_grid` (its `sync` needs "
        "`cooperative=True`), `this_cluster`, `invoke_one`",
    ),
    SystemHeader(
        ("cooperative_groups/reduce.h",),
        _CCCL,
        "cooperative_groups/reduce.h",
        has="`reduce` with `plus`, `less`, `greater`, `bit_and`, `bit_or`, `bit_xor` or a function",
    ),
    SystemHeader(
        ("cooperative_groups/scan.h",), _CCCL, "cooperative_groups/scan.h", has="`inclusive_scan`, `exclusive_scan`"
    ),
    SystemHeader(
        ("cooperative_groups/memcpy_async.h",),
        _CCCL,
        "cooperative_groups/memcpy_async.h",
        has="`memcpy_async`, `wait`, `wait_prior`",
    ),
    SystemHeader(("cooperative_groups/*.h",), _CCCL, None, _NO_TWIN),
    SystemHeader(
        ("mma.h",),
        (*_CCCL, "crt"),
        "mma.h",
        has="`wmma` fragments of 16x16x16, 32x8x16 and 8x32x16 in float16, bfloat16 and 8-bit integers, of "
        "16x16x8 in tf32, of 8x8x4 in float64; `load_matrix_sync`, `store_matrix_sync`, `fill_fragment`, "
        "`mma_sync`",
        reads_cuda=True,
    ),
    SystemHeader(("cuda/std/array",), _CCCL, "cuda/std/array.h", has="`array`"),
    SystemHeader(("cuda/std/atomic",), _CCCL, "cuda/std/atomic.h", has="`atomic`, `atomic_ref`"),
    SystemHeader(
        ("cuda/std/bit",),
        _CCCL,
        "cuda/std/bit.h",
        has="`bit_cast`, `popcount`, `countl_zero`, `countr_zero`, `rotl`, `rotr`, `bit_width`, `bit_ceil`, `bit_floor`, "
        "`has_single_bit`",
    ),
    SystemHeader(
        ("cuda/std/cmath",), _CCCL, "cuda/std/cmath.h", has="the functions that `<math.h>` has, with overloads"
    ),
    SystemHeader(
        ("cuda/std/complex",),
        _CCCL,
        "cuda/std/complex.h",
        has="`complex` with its operators, `abs`, `arg`, `norm`, `conj`, `polar`, `exp`, `log`, `pow`, `sqrt`, `sin`, `sinh` and "
        "the like",
    ),
    SystemHeader(("cuda/std/cstddef",), _CCCL, "cuda/std/cstddef.h", has="`size_t`, `ptrdiff_t`, `byte`"),
    SystemHeader(("cuda/std/cstdint",), _CCCL, "cuda/std/cstdint.h", has="`int32_t` and the other integers"),
    SystemHeader(
        ("cuda/std/functional",),
        _CCCL,
        "cuda/std/functional.h",
        has="`plus`, `multiplies`, `less` and the other function objects",
    ),
    SystemHeader(("cuda/std/limits",), _CCCL, "cuda/std/limits.h", has="`numeric_limits`"),
    SystemHeader(("cuda/std/tuple",), _CCCL, "cuda/std/tuple.h", has="`tuple`, `make_tuple`, `tie`, `get`, `apply`"),
    SystemHeader(
        ("cuda/std/type_traits",),
        _CCCL,
        "cuda/std/type_traits.h",
        has="`is_same`, `conditional`, `enable_if` and the like",
    ),
    SystemHeader(
        ("cuda/std/utility",), _CCCL, "cuda/std/utility.h", has="`pair`, `move`, `forward`, `swap`, `index_sequence`"
    ),
    SystemHeader(tuple(f"cuda/std/{name}" for name in _HOST_LIBRARY), _CCCL, "cuda_std.h"),
    SystemHeader(("cuda/std/*",), _CCCL, None, _NO_TWIN),
    SystemHeader(("nv/target",), _CCCL, "nv_target.h"),
    SystemHeader(
        ("cuda/barrier",),
        _CCCL,
        "cuda/barrier.h",
        has="`barrier` with `arrive`, `wait`, `arrive_and_wait`, `arrive_and_drop`, `wait_parity` and a "
        "completion function; `memcpy_async`, `aligned_size_t`",
    ),
    SystemHeader(
        ("cuda/pipeline",),
        _CCCL,
        "cuda/pipeline.h",
        has="`make_pipeline` of a thread, of a group, and of producers and consumers; `memcpy_async`, "
        "`pipeline_consumer_wait_prior`",
    ),
    SystemHeader(
        ("cuda/atomic",),
        _CCCL,
        "cuda/atomic.h",
        has="`atomic` and `atomic_ref` of 4 and 8 bytes, `atomic_thread_fence`",
    ),
    SystemHeader(("cuda/functional",), _CCCL, "cuda/functional.h", has="`maximum`, `minimum`"),
    SystemHeader(("cuda/*",), _CCCL, None, _NO_TWIN),
    # <cub/cub.cuh> also includes code for the host. whole_cub() replaces it by the headers of the functions that the
    # text uses.
    SystemHeader(("cub/cub.cuh",), _CCCL, PARTS),
    SystemHeader(("cub/block/block_reduce.cuh",), _CCCL, "cub/block/block_reduce.cuh", has="`BlockReduce`"),
    SystemHeader(
        ("cub/block/block_scan.cuh",),
        _CCCL,
        "cub/block/block_scan.cuh",
        has="`BlockScan`, with prefix functions",
    ),
    SystemHeader(("cub/block/block_load.cuh",), _CCCL, "cub/block/block_load.cuh", has="`BlockLoad`"),
    SystemHeader(("cub/block/block_store.cuh",), _CCCL, "cub/block/block_store.cuh", has="`BlockStore`"),
    SystemHeader(("cub/block/block_exchange.cuh",), _CCCL, "cub/block/block_exchange.cuh", has="`BlockExchange`"),
    SystemHeader(
        ("cub/block/block_discontinuity.cuh",),
        _CCCL,
        "cub/block/block_discontinuity.cuh",
        has="`BlockDiscontinuity`",
    ),
    SystemHeader(
        ("cub/block/block_radix_sort.cuh",),
        _CCCL,
        "cub/block/block_radix_sort.cuh",
        has="`BlockRadixSort` of integers and floats",
    ),
    SystemHeader(
        ("cub/warp/warp_reduce.cuh",), _CCCL, "cub/warp/warp_reduce.cuh", has="`WarpReduce::Sum`, `WarpReduce::Reduce`"
    ),
    SystemHeader(("cub/warp/warp_scan.cuh",), _CCCL, "cub/warp/warp_scan.cuh", has="`WarpScan`"),
    SystemHeader(
        ("cub/util_ptx.cuh",),
        _CCCL,
        "cub/util_ptx.cuh",
        has="`ShuffleUp`, `ShuffleDown`, `ShuffleIndex`, `KeyValuePair`, `ArgMax`, `ArgMin`, `ThreadLoad`, `ThreadStore`, "
        "`Traits`",
    ),
    SystemHeader(
        (
            *(f"cub/util_{of}.cuh" for of in ("arch", "cpp_dialect", "debug", "macro", "math", "namespace", "type")),
            *("cub/version.cuh", "cub/config.cuh"),
        ),
        _CCCL,
        "cub/util_ptx.cuh",
    ),
    SystemHeader(
        ("cub/block/*.cuh", "cub/warp/*.cuh", "cub/thread/*.cuh"),
        _CCCL,
        None,
        _NO_TWIN,
    ),
    SystemHeader(
        ("curand_kernel.h",),
        (*_CCCL, "curand"),
        "curand_kernel.h",
        has="Philox4x32-10 and XORWOW with the bits of a GPU: `curand_init`, `curand`, `curand4`, "
        "`curand_uniform`, `curand_normal`, their variants of two and four numbers and in float64, "
        "`skipahead`",
    ),
    SystemHeader(("curand_*.h",), (*_CCCL, "curand"), None, _NO_TWIN),
    # Host code.
    SystemHeader(
        ("torch/*", "ATen/*", "c10/*", "THC/*", "pybind11/*", "Python.h"),
        reason="it is of the host half of a PyTorch extension, which a Kernel does not need: keep the __global__ functions "
        "and what they call, as cupyops.from_extension does",
        host=True,
        shared="pytorch.cuh",
    ),
    SystemHeader(
        ("nvfunctional",),
        reason="no package for Python has it, and cuda::std has the function objects of kernels",
        host=True,
    ),
    SystemHeader(
        (
            "cub/device/*",
            "cub/*",
            "cublas*",
            "cudnn*",
            "cufft*",
            "cusparse*",
            "cusolver*",
            "nccl.h",
            "curand.h",
        )
        + (
            "cuda_occupancy.h",
            "cuda_profiler_api.h",
            "cuda_gl_interop.h",
            "nvtx3/*",
            "nvToolsExt.h",
            "cudaTypedefs.h",
            "cutensor*.h",
            "NvInfer*.h",
        ),
        reason="it calls the GPU from the host, and NVRTC compiles kernels alone",
        host=True,
    ),
    # cupyops.compile.cpp_library has the names of Thrust that kernels use.
    SystemHeader(
        ("thrust/*",),
        reason="it calls the GPU from the host, and NVRTC compiles kernels alone; kernels have Thrust's pairs, tuples, "
        "complex numbers, random numbers, function objects and some algorithms",
        host=True,
    ),
    # Those of NVIDIA's samples for CUDA, most of them for the host.
    SystemHeader(
        ("helper_*.h",),
        reason="it is of NVIDIA's samples: give its folder as options=('-I...',)",
        host=True,
        of_project=True,
    ),
    SystemHeader(
        ("cutlass/*", "cute/*"),
        reason="it is of a library that is not part of CUDA: give its folder as options=('-I...',)",
        host=True,
    ),
    SystemHeader(
        ("glm/*",),
        reason="it is of a library that is not part of CUDA: give its folder as options=('-I...',)",
        host=True,
    ),
    SystemHeader(
        ("Eigen/*", "unsupported/Eigen/*"),
        reason="it is of a library that is not part of CUDA: give its folder as options=('-I...',)",
        host=True,
    ),
    SystemHeader(OF_HOST, reason=_OF_HOST, host=True, of_project=True),
    SystemHeader(
        OF_HOST_ALONE,
        reason=f"{_OF_HOST}; such a header is left out in a folder of the text or of -I, too, unless headers= gives it",
        host=True,
        nowhere=True,
    ),
)
