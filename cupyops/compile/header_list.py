"""The list of the headers that a kernel's text may include in angle brackets: for each header, the package that has it
under NVRTC, and its replacement in the simulator.

The first row whose pattern fits a header counts. A header without a row is refused, unless an option ``-I`` names a
folder that has it. The simulator has the headers of a row whose files are in its folders. docs/cuda_support.md prints the list.
"""

from dataclasses import dataclass

from .host_headers import OF_HOST, OF_HOST_ALONE

__all__ = ["HEADERS", "OWN", "PARTS", "SAME", "SystemHeader"]

SAME = "the header itself"  # a host compiler reads the header that NVRTC reads
PARTS = "the headers of its parts"  # those that the text uses
OWN = "the simulator's file of its name"  # or with .h behind it; a header without such a file is refused


@dataclass(frozen=True)
class SystemHeader:
    """A row of the list.

    Attributes:
        names: names of headers, or patterns of names.
        folders: the folders that NVRTC needs, by the keys of :data:`_FOLDERS`. Without a folder, NVRTC has the names of
            the header without an include, or :mod:`cupyops.compile.standard` defines them; the directive is removed.
        twin: what the simulator compiles: :data:`SAME`, :data:`PARTS`, :data:`OWN`, or the name of another file of the simulator.
        reason: why kernels cannot have a header of the host.
        host: only host code uses the header, so its directive is left out. The compiler names what a kernel lacks.
        reads_cuda: the simulator's file includes headers of CUDA, too.
        of_project: a project may bring the header, which is then a part of the text, also in angle brackets.
        nowhere: the header is left out also where a folder has it.
        shared: the header of ``kernels_cu`` that takes its place in a text that uses the names of that header.
    """

    names: tuple[str, ...]
    folders: tuple[str, ...] = ()
    twin: str = SAME
    reason: str = ""
    host: bool = False
    reads_cuda: bool = False
    of_project: bool = False
    nowhere: bool = False
    shared: str = ""


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
_OF_CUB = ("arch", "cpp_dialect", "debug", "macro", "math", "namespace", "type")

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
    SystemHeader(
        tuple(f"cuda_{kind}.h" for kind in ("fp16", "bf16", "fp8", "fp6", "fp4")), ("cuda",), OWN, reads_cuda=True
    ),
    SystemHeader(("math_constants.h", "cuComplex.h"), ("cuda",)),
    SystemHeader(("cuda_pipeline*.h", "cuda_awbarrier*.h", "texture_*.h", "surface_*.h"), ("cuda",), OWN),
    SystemHeader(("cooperative_groups.h", "cooperative_groups/*.h"), _CCCL, OWN),
    SystemHeader(("mma.h",), (*_CCCL, "crt"), OWN, reads_cuda=True),
    SystemHeader(tuple(f"cuda/std/{name}" for name in _HOST_LIBRARY), _CCCL, "cuda_std.h"),
    SystemHeader(("cuda/*", "nv/target"), _CCCL, OWN),
    # <cub/cub.cuh> also includes code for the host. whole_cub() replaces it by the headers of the functions that the
    # text uses.
    SystemHeader(("cub/cub.cuh",), _CCCL, PARTS),
    SystemHeader(
        (*(f"cub/util_{of}.cuh" for of in _OF_CUB), "cub/version.cuh", "cub/config.cuh"), _CCCL, "cub/util_ptx.cuh"
    ),
    SystemHeader(("cub/util_ptx.cuh", "cub/block/*.cuh", "cub/warp/*.cuh", "cub/thread/*.cuh"), _CCCL, OWN),
    SystemHeader(("curand_kernel.h", "curand_*.h"), (*_CCCL, "curand"), OWN),
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
            *("cub/device/*", "cub/*", "cublas*", "cudnn*", "cufft*", "cusparse*", "cusolver*", "nccl.h", "curand.h"),
            *(
                "cuda_occupancy.h",
                "cuda_profiler_api.h",
                "cuda_gl_interop.h",
                "nvtx3/*",
                "nvToolsExt.h",
                "cudaTypedefs.h",
            ),
            *("cutensor*.h", "NvInfer*.h"),
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
        ("cutlass/*", "cute/*", "glm/*", "Eigen/*", "unsupported/Eigen/*"),
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
