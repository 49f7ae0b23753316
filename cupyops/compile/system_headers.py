"""The list of the headers that a kernel's text may include in angle brackets: who has each under NVRTC, and what stands
for it in the simulator.

The first row whose pattern fits a header counts. A header of no row is refused, unless an option ``-I`` names a folder
that has it. A header is never found in one of the two and missing in the other without a reason in this list.
"""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from cupyops.errors import MissingDependencyError, nearest
from cupyops.installing import pip_install

from .standard import as_library
from .toolchain import cuda_headers, cupy, nvrtc_version

__all__ = [
    "HEADERS",
    "SAME",
    "SystemHeader",
    "folders_of",
    "found_in",
    "header",
    "refusal",
    "shared_with_host",
    "shims",
    "whole_cub",
]

SAME = "the header itself"  # a host compiler reads the header that NVRTC reads


@dataclass(frozen=True)
class SystemHeader:
    """A row of the list.

    Attributes:
        names: names of headers, or patterns of names.
        folders: the folders that NVRTC needs, by the keys of :data:`_FOLDERS`. Without a folder, NVRTC has the names of
            the header without an include, or :mod:`cupyops.compile.standard` defines them; the directive is removed.
        twin: what the simulator compiles: :data:`SAME`, the name of a file in ``cupyops/simulator/cuda``, or None.
        reason: why there is no twin; or why kernels cannot have the header at all.
        host: the header is of host code. It is refused.
    """

    names: tuple[str, ...]
    folders: tuple[str, ...] = ()
    twin: str | None = SAME
    reason: str = ""
    host: bool = False


_NO_TWIN = "the simulator has no twin of it"
_CCCL = ("cuda", "cccl")
# Headers of CUDA's C++ library for which the host's library stands in the simulator.
_HOST_LIBRARY = (
    *("array", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdlib", "cstring"),
    *("initializer_list", "limits", "optional", "ratio", "tuple", "type_traits", "utility", "variant"),
)

HEADERS = (
    # Their names are built in, or defined by cupyops.compile.standard on their first use.
    SystemHeader(
        (
            *("assert.h", "cassert", "cctype", "cerrno", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio"),
            *("cstdlib", "cstring", "ctype.h", "errno.h", "float.h", "inttypes.h", "limits.h", "math.h", "memory.h"),
            *("stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"),
            *("algorithm", "limits", "type_traits", "utility", "initializer_list", "cinttypes", "iso646.h", "ciso646"),
            *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cuda_device_runtime_api.h", "driver_types.h"),
            *("device_launch_parameters.h", "device_functions.h", "device_atomic_functions.h", "math_functions.h"),
            *("device_double_functions.h", "builtin_types.h", "device_types.h", "host_defines.h", "library_types.h"),
            *("vector_types.h", "vector_functions.h", "vector_functions.hpp", "common_functions.h", "host_config.h"),
            *("sm_*_functions.h", "sm_*_intrinsics.h", "crt/host_defines.h", "crt/device_functions.h"),
        )
    ),
    SystemHeader(("cuda_fp16.h",), ("cuda",), "cuda_fp16.h"),
    SystemHeader(("cuda_bf16.h",), ("cuda",), "cuda_bf16.h"),
    SystemHeader(("math_constants.h", "cuComplex.h"), ("cuda",)),
    SystemHeader(("cuda_fp4.h", "cuda_fp6.h", "cuda_fp8.h"), ("cuda",), None, _NO_TWIN),
    SystemHeader(("cuda_pipeline.h", "cuda_pipeline_*.h", "cuda_awbarrier*.h"), ("cuda",), None, _NO_TWIN),
    SystemHeader(
        ("texture_*.h", "surface_*.h", "cuda_texture_types.h", "cuda_surface_types.h"), ("cuda",), None, _NO_TWIN
    ),
    SystemHeader(("cooperative_groups.h", "cooperative_groups/*.h"), _CCCL, None, _NO_TWIN),
    SystemHeader(("mma.h",), (*_CCCL, "crt"), None, _NO_TWIN),
    SystemHeader(tuple(f"cuda/std/{name}" for name in _HOST_LIBRARY), _CCCL, "cuda_std.h"),
    SystemHeader(("cuda/std/*",), _CCCL, None, _NO_TWIN),
    SystemHeader(("nv/target",), _CCCL, "nv_target.h"),
    SystemHeader(
        ("cuda/barrier", "cuda/pipeline", "cuda/atomic", "cuda/latch", "cuda/semaphore"), _CCCL, None, _NO_TWIN
    ),
    SystemHeader(("cuda/*",), _CCCL, None, _NO_TWIN),
    # The whole of cub is for the host as well. Its place take the headers of what the text uses: whole_cub.
    SystemHeader(
        ("cub/cub.cuh", "cub/block/*.cuh", "cub/warp/*.cuh", "cub/thread/*.cuh", "cub/util_*.cuh"),
        _CCCL,
        None,
        _NO_TWIN,
    ),
    SystemHeader(("curand_kernel.h", "curand_*.h"), (*_CCCL, "curand"), None, _NO_TWIN),
    SystemHeader(("thrust/pair.h", "thrust/tuple.h", "thrust/functional.h"), _CCCL, None, _NO_TWIN),
    # Host code.
    SystemHeader(
        ("torch/*", "ATen/*", "c10/*", "pybind11/*", "Python.h"),
        reason="it is of the host half of a PyTorch extension, which a Kernel does not need: keep the __global__ functions "
        "and what they call",
        host=True,
    ),
    SystemHeader(
        (
            "cub/device/*",
            "cub/*",
            "thrust/*",
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
            "cutlass/*",
            "cute/*",
        ),
        reason="it calls the GPU from the host, and NVRTC compiles kernels alone",
        host=True,
    ),
    SystemHeader(
        (
            *(
                "iostream",
                "ostream",
                "istream",
                "sstream",
                "fstream",
                "iomanip",
                "vector",
                "string",
                "map",
                "set",
                "list",
            ),
            *(
                "deque",
                "queue",
                "stack",
                "memory",
                "functional",
                "thread",
                "mutex",
                "atomic",
                "chrono",
                "random",
                "array",
            ),
            *(
                "tuple",
                "numeric",
                "optional",
                "variant",
                "any",
                "bitset",
                "complex",
                "exception",
                "stdexcept",
                "typeinfo",
            ),
            *(
                "unordered_map",
                "unordered_set",
                "iterator",
                "string_view",
                "regex",
                "filesystem",
                "future",
                "new",
                "ctime",
            ),
            *("condition_variable", "typeindex", "valarray", "locale", "csignal", "cstdarg", "stdarg.h", "time.h"),
            *(
                "signal.h",
                "unistd.h",
                "windows.h",
                "omp.h",
                "mpi.h",
                "pthread.h",
                "fcntl.h",
                "dirent.h",
                "sys/*",
                "getopt.h",
            ),
            *("helper_*.h",),
        ),
        reason="it is of host code, and NVRTC compiles kernels alone: keep the __global__ functions and what they call "
        "(<cuda/std/...> has array, tuple, complex, optional and others for kernels)",
        host=True,
    ),
)

# Of each folder: a header by which it is found, folders below a wheel's `nvidia`, and the packages that bring it with CUDA
# 12 and 13.
_FOLDERS = {
    "cccl": ("cuda/std/limits", ("cuda_cccl/include", "cu13/include/cccl", "cu13/include")),
    "curand": ("curand_kernel.h", ("curand/include", "cu13/include")),
    "crt": ("crt/mma.h", ("cuda_nvcc/include", "cuda_crt/include", "cu13/include")),
}
_PACKAGES = {
    "cccl": ("nvidia-cuda-cccl-cu12", "nvidia-cuda-cccl"),
    "curand": ("nvidia-curand-cu12", "nvidia-curand"),
    "crt": ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt"),
}


@cache
def header(name: str) -> SystemHeader | None:
    """Returns the row of a header, or None for an unknown header."""
    return next((row for row in HEADERS if any(fnmatchcase(name, pattern) for pattern in row.names)), None)


def found_in(options: Sequence[str], name: str) -> bool:
    """Returns whether a folder of the options ``-I`` has a header."""
    folders = re.findall(r"(?:\A|\n)(?:-I|--include-path=)\s*\n?([^\n]+)", "\n".join(options))
    return any(os.path.isfile(os.path.join(folder, name)) for folder in folders)


def refusal(name: str, simulated: bool) -> str:
    """Returns why a text cannot include a header, or ``""``.

    Args:
        name: the header.
        simulated: whether the simulator compiles the text.
    """
    row = header(name)
    if row is None:
        known = [n for r in HEADERS if not r.host for n in r.names if "*" not in n]
        return (
            f"no such header is known{nearest(name, known)}; give its text as headers={{...}} and include it in quotes, or "
            f"give its folder as options=('-I...',)"
        )
    return row.reason if row.host or (simulated and row.twin is None) else ""


def folders_of(names: Iterable[str]) -> list[Path]:
    """Returns the folders in which NVRTC finds headers.

    Raises:
        MissingDependencyError: a package is missing. The message names the header and the package.
    """
    wanted: dict[str, str] = {}
    for name in names:
        row = header(name)
        for folder in row.folders if row else ("cuda",):
            wanted.setdefault(folder, name)
    found: list[Path] = []
    for folder, name in wanted.items():
        if folder == "cuda":
            found.append(cuda_headers())
            continue
        places = _places(folder)
        if not places:
            major = min(max(nvrtc_version()[0], 12), 13)
            package = _PACKAGES[folder][major - 12]
            extra = f"headers{major}"
            raise MissingDependencyError(
                f"<{name}> is in the package {package}, which is not installed. Install it with: {pip_install(extra, package)}"
            )
        found += places
    return found


def shared_with_host(names: Iterable[str]) -> bool:
    """Returns whether the simulator's compiler reads one of the headers in the folder in which NVRTC finds it."""
    rows = [(name, header(name)) for name in names]
    return any(row is not None and row.folders and row.twin in (SAME, name) for name, row in rows)


@cache
def _places(folder: str) -> list[Path]:
    """Returns the first folder that has the headers of a key of :data:`_FOLDERS`. CuPy's copy of CCCL comes first."""
    sentinel, wheels = _FOLDERS[folder]
    if folder == "cccl" and (own := Path(str(cupy().__file__)).parent / "_core/include/cupy/_cccl").is_dir():
        return [p for p in (own / "libcudacxx", own / "cub", own / "thrust") if p.is_dir()]
    candidates = [Path(p) / "nvidia" / wheel for p in sys.path for wheel in wheels]
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda", sys.prefix]
    below = ("include", "include/cccl", "targets/x86_64-linux/include", "targets/x86_64-linux/include/cccl")
    candidates += [Path(root) / sub for root in roots if root for sub in below]
    return next(([place] for place in candidates if (place / sentinel).is_file()), [])


def shims() -> dict[str, str]:
    """Returns the texts of headers that the simulator's compiler finds before others, by name: each includes the twin."""
    found = {}
    for row in HEADERS:
        for name in row.names:
            if row.twin not in (None, SAME, name) and "*" not in name:
                found[name] = "\n".join([*_library(name), f'#include "{row.twin}"\n'])
    return found


def _library(name: str) -> list[str]:
    """Returns the lines that include the header of the host's library for one of CUDA's."""
    return as_library([f"<{name[9:]}>"]) if name.startswith("cuda/std/") else []


def whole_cub(code: str) -> list[str]:
    """Returns the headers that take the place of ``<cub/cub.cuh>`` for the names that a text uses."""
    used = sorted(set(re.findall(r"\b(?:Block|Warp)[A-Z][A-Za-z]+\b", code)))
    known = (
        *("BlockAdjacentDifference", "BlockDiscontinuity", "BlockExchange", "BlockHistogram", "BlockLoad"),
        *("BlockMergeSort", "BlockRadixRank", "BlockRadixSort", "BlockReduce", "BlockRunLengthDecode", "BlockScan"),
        *(
            "BlockShuffle",
            "BlockStore",
            "WarpExchange",
            "WarpLoad",
            "WarpMergeSort",
            "WarpReduce",
            "WarpScan",
            "WarpStore",
        ),
    )
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in used if name in known]
    return [
        "cub/util_type.cuh",
        "cub/thread/thread_operators.cuh",
        *(f"cub/{n.partition('_')[0]}/{n}.cuh" for n in names),
    ]
