"""Finds CuPy, its NVRTC and the CUDA headers on this machine. The search runs at the first use, not at import."""

import ast
import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install
from cupyops.sharing import own_folder

__all__ = ["cuda_headers", "cupy", "nvrtc", "nvrtc_version"]

INSTALL = f"{pip_install('cuda12')}   (or, beside a PyTorch built for CUDA 13, {pip_install('cuda13')})"


@cache
def cupy() -> ModuleType:
    """Returns the module cupy.

    Raises:
        MissingDependencyError: CuPy is not installed or cannot be imported, or ``CUPY_CACHE_DIR`` names a path that
            cannot be a folder.
    """
    try:
        there = "cupy" in sys.modules or importlib.util.find_spec("cupy") is None
        with nullcontext() if there else _folder_for_cupy():
            import cupy as module
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        problem = "CuPy is not installed" if missing else f"CuPy does not import ({error})"
        raise MissingDependencyError(f"CUDA kernels need CuPy, and {problem}. Install it with: {INSTALL}") from error
    return module


@contextmanager
def _folder_for_cupy() -> Iterator[None]:
    """Gives CuPy a writable kernel cache folder while it is imported.

    CuPy creates this folder during its import, and the import fails if the home directory cannot be written. After a
    failed import, a second import of CuPy fails, too.
    """
    chosen = os.environ.get("CUPY_CACHE_DIR")
    folder = os.path.expanduser("~/.cupy/kernel_cache") if chosen is None else chosen
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
        usable = chosen is not None or os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        if chosen is not None:
            raise _no_folder_for_cupy(repr(chosen), error) from error
        usable = False
    if usable:
        yield
        return
    try:
        own = own_folder("cupyops-cupy-")
    except OSError as error:
        raise _no_folder_for_cupy(f"nothing, and {folder} cannot be written", error) from error
    # CuPy reads the variable once. The variable is unset afterwards, so that a child process gets a folder of its own.
    os.environ["CUPY_CACHE_DIR"] = str(own)
    try:
        yield
    finally:
        os.environ.pop("CUPY_CACHE_DIR", None)


def _no_folder_for_cupy(got: str, error: OSError) -> MissingDependencyError:
    return MissingDependencyError(
        f"CUDA kernels need CuPy, and CuPy does not import: CUPY_CACHE_DIR must name a folder that can be made and written, "
        f"got {got} ({error.strerror}). Mend it with: export CUPY_CACHE_DIR=FOLDER, or unset CUPY_CACHE_DIR"
    )


@cache
def nvrtc() -> Any:
    """Returns CuPy's binding of NVRTC, the run-time compiler of CUDA C++. NVRTC needs no GPU.

    Raises:
        MissingDependencyError: CuPy or the NVRTC library is missing.
    """
    cupy()
    try:
        from cupy.cuda import nvrtc as binding

        binding.getVersion()
    except Exception as error:  # CuPy raises its own exception types for a library that does not load
        raise MissingDependencyError(
            f"CUDA kernels are compiled by NVRTC, and its library does not load ({error}). Install it with: {INSTALL}"
        ) from error
    return binding


def nvrtc_version() -> tuple[int, int]:
    """Returns the major and minor version of NVRTC, (12, 9)."""
    return tuple(nvrtc().getVersion())


@cache
def cuda_headers() -> Path:
    """Returns the folder of cuda_fp16.h and cuda_bf16.h with the major version of NVRTC.

    The search covers the wheels on ``sys.path``, then CUDA_PATH, CUDA_HOME and the usual system folders.

    Raises:
        MissingDependencyError: no folder has this version. The message lists the folders of other versions.
    """
    major = nvrtc_version()[0]
    others = []
    for folder in header_candidates():
        version = header_version(folder)
        if version is not None and version[0] == major:
            return folder
        if version is not None:
            others.append(f"{folder} (CUDA {version[0]}.{version[1]})")
    raise MissingDependencyError(
        f"float16 and bfloat16 kernels need CUDA {major} headers (cuda_fp16.h), and none were found"
        + (f", only {', '.join(others)}" if others else "")
        + f". Install them with: {install_line(major)}"
    )


def header_candidates() -> list[Path]:
    """Returns the folders with a cuda_fp16.h in the order of preference."""
    wheels = [Path(p) / "nvidia" / sub / "include" for p in sys.path for sub in ("cuda_runtime", "cu13", "cu12")]
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda", sys.prefix]
    system = [Path(r) / sub for r in roots if r for sub in ("include", "targets/x86_64-linux/include")]
    return [f for f in wheels + system if (f / "cuda_fp16.h").is_file()]


def header_version(folder: Path) -> tuple[int, int] | None:
    """Returns the CUDA version of a folder of headers, read from its cuda_runtime_api.h or cuda.h.

    Returns None if neither states a version.
    """
    for name, macro in (("cuda_runtime_api.h", "CUDART_VERSION"), ("cuda.h", "CUDA_VERSION")):
        path = folder / name
        if path.is_file() and (m := re.search(rf"#define\s+{macro}\s+(\d+)", path.read_text(errors="replace"))):
            return _pair(int(m[1]))
    return None


def cupy_distributions() -> dict[str, str]:
    """Returns the versions of the installed distributions that provide the module cupy.

    Two such distributions overwrite each other's files.
    """
    from importlib import metadata  # imported here: this import takes half as long as importing cupyops

    names = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-cuda14x")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# Functions for `python -m cupyops doctor`. The functions do not raise. For unknown facts they return None, 0 or an
# empty value.


def has_nvrtc() -> bool:
    """Returns whether NVRTC can be loaded."""
    try:
        nvrtc()
    except MissingDependencyError:
        return False
    return True


def of_c_library(name: str) -> bool:
    """Returns whether the C library of the host has a function of a name, ``strlen``."""
    return hasattr(_c_library(), name)


@cache
def _c_library() -> ctypes.CDLL:
    """Returns the library of mathematics, which brings the C library with it: other libraries of the process may come and go."""
    for name in ("libm.so.6", None if os.name == "posix" else "msvcrt"):
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError("this process has no C library")


def cupy_cuda() -> tuple[int, int] | None:
    """Returns the CUDA version of CuPy's runtime, (12, 9); None without CuPy."""
    return _pair(_ask_runtime("runtimeGetVersion"))


def driver_cuda() -> tuple[int, int] | None:
    """Returns the newest CUDA version that the driver supports; None without a driver or without CuPy."""
    return _pair(_ask_runtime("driverGetVersion"))


def gpu_count() -> int:
    """Returns the number of GPUs that CuPy finds; 0 without a driver or without CuPy."""
    return _ask_runtime("getDeviceCount") or 0


def nvidia_hardware() -> bool:
    """Returns whether an NVIDIA GPU is on the PCI bus, with a driver or without; False outside Linux."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            kind = (device / "class").read_text()
            if (device / "vendor").read_text().strip() == "0x10de" and kind.startswith("0x03"):  # a display controller
                return True
    return False


def _ask_runtime(question: str) -> int | None:
    try:
        return int(getattr(cupy().cuda.runtime, question)())
    except Exception:  # no CuPy, no CUDA runtime, or no driver
        return None


def _pair(version: int | None) -> tuple[int, int] | None:
    """Returns (12, 9) for CUDA's version number 12090; None for None or 0."""
    return (version // 1000, version % 1000 // 10) if version else None


def driver_release() -> str | None:
    """Returns the driver's version, "580.95.05"; None without a driver or without nvidia-ml-py."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no nvidia-ml-py, or no driver
        return None


def loaded_libraries(name: str) -> list[str]:
    """Returns the paths of the libraries of this process whose file names begin with `name`; empty outside Linux."""
    with suppress(OSError):
        rows = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(errors="replace").splitlines()]
        return sorted({row[5] for row in rows if len(row) == 6 and Path(row[5]).name.startswith(name)})
    return []


def torch_build() -> tuple[str, tuple[int, int] | None] | None:
    """Returns the version of the installed PyTorch and of its CUDA, ("2.11.0+cu130", (13, 0)), without importing
    PyTorch. Returns None without PyTorch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    said: dict[str, Any] = {}
    with suppress(OSError, SyntaxError):
        for node in ast.parse(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                said[ast.unparse(target)] = node.value.value
    cuda = re.match(r"(\d+)\.(\d+)", said.get("cuda") or "")
    return said.get("__version__", "of unknown version"), (int(cuda[1]), int(cuda[2])) if cuda else None


def install_line(cuda: int | None = None) -> str:
    """Returns the command that installs CuPy, NVRTC and the headers for a CUDA major version.

    The default is the major version of CuPy, else of PyTorch, else 12.
    """
    torch = torch_build()
    major = cuda or (cupy_cuda() or (torch and torch[1]) or (12, 0))[0]
    return pip_install("cuda13" if major >= 13 else "cuda12")


def reinstall_line(cuda: int | None = None) -> str:
    """Returns the command that uninstalls the present CuPy before it installs CuPy, NVRTC and the headers. pip would
    leave the present CuPy installed beside the new one."""
    return f"pip uninstall -y {' '.join(cupy_distributions())} && {install_line(cuda)}"
