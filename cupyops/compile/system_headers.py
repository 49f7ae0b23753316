"""Finds the headers of :mod:`.header_list` for NVRTC and for the simulator, and explains why a text cannot include
one."""

import os
import re
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install

from .cpp_library import names_in
from .cuda_text import scan
from .header_list import HEADERS, OWN, PARTS, SAME, SystemHeader
from .standard import as_library
from .toolchain import cuda_headers, cupy, header_version, nvrtc_version

__all__ = [
    "cub_operators",
    "folders_in",
    "folders_of",
    "found_in",
    "header",
    "in_text",
    "shared_with_host",
    "shims",
    "twin",
    "whole_cub",
    "without_questions",
]

_QUESTION = re.compile(r'\b__has_include\s*\(\s*["<]([^"<>\n]+)[">]\s*\)')

# For each folder: a header that identifies the folder, folders below a wheel's `nvidia`, and the packages that install
# the folder for CUDA 12 and 13.
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


_TWINS = Path(__file__).parents[1] / "simulator"


@cache
def header(name: str) -> SystemHeader | None:
    """Returns the row of a header, or None for an unknown header.

    A project may have a folder `cuda`, too; the headers of CUDA's C++ library have names without an ending. An empty part of a
    path, as in `torch//extension.h`, names no folder.
    """
    name = re.sub("/+", "/", name)
    if name.startswith("cuda/") and name.endswith((".h", ".cuh", ".hpp")):
        return None
    return next((row for row in HEADERS if any(fnmatchcase(name, pattern) for pattern in row.names)), None)


@cache
def twin(name: str) -> str | None:
    """Returns what the simulator compiles in place of a header: :data:`.header_list.SAME`, :data:`.header_list.PARTS`, or a file;
    None if the simulator does not have the header."""
    row = header(name)
    if row is None or row.twin != OWN:
        return row.twin if row else None
    files = (file for file in (name, f"{name}.h") for of in ("include", "cuda") if (_TWINS / of / file).is_file())
    return next(files, None)


def in_text(name: str, quoted: bool) -> bool:
    """Returns whether the ``#include`` of a header may mean a text that is given or lies in a folder of the text: every header
    in quotes, and in angle brackets those that are not of CUDA or of the system, and those that a project may bring.

    Args:
        name: the header.
        quoted: whether the name is in quotes.
    """
    row = header(name)
    return quoted or row is None or row.of_project


def folders_in(options: Sequence[str]) -> list[str]:
    """Returns the folders of the options ``-I``."""
    return re.findall(r"(?:\A|\n)(?:-I|--include-path=)\s*\n?([^\n]+)", "\n".join(options))


def found_in(options: Sequence[str], name: str) -> bool:
    """Returns whether a folder of the options ``-I`` has a header that a compiler may read there."""
    row = header(name)
    return not (row is not None and row.nowhere) and any(
        os.path.isfile(os.path.join(folder, name)) for folder in folders_in(options)
    )


def without_questions(
    texts: Mapping[str, str], given: Container[str], options: Sequence[str], simulated: bool
) -> dict[str, str]:
    """Returns texts in which 1 or 0 stands for each ``__has_include(<name>)`` that the compiler would not answer as NVRTC does.

    NVRTC finds the given headers, and those in the folders of the CUDA headers that the texts include. It ignores that
    given headers become part of the text. The simulator's compiler sees the host's headers, too.

    Args:
        texts: the text and its headers, by name.
        given: the names of the given headers.
        options: NVRTC options, which may name folders of headers.
        simulated: whether the simulator compiles the text.
    """
    if not any("__has_include" in text for text in texts.values()):
        return dict(texts)
    included = {d.header for t in texts.values() for d in scan(t).directives} - {""}
    cudas = [name for name in included if (row := header(name)) and row.folders]

    def there(name: str) -> bool:
        try:
            return any((folder / name).is_file() for folder in folders_of(cudas)) or found_in(options, name)
        except MissingDependencyError:  # the simulator needs no NVRTC
            row = header(name)
            return bool(row and row.folders and cudas)

    def answer(found: re.Match[str]) -> str:
        if found[1] in given:
            return "1"
        return str(int(there(found[1]))) if simulated else found[0]

    return {name: _QUESTION.sub(answer, text) for name, text in texts.items()}


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
    return any(row is not None and row.folders and (row.twin == SAME or row.reads_cuda) for _, row in rows)


@cache
def _places(folder: str) -> list[Path]:
    """Returns the first folder that has the headers of a key of :data:`_FOLDERS`. CuPy's copy of CCCL comes first.

    Only wheels of NVRTC's CUDA version count. A toolkit of another version counts for the folders whose headers both
    versions of NVRTC compile.
    """
    sentinel, wheels = _FOLDERS[folder]
    if folder == "cccl" and (own := Path(str(cupy().__file__)).parent / "_core/include/cupy/_cccl").is_dir():
        return [p for p in (own / "libcudacxx", own / "cub", own / "thrust") if p.is_dir()]
    major = min(max(nvrtc_version()[0], 12), 13)
    own_wheels = [wheel for wheel in wheels if wheel.startswith("cu13/") == (major == 13)]
    candidates = [Path(p) / "nvidia" / wheel for p in sys.path for wheel in own_wheels]
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda", sys.prefix]
    for toolkit in (Path(root) / sub for root in roots if root for sub in ("include", "targets/x86_64-linux/include")):
        version = header_version(toolkit)
        # CUDA 13's cuRAND uses macros that CUDA 12's NVRTC does not define.
        if folder != "curand" or version is None or version[0] == nvrtc_version()[0]:
            candidates += [toolkit, toolkit / "cccl"]
    return next(([place] for place in candidates if (place / sentinel).is_file()), [])


def shims() -> dict[str, str]:
    """Returns, by name, the texts of headers that the simulator's compiler finds before others. Each text includes the
    simulator's replacement of the header."""
    found = {}
    for row in HEADERS:
        for name in row.names if row.twin not in (SAME, PARTS, OWN) else ():
            library = as_library([f"<{name[9:]}>"]) if row.twin == "cuda_std.h" else []  # cuda/std/...
            found[name] = "\n".join([*library, f'#include "{row.twin}"\n'])
    for file in (_TWINS / "include").rglob("*.h"):
        name = file.relative_to(_TWINS / "include").as_posix().removesuffix(".h")
        if twin(name) == f"{name}.h":
            found[name] = f'#include "{name}.h"\n'
    return found


_OF_CUB = re.compile(r"\bcub\s*::\s*(\w+)|\b(CUB_M(?:AX|IN))\b")


def cub_operators(texts: Iterable[str], simulated: bool) -> list[str]:
    """Returns the lines after a header of CUB that define what CUB 3 has removed, such as ``cub::Max``, for texts that use it."""
    found = names_in("cub.cuh").definitions({m[1] or m[2] for text in texts for m in _OF_CUB.finditer(scan(text).bare)})
    if not found:
        return []
    condition = "" if simulated else " && CUB_VERSION >= 300000"  # the simulator's headers of CUB have none of them
    return [
        *([] if simulated else ["#include <cub/version.cuh>"]),
        f"#if !defined(CUPYOPS_CUB_OPERATORS){condition}",
        *("#define CUPYOPS_CUB_OPERATORS", "namespace cub {", *found, "}", "#endif"),
    ]


def whole_cub(texts: Mapping[str, str], simulated: bool) -> list[str]:
    """Returns the headers that take the place of ``<cub/cub.cuh>`` for the names that a text and its headers use."""
    code = "\n".join(scan(text).bare for text in texts.values())
    used = sorted(set(re.findall(r"\b(?:Block|Warp)[A-Z][A-Za-z]+\b", code)) & names_in("cub.cuh").imported.keys())
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in used]
    common: tuple[str, ...] = (
        ("cub/util_ptx.cuh",) if simulated else ("cub/util_type.cuh", "cub/thread/thread_operators.cuh")
    )
    if not simulated:
        common += tuple(f"cub/thread/thread_{n.lower()}.cuh" for n in ("Load", "Store") if f"Thread{n}" in code)
    return [
        *common,
        *(f"cub/{n.partition('_')[0]}/{n}.cuh" for n in names),
    ]
