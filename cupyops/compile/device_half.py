"""Takes the device code out of the text of a kernel, which may be a whole file for nvcc, with host code."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import kernels_cu
from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install

from .cpp_library import foreign_thrust
from .cuda_text import scan
from .preprocess import preprocess, undefined_by
from .project_headers import includes
from .pytorch_names import foreign
from .standard import unknown
from .store import Program
from .system_headers import header

__all__ = ["MARKS", "NO_CLANG", "device_half", "may_have_host_half", "names_host"]

NO_CLANG = f"the text seems to have a host half: {pip_install('import')} (or leave the host functions out)"
# Words that mark code for the GPU. The macros may be of missing headers.
MARKS = frozenset(("__device__", "__global__", "__constant__", "__managed__", "__shared__", "__host_device__"))
MARKS |= {f"{library}_{of}DEVICE" for library in ("C10", "CUTLASS", "CUTE") for of in ("", "HOST_")}
# Names of the host beside those of `std`, PyTorch and Thrust, for which there are lists of what kernels have.
_FOREIGN = re.compile(
    r"\b(?:pybind11|py|cv|boost)\s*::|\bTensor\b|\b(?:namespace\s+\w+\s*=|using\s+namespace)\s*(?:torch|at|c10|pybind11|std)\b"
    r"|\bcuda(?:Stream|Event|Graph\w*|DeviceProp|MemPool)(?:_t)?\b|\b(?:cublas|cudnn|cusparse|cufft|cusolver|nccl)\w*_t\b"
    r"|\b(?:ostream|istream|stringstream|ofstream|ifstream|FILE)\b"
)
_OF_STD_ALONE = re.compile(
    r"(?<!::)(?<!\w)(?:vector|string|map|set|unordered_map|unordered_set|shared_ptr|unique_ptr)\s*[<&*\s]"
)
_MARK = re.compile(r"[;{}]")
_FUNCTION = re.compile(r"\)[^()=]*\Z")
_DECLARED = re.compile(r"(\w+)\s*(?:\(|\Z)")
# A launch, a call of the runtime, and libraries that are not part of CUDA.
_SIGNS = re.compile(r"<<<|\bcuda[A-Z]\w*\s*\(|\b(?:cutlass|cute|glm|Eigen)\s*::")
_CLASS = re.compile(r"\s*(?:typedef\s+)?(?:template\s*<[^{}]*>\s*)?(?:struct|class|union|enum)\b")
_NAME = re.compile(r"[A-Za-z_]\w*")


def may_have_host_half(text: str, headers: Mapping[str, str], defines: Mapping[str, str]) -> bool:
    """Returns whether a text may have code that NVRTC cannot compile and kernels do not need: host code, or device code
    with unknown names. A false alarm costs the time of a parse.

    Args:
        text: CUDA C++.
        headers: the texts of the headers that it includes, by name.
        defines: macros that are defined before the text.
    """
    texts = {"": text, **headers}
    known = frozenset((*texts, *kernels_cu.headers()))
    # A build of a project defines macros that a condition on other macros may remove here.
    return any(_may_have(source, known) for source in texts.values()) or bool(
        preprocess(text, headers, defines).free(texts)
    )


@lru_cache(256)
def _may_have(text: str, known: frozenset[str]) -> bool:
    code, marks = scan(text), {*MARKS, "constexpr"}
    if any(name not in known and header(name) is None for name, *_ in includes(text)):
        return True
    defined = [directive.rest for directive in code.directives if directive.name == "define"]
    if any(_SIGNS.search(piece) or names_host(piece) for piece in (code.bare, *defined)):
        return True
    marks |= {words[0] for macro in defined if not marks.isdisjoint(words := _NAME.findall(macro))}
    at, counts = 0, Counter(_NAME.findall(code.bare))
    for mark in _MARK.finditer(code.bare):
        head, begin, at = code.bare[at : mark.start()], at, mark.end()
        if mark[0] != "{":
            continue
        of_host = _FUNCTION.search(head) and not _CLASS.match(head) and marks.isdisjoint(_NAME.findall(head))
        # A template that no other code names may be of the host. A host compiler would look up its names.
        template = "template" in head and "__global__" not in head
        unread = template and any(counts[name] == 1 for name in _DECLARED.findall(head))
        if (of_host or unread) and code.scope(begin) is not None:
            return True
    return False


def names_host(code: str) -> bool:
    """Returns whether code uses names that NVRTC does not have."""
    patterns = (_FOREIGN, _OF_STD_ALONE, foreign_thrust())
    return any(pattern.search(code) for pattern in patterns) or bool(unknown(code) or foreign(code))


def device_half(
    text: str, headers: Mapping[str, str], defines: Mapping[str, str], options: Sequence[str], names: Iterable[str]
) -> dict[str, str] | None:
    """Returns the part of a text (under ``""``) and of its headers that kernels reach; None if libclang is not
    installed. Lines keep their numbers.

    Args:
        text: CUDA C++.
        headers: the texts of the headers that it includes, by name.
        defines: macros that are defined before the text.
        options: NVRTC options.
        names: the kernels, and other names that are read.
    """
    std = next((o.lstrip("-") for o in options if re.fullmatch(r"--?std=(?:c|gnu)\+\+2\w", o)), "std=c++20")
    given = (
        *(f"-D{name}={value}" for name, value in defines.items()),
        *(f"-U{name}" for name in sorted(undefined_by(options))),
    )
    return _device_half(text, tuple(headers.items()), (*given, f"-{std}"), tuple(dict.fromkeys(names)))


@lru_cache(256)
def _device_half(
    text: str, headers: tuple[tuple[str, str], ...], options: tuple[str, ...], names: tuple[str, ...]
) -> dict[str, str] | None:
    stored = Program("device half", text, headers, options, names)
    if (found := stored.read()) is None:
        from cupyops.importer.slice import sliced_texts

        try:
            found = {"texts": sliced_texts(text, headers, options, names)}
        except MissingDependencyError:
            return None
        stored.write(found)
    return dict(found["texts"])
