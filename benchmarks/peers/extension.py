"""The C++ extension: every ``<op>.cu`` of this folder in one module, built by PyTorch's ``load_inline``."""

import atexit
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..cases import OPERATORS
from . import BuildFailed, Unavailable, find_scripts

__all__ = ["Built", "built", "extension", "load", "sources"]

FOLDER = Path(__file__).parent
NAME = "cupyops_peer_extension"


@dataclass(frozen=True)
class Built:
    """A loaded extension: `seconds` is what ``load_inline`` took; `folder` holds its files until this process ends."""

    module: Any
    seconds: float
    folder: Path


def extension() -> Any:
    """The loaded module, built on first use.

    Raises:
        Unavailable: a tool is missing, or the build failed.
    """
    return built().module


def built() -> Built:
    """The module, and what its build from nothing took. A failure is raised again at each call, without another try."""
    outcome = _outcome()
    if isinstance(outcome, Unavailable):
        raise outcome
    return outcome


@cache
def _outcome() -> Built | Unavailable:
    folder = Path(tempfile.mkdtemp(prefix="cupyops-peer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        module, seconds = load(folder)
    except Unavailable as reason:
        return reason
    except Exception as error:
        return BuildFailed(f"load_inline failed: {str(error)[-1500:]}")
    return Built(module, seconds, folder)


def load(folder: Path) -> tuple[Any, float]:
    """Builds the extension in a folder, or loads what lies there; the seconds are those of ``load_inline`` alone.

    Raises:
        Unavailable: nvcc, a C++ compiler or ninja is missing.
        RuntimeError: it does not compile; the message holds the compiler's words.
    """
    find_scripts()
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None or not (Path(cpp_extension.CUDA_HOME) / "bin" / "nvcc").is_file():
        raise Unavailable("nvcc is missing: neither CUDA_HOME nor PATH leads to one")
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        raise Unavailable("a C++ compiler is missing: neither CXX nor PATH leads to one")
    if not cpp_extension.is_ninja_available():
        raise Unavailable("ninja is missing")
    text, declarations, functions = sources()
    began = time.perf_counter()
    module = cpp_extension.load_inline(
        NAME, cpp_sources=declarations, cuda_sources=text, functions=functions, build_directory=str(folder)
    )
    return module, time.perf_counter() - began


def sources(operators: Sequence[str] = OPERATORS) -> tuple[str, str, list[str]]:
    """The CUDA text, declarations of the functions that Python calls, and their names.

    Those are the functions whose definition begins a line with ``at::Tensor name(`` or ``std::vector<at::Tensor> name(``.
    """
    files = [FOLDER / f"{op}.cu" for op in operators]
    bodies = "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())
    text = (FOLDER / "pointwise.cuh").read_text(encoding="utf-8") + "\n" + bodies
    found = re.findall(r"^((?:at::Tensor|std::vector<at::Tensor>) (\w+)\([^)]*\)) \{", bodies, re.MULTILINE)
    return text, "\n".join(f"{declaration};" for declaration, _ in found), [name for _, name in found]
