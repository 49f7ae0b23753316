"""What compiles and loads kernels on this machine: CuPy, its NVRTC, CUDA's headers. Everything is found on first use,
nothing on import."""

import ast
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
    """The module cupy.

    Raises:
        MissingDependencyError: CuPy is not installed, or does not import; ``CUPY_CACHE_DIR`` names what can be no folder.
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
    """While CuPy is imported: a folder for its own kernels, which it makes then. A home that cannot be written would stop it,
    and a second import does not go behind one that has failed."""
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
        raise _no_folder_for_cupy(f"nothing, and {folder} is none", error) from error
    os.environ["CUPY_CACHE_DIR"] = str(own)  # CuPy looks once; a process that this one starts has a folder of its own
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
    """CuPy's binding of NVRTC, the run-time compiler of CUDA C++; it needs no GPU.

    Raises:
        MissingDependencyError: CuPy or the NVRTC library is missing.
    """
    cupy()
    try:
        from cupy.cuda import nvrtc as binding

        binding.getVersion()
    except Exception as error:  # CuPy raises its own kinds for a library that does not load
        raise MissingDependencyError(
            f"CUDA kernels are compiled by NVRTC, and its library does not load ({error}). Install it with: {INSTALL}"
        ) from error
    return binding


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of NVRTC, (12, 9)."""
    return tuple(nvrtc().getVersion())


@cache
def cuda_headers() -> Path:
    """The folder with cuda_fp16.h and cuda_bf16.h that belong to this NVRTC (of its major version).

    Looked for in the wheels beside this interpreter's packages, then under CUDA_PATH, CUDA_HOME and the usual system
    folders.

    Raises:
        MissingDependencyError: none is found; the message lists what was found of other versions.
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
    """Folders that may hold CUDA's headers, best first."""
    wheels = [Path(p) / "nvidia" / sub / "include" for p in sys.path for sub in ("cuda_runtime", "cu13", "cu12")]
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda", sys.prefix]
    system = [Path(r) / sub for r in roots if r for sub in ("include", "targets/x86_64-linux/include")]
    return [f for f in wheels + system if (f / "cuda_fp16.h").is_file()]


def header_version(folder: Path) -> tuple[int, int] | None:
    """The CUDA version that a folder of headers belongs to, from its own cuda.h or cuda_runtime_api.h."""
    for name, macro in (("cuda_runtime_api.h", "CUDART_VERSION"), ("cuda.h", "CUDA_VERSION")):
        path = folder / name
        if path.is_file() and (m := re.search(rf"#define\s+{macro}\s+(\d+)", path.read_text(errors="replace"))):
            return _pair(int(m[1]))
    return None


def cupy_distributions() -> dict[str, str]:
    """Installed distributions that provide the module cupy, with versions. More than one collide."""
    from importlib import metadata  # takes as long as half of this package

    names = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-cuda14x")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# What the doctor asks. Nothing below raises: None, 0 or nothing stands for what cannot be told.


def has_nvrtc() -> bool:
    """Whether anything can be compiled."""
    try:
        nvrtc()
    except MissingDependencyError:
        return False
    return True


def cupy_cuda() -> tuple[int, int] | None:
    """The CUDA that CuPy was built for, (12, 9); None without CuPy."""
    return _pair(_ask_runtime("runtimeGetVersion"))


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports; None without a driver or without CuPy."""
    return _pair(_ask_runtime("driverGetVersion"))


def gpu_count() -> int:
    """GPUs that CuPy sees."""
    return _ask_runtime("getDeviceCount") or 0


def _ask_runtime(question: str) -> int | None:
    try:
        return int(getattr(cupy().cuda.runtime, question)())
    except Exception:  # no CuPy, no CUDA runtime for it to load, or no driver behind that
        return None


def _pair(version: int | None) -> tuple[int, int] | None:
    """(12, 9) of CUDA's 12090."""
    return (version // 1000, version % 1000 // 10) if version else None


def driver_release() -> str | None:
    """The driver's own version, "580.95.05", where nvidia-ml-py is installed."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no such package, or no driver
        return None


def loaded_libraries(name: str) -> list[str]:
    """Paths of the libraries in this process whose file names begin so, where the platform tells."""
    with suppress(OSError):
        rows = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(errors="replace").splitlines()]
        return sorted({row[5] for row in rows if len(row) == 6 and Path(row[5]).name.startswith(name)})
    return []


def torch_build() -> tuple[str, tuple[int, int] | None] | None:
    """Version of the installed PyTorch and the CUDA it was built for, from its files: ("2.11.0+cu130", (13, 0))."""
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
    """The line that installs what kernels need for a CUDA major: by default CuPy's, else PyTorch's, else 12."""
    torch = torch_build()
    major = cuda or (cupy_cuda() or (torch and torch[1]) or (12, 0))[0]
    return pip_install("cuda13" if major >= 13 else "cuda12")


def reinstall_line(cuda: int | None = None) -> str:
    """The same where a CuPy is there, which pip would leave beside another."""
    return f"pip uninstall -y {' '.join(cupy_distributions())} && {install_line(cuda)}"
