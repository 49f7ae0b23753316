"""``python -m cupyops ide``: writes what clangd needs to understand the CUDA texts of a folder, without a CUDA toolkit.

clangd parses a text as CUDA device code. The written header defines what NVRTC defines, with the simulator's headers.
``.clangd`` gives each text the types and the macros that cupyops would give the text.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kernels_cu
from cupyops import simulator
from cupyops.compile import toolchain
from cupyops.compile.cuda_text import scan
from cupyops.compile.source import included
from cupyops.dtypes import DTYPES
from cupyops.installing import pip_install
from cupyops.launch.kernel import Kernel, all_kernels

__all__ = ["add_parser", "definitions", "guessed", "write"]

_MARK = "# Written by `python -m cupyops ide`"
_FOLDER = ".cupyops"
_SUFFIXES = (".cu", ".cuh")
# The definitions for a text without a declared kernel: those of a launch with float32 arrays.
_USUAL = {"scalar_t": "float", "acc_t": "float", "BLOCK_THREADS": "256"}

# The functions of the simulator's headers are for host compilers: the pragma makes them callable from device code.
HEADER = """\
// Written by `python -m cupyops ide`: the types and functions that NVRTC defines, for clangd.
#pragma once
#pragma clang force_cuda_host_device begin
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utility>

#include "abi.h"

#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#define __managed__ __attribute__((managed))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict __restrict__
#define __grid_constant__
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __cudart_builtin__
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUPYOPS_INTRINSIC static __attribute__((unused))
#define CUPYOPS_UNCHECKED static __attribute__((unused))
#define CUPYOPS_LOOKED_AT static __attribute__((unused))

#include "vectors.h"
inline constexpr int warpSize = 32;
extern "C" {
extern const __device__ uint3 threadIdx, blockIdx;
extern const __device__ dim3 blockDim, gridDim;
int printf(const char*, ...);
}
#include "numbers.h"
#include "simd.h"
#define CupyopsModule __device__ CupyopsModule
#include "threads.h"
#undef CupyopsModule
#include "memory.h"
#if __has_include(<cuda_fp16.h>)
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#endif
#undef asm
#undef __asm__
#undef __asm
#undef memcpy
#undef memset

// The simulator's macros, as the functions that they stand for.
#undef __syncthreads
#undef __syncthreads_count
#undef __syncthreads_and
#undef __syncthreads_or
#undef __activemask
#undef __threadfence
#undef __threadfence_block
#undef __threadfence_system
#undef __nanosleep
#undef __cluster_barrier_arrive
#undef __cluster_barrier_arrive_relaxed
#undef __cluster_barrier_wait
#undef clock
void __syncthreads();
int __syncthreads_count(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_or(int predicate);
unsigned __activemask();
void __threadfence();
void __threadfence_block();
void __threadfence_system();
void __nanosleep(unsigned nanoseconds);
void __cluster_barrier_arrive();
void __cluster_barrier_arrive_relaxed();
void __cluster_barrier_wait();
void __trap();
void __brkpt();
#undef assert
#define assert(expression) ((void)(expression))

// A kernel's parameter `Int64s<3> size` takes a Python tuple of three integers by value.
template <int N> struct Int64s {
    long long v[N];
    __device__ __forceinline__ long long operator[](int i) const { return v[i]; }
};
#pragma clang force_cuda_host_device end
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``ide`` to the command line."""
    parser = commands.add_parser(
        "ide",
        help="have clangd understand the CUDA texts of a folder",
        description="Writes .clangd and .cupyops/ into a folder. An editor with clangd then completes, explains and checks "
        "the .cu and .cuh files of the folder. No CUDA toolkit is needed.",
        epilog="Exit status: 0 if the files are written, else 2. A .clangd that this command did not write is kept.",
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=Path(), help="default: this folder")
    parser.add_argument(
        "--module",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module that declares kernels of the texts: their constants and dtypes are then known",
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0.

    Raises:
        SystemExit: with status 2, if a module cannot be imported, or a file cannot be read or written.
    """
    folder = options.folder.resolve()
    sys.path.insert(0, str(Path.cwd()))
    try:
        for name in options.module:
            importlib.import_module(name)
        known, texts = write(folder)
    except ImportError as problem:
        options.parser.error(f"--module: {problem}")
    except (OSError, ValueError) as problem:
        options.parser.error(str(problem))
    print(f"{folder / '.clangd'}: {texts} texts, {known} of them with the constants and dtypes of declared kernels.")
    if not toolchain.header_candidates():
        install = pip_install("simulator", "nvidia-cuda-runtime-cu12")
        print(f"There is no cuda_fp16.h here, so clangd does not know __half. Install it with: {install}")
    return 0


def write(folder: Path) -> tuple[int, int]:
    """Writes ``.clangd`` and ``.cupyops/`` into a folder.

    Returns:
        The number of texts that have the definitions of a declared kernel, and the number of texts.

    Raises:
        OSError: the folder does not exist, a file cannot be read or written, or a ``.clangd`` of another author is there.
        ValueError: a file is not UTF-8.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    config = folder / ".clangd"
    if config.exists() and not config.read_text(encoding="utf-8", errors="replace").startswith(_MARK):
        raise FileExistsError(
            f"{config} was not written by this command; move the file, or add its settings afterwards"
        )
    paths = sorted(p for p in folder.rglob("*.cu*") if p.suffix in _SUFFIXES and not _hidden(p.relative_to(folder)))
    texts = {p: _read(p) for p in paths}
    kernels = sorted(all_kernels(), key=lambda k: (k.filename, k.name, str(list(k.type_choices())), str(k.constants)))
    given = {path: definitions(path, text, kernels) for path, text in texts.items()}
    folders = dict.fromkeys(p.parent for p in paths if p.suffix == ".cuh")
    fragments = [_fragment(r".*\.cuh?", _flags(folder, folders))]
    for path, text in texts.items():
        found, before = given[path]
        flags = _defines(found or guessed(text, _headers(path, texts)), text)
        flags += [word for name in before for word in ("-include", name)]
        if flags:
            fragments.append(_fragment(re.escape(path.relative_to(folder).as_posix()), flags))
    (folder / _FOLDER / "nv").mkdir(parents=True, exist_ok=True)
    (folder / _FOLDER / "cuda.h").write_text(HEADER, encoding="utf-8")
    (folder / _FOLDER / "nv" / "target").write_text('#include "nv/target.h"\n', encoding="utf-8")
    (folder / _FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
    about = f"{_MARK}. The paths are of this machine: do not commit the file.\n"
    config.write_text(about + "---\n".join(fragments), encoding="utf-8")
    return sum(bool(found) for found, _ in given.values()), len(texts)


def _hidden(path: Path) -> bool:
    """Returns whether a path lies in a folder such as .git, or in an environment of Python."""
    return any(part.startswith(".") or part == "site-packages" for part in path.parts)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: the text must be UTF-8 ({problem.reason})") from None


def _flags(folder: Path, folders: Iterable[Path]) -> list[str]:
    """Returns the compiler's flags of all texts: device code, the header, and the folders of headers.

    Every clangd with NVIDIA's target knows sm_70. The header defines __CUDA_ARCH__ as the simulator does.
    """
    here, texts = Path(simulator.__file__).parent, Path(kernels_cu.__file__).parent
    own = [folder / _FOLDER, *folders, here / "cuda", here / "runtime"]
    own += [texts, texts / "shared", texts / "hardware"]
    return [
        *("-xcuda", "-std=c++17", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "-nocudainc", "-nocudalib"),
        *("-Wno-unknown-cuda-version", "-Wno-pragma-once-outside-header"),
        *(f"-I{path}" for path in own),
        *(f"-isystem{path}" for path in toolchain.header_candidates()[:1]),
        *("-include", str(folder / _FOLDER / "cuda.h")),
        *(f"-D{name}={value}" for name, value in _USUAL.items()),
    ]


def _fragment(pattern: str, flags: Sequence[str]) -> str:
    # JSON is YAML. A text includes headers for other texts, so clangd's hints on unused includes do not fit.
    return (
        f"If: {{PathMatch: {json.dumps(pattern)}}}\n"
        f"CompileFlags: {{Add: {json.dumps(list(flags))}}}\n"
        f"Diagnostics: {{UnusedIncludes: None, MissingIncludes: None}}\n"
    )


def _defines(found: Mapping[str, str], text: str) -> list[str]:
    """Returns the flags that define names for one text, without the names that the text defines itself."""
    bare = scan(text).bare
    own = [n for n in _USUAL if re.search(rf"\btypedef\b[^;]*\b{n}\s*;|\busing\s+{n}\s*=", bare)]
    own += [n for n in _USUAL if n in _DEFINED.findall(text) and n not in _ASKED.findall(text)]  # without #ifndef
    flags = [f"-U{name}" for name in own]
    for name, value in found.items():
        if name not in own and _USUAL.get(name) != value:
            flags += [f"-U{name}"] if name in _USUAL else []
            flags.append(f"-D{name}={value}")
    return flags


def definitions(path: Path, text: str, kernels: Iterable[Kernel]) -> tuple[dict[str, str], list[str]]:
    """Returns the definitions that declared kernels give a text, or a text that includes this header.

    The first choice of dtypes of each kernel counts, and of several kernels the first that defines a name.

    Returns:
        The types and macros by name; and for a header, the headers that the text includes before it.
    """
    found: dict[str, str] = {}
    for kernel in kernels:
        headers = kernel.source.included() if path.suffix == ".cuh" else {}
        of_header = headers.get(path.name) == text
        # A text of kernels_cu has no file: its folder may be a copy.
        elsewhere = kernel.file is not None and path not in (kernel.file.path, kernel.file.path.with_name(path.name))
        if elsewhere or (kernel.text != text and not of_header):
            continue
        types = next(kernel.type_choices(), {})
        names = {name: DTYPES[dtype].c_type for name, dtype in types.items()}
        if "scalar_t" in types:
            names["acc_t"] = DTYPES[DTYPES[types["scalar_t"]].acc].c_type
        names |= {name: str(value) for name, value in kernel.constants.items()}
        found = {**names, **found}
        if of_header:
            return found, _before(path.name, kernel.text, headers, set()) or []
    return found, []


def _before(header: str, text: str, headers: Mapping[str, str], seen: set[str]) -> list[str] | None:
    """Returns the headers that a text includes before a header, in their order; None if it does not include it."""
    found: list[str] = []
    for name in _INCLUDE.findall(text):
        if name == header:
            return found
        if name in headers and name not in seen:
            seen.add(name)
            within = _before(header, headers[name], headers, seen)
            if within is not None:
                return found + within
            found.append(name)
    return None


def _headers(path: Path, texts: Mapping[Path, str]) -> dict[str, str]:
    return {p.name: text for p, text in texts.items() if p.parent == path.parent and p.suffix == ".cuh"}


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
# Names that are not macros: after a type (`int WIDTH`, `typename TYPE`), before `=`, or in a class
# (`Packed<T>::WORDS`).
_DECLARED = re.compile(
    r"\b(?:int|unsigned|signed|long|short|char|bool|float|double|auto|dim3|typename|class|struct|union|enum|\w+_t)"
    r"[>\s*&]+([A-Z][A-Z0-9_]+)\b|\b([A-Z][A-Z0-9_]+)\s*=(?!=)|(?:::|\.|->)\s*([A-Z][A-Z0-9_]+)\b"
)
_ENUM = re.compile(r"\benum\b[^;{]*\{([^}]*)\}")
_ASKED = re.compile(r"#\s*(?:ifn?def\s+|(?:el)?if\b[^\n]*\bdefined\b[^\n]*?)(\w+)")
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_POINTED = re.compile(r"\b(\w+_t)\b\s*(?:const\s*)?\*")
_TYPE_OWN = re.compile(r"\btypedef\b[^;]*?\b(\w+)\s*;|\busing\s+(\w+)\s*=|\b(?:typename|class|struct)\s+(\w+)")


def guessed(text: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Returns definitions for the names that a text without a declared kernel leaves undefined.

    Unknown types become float, and unknown macros 1. A macro is a name in capitals that neither the text nor its headers define.
    """
    near = {name: t for name, t in included(text, headers).items() if name in headers}
    everything = [text, *included(text, headers).values()]
    code = "\n".join(scan(t).bare for t in everything)
    # A macro that an `#if` or `#ifdef` tests may be left undefined.
    own = {m for t in everything for m in (*_DEFINED.findall(t), *_ASKED.findall(t))}
    own |= {n for m in _ENUM.findall(code) for n in _MACRO.findall(m)}
    own |= {name for found in (_DECLARED, _TYPE_OWN) for m in found.findall(code) for name in m if name}
    used = "\n".join(scan(t).bare for t in (text, *near.values()))
    types = dict.fromkeys(n for n in _POINTED.findall(used) if n not in own and not _standard(n))
    macros = dict.fromkeys(n for n in _MACRO.findall(used) if n not in own and not _builtin(n))
    return {n: _USUAL.get(n, "float") for n in types} | {n: _USUAL.get(n, "1") for n in macros}


def _standard(name: str) -> bool:
    return bool(re.fullmatch(r"u?int(_least|_fast|ptr|max)?\d*_t|size_t|ptrdiff_t|wchar_t|char\d+_t|nullptr_t", name))


def _builtin(name: str) -> bool:
    """Returns whether a macro is one of C's limits or of CUDA's constants."""
    return name.startswith(
        ("CUDART_", "INT", "UINT", "FLT_", "DBL_", "CHAR_", "SHRT_", "LONG_", "LLONG_", "NULL", "NAN")
    )
