"""PyTorch's ``torch.utils.cpp_extension.load_inline`` and ``load`` without a compiler: kernels go to NVRTC, and the host
code of the sources becomes Python (:mod:`cupyops.importer`).

>>> from cupyops.cpp_extension import load_inline
>>> source = "at::Tensor sin_add(at::Tensor x, at::Tensor y) { return x.sin() + y.sin(); }"
>>> module = load_inline("inline_extension", source, functions="sin_add")  # doctest: +SKIP

:func:`replaced` gives both to programs that import PyTorch's, as does ``python -m cupyops run script.py``.
"""

import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.utils.cpp_extension as theirs
from torch.overrides import TorchFunctionMode

from . import simulator
from .errors import CompileError, expected
from .importer.binding import Module, bound
from .importer.errors import NotTranslated
from .importer.program import Program, program

__all__ = ["fallback", "load", "load_inline", "replaced", "simulated"]

fallback: bool = True
"""Whether sources that have no whole translation go to PyTorch's builder, on a machine with nvcc and ninja. A warning says
why. Otherwise a function raises :class:`~cupyops.importer.errors.NotTranslated` where its translation ends."""

_BUILDERS = (theirs.load, theirs.load_inline)

# Flags of nvcc that change what kernels compute, in NVRTC's form. `--ftz true` is `--ftz=true`.
_HONOURED = re.compile(r"--?(use_fast_math|ftz|fmad|prec-div|prec-sqrt|maxrregcount|std)(?:=(\S+))?")
_MACRO = re.compile(r"(?:-([DU])|--(define|undefine)-macro(?:=|$))(.*)")
_FOLDER = re.compile(r"(?:-I|-isystem|--include-path(?:=|$)|--system-include(?:=|$))(.*)")
# Flags whose value may be the next word.
_WITH_VALUE = re.compile(
    r"-gencode|--?generate-code|-arch|--gpu-architecture|-code|--gpu-code|-X\w+|--\w+-options|-ccbin|--compiler-bindir|-t|--threads"
    r"|-include|--pre-include|-[lLx]|-diag-\w+|--diag-\w+"
)


def _flags(given: Sequence[str]) -> tuple[list[str], list[Path], list[str]]:
    """Returns the options for the front end and NVRTC, the folders of headers, and the flags without an effect."""
    words = [word for flag in given for word in shlex.split(flag)]
    options: list[str] = []
    folders: list[Path] = []
    ignored: list[str] = []

    def value(found: str | None, what: str) -> str:
        if found:
            return found
        if not words:
            raise ValueError(f"the flag {what} has no value")
        return words.pop(0)

    while words:
        word = words.pop(0)
        if found := _MACRO.fullmatch(word):
            options.append(f"-{found[1] or found[2][0].upper()}{value(found[3], word)}")
        elif found := _FOLDER.fullmatch(word):
            folders.append(Path(value(found[1], word)))
        elif found := _HONOURED.fullmatch(word):
            option = f"--{found[1]}" if found[1] == "use_fast_math" else f"--{found[1]}={value(found[2], word)}"
            option = option.replace("--std=", "-std=")
            (ignored if option.startswith("-std=gnu") else options).append(option)
        else:
            if _WITH_VALUE.fullmatch(word) and words and not words[0].startswith("--"):
                word += f" {words.pop(0)}"
            ignored.append(word)
    return options, folders, ignored


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
) -> Any:
    """Loads a PyTorch extension from texts, as ``torch.utils.cpp_extension.load_inline`` does.

    The texts of C++ are one source of the program, those of CUDA another: macros and static names are their own.

    Args:
        name: the name of the module, and ``TORCH_EXTENSION_NAME``.
        cpp_sources: C++ text or texts: declarations of functions that `cuda_sources` defines, or whole functions.
        cuda_sources: CUDA text or texts.
        functions: the names of the functions of the module, or their docstrings by name; the sources then need no
            ``PYBIND11_MODULE``.
        extra_cflags: flags. ``-D``, ``-U``, ``-I``, ``-std`` and flags about arithmetic and registers, such as
            ``--use_fast_math``, ``-ftz=true``, ``--maxrregcount=32``, have their effect. The rest has none.
        extra_cuda_cflags: the same.
        extra_include_paths: folders of headers.
        verbose: names the flags that have no effect, on stderr.
        is_python_module: False returns None, after the sources have registered their operators with ``torch.library``.

    The other arguments are those of a build, which does not happen.

    Returns:
        The module.

    Raises:
        CompileError: the sources are not valid C++.
        RuntimeError: the sources do not define one of `functions`.
        ImportError: the sources define no module, and `functions` is None.
        NotTranslated: raised by a call; a statement of the function has no translation.
        TypeError: a source is not a text.
        ValueError: `functions` is neither a list nor a dict, or a flag lacks its value.
    """
    arguments = dict(locals())
    if functions is not None and not isinstance(functions, (str, list, tuple, dict)):
        raise ValueError(f"Expected 'functions' to be a list or dict, but was {type(functions)}")
    names = [functions] if isinstance(functions, str) else functions
    docs = dict(names) if isinstance(names, Mapping) else {f: f for f in names or ()}
    texts = [
        (f"{name}.{ending}", _joined(argument, given))
        for ending, argument, given in (("cpp", "cpp_sources", cpp_sources), ("cu", "cuda_sources", cuda_sources))
        if given
    ]
    return _loaded(name, texts, None if functions is None else docs, arguments, theirs_at=1)


def load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
) -> Any:
    """Loads a PyTorch extension from files, as ``torch.utils.cpp_extension.load`` does.

    Args:
        sources: paths of ``.cpp`` and ``.cu`` files, which are one program.
        is_standalone: True is an executable, which only PyTorch's builder makes.

    The other arguments, the result and the errors are those of :func:`load_inline`.

    Raises:
        OSError: a file cannot be read.
        NotImplementedError: `is_standalone` is True, and PyTorch's builder cannot build.
    """
    arguments = dict(locals())
    paths = [Path(p) for p in ([sources] if isinstance(sources, (str, os.PathLike)) else sources)]
    paths.sort(key=lambda path: path.suffix in (".cu", ".cuh"))
    texts = [(str(path), path.read_text(encoding="utf-8")) for path in paths]
    folders = tuple(dict.fromkeys(path.absolute().parent for path in paths))
    return _loaded(name, texts, None, arguments, theirs_at=0, folders=folders)


def _joined(argument: str, sources: str | Sequence[str]) -> str:
    texts = [sources] if isinstance(sources, str) else sources
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise TypeError(expected("load_inline", argument, "be a string, or a list of strings", type(sources).__name__))
    return "\n".join(texts)


def _loaded(
    name: str,
    texts: Sequence[tuple[str, str]],
    docs: Mapping[str, str] | None,
    arguments: dict[str, Any],
    theirs_at: int,
    folders: Sequence[Path] = (),
) -> Any:
    """Returns the module of the texts, or the module that PyTorch's builder makes from the same arguments.

    Args:
        docs: the docstrings of the functions of the module by name, or None for what the texts bind.
        theirs_at: the place of PyTorch's function in _BUILDERS.
        folders: the folders of the sources.
    """
    options, included, ignored = _flags([*(arguments["extra_cflags"] or ()), *(arguments["extra_cuda_cflags"] or ())])
    ignored += [flag for flag in arguments["extra_ldflags"] or () if flag]
    if ignored and arguments["verbose"]:
        print(f"{name}: flags without an effect: {' '.join(dict.fromkeys(ignored))}", file=sys.stderr)
    include = [*included, *map(Path, arguments["extra_include_paths"] or ()), *folders]
    options.append(f"-DTORCH_EXTENSION_NAME={name}")
    made: Program | None = None
    try:
        if arguments.get("is_standalone") or arguments.get("sycl_sources"):
            raise NotTranslated(
                f"{name}: {'an executable' if arguments.get('is_standalone') else 'SYCL'} has no translation"
            )
        made = program(name, texts, functions=None if docs is None else list(docs), options=options, include=include)
        problem = _untranslated(made, docs)
    except (NotTranslated, CompileError) as error:
        if not _builds():
            raise
        problem = str(error)
    if made is None or (problem and _builds()):
        warnings.warn(f"{name}: PyTorch's builder compiles these sources: {problem}", RuntimeWarning, stacklevel=3)
        return _BUILDERS[theirs_at](**arguments)
    return _module(name, made, docs) if arguments["is_python_module"] else None


def _builds() -> bool:
    """Returns whether PyTorch's builder takes over. It needs nvcc and ninja."""
    return fallback and theirs.CUDA_HOME is not None and theirs.is_ninja_available()


def _untranslated(made: Program, docs: Mapping[str, str] | None) -> str:
    """Returns where and why functions that Python may call have no complete translation, or ``""``."""
    wanted = set(docs) if docs is not None else None
    listed = [
        f"{place}: {why}"
        for function, place, why in made.untranslated
        # A name that is not a function of the module may be called by one.
        if wanted is None or function in wanted or function not in made.functions
    ]
    return "; ".join(listed)


def _module(name: str, made: Program, docs: Mapping[str, str] | None) -> ModuleType:
    if docs is None and not made.bound:
        raise ImportError(f"dynamic module does not define module export function (PyInit_{name})", name=name)
    module = _of_members(name, made.bound)
    for function, doc in (docs or {}).items():
        if function not in made.functions:
            why = next((f": {why}" for lacking, _, why in made.untranslated if lacking == function), "")
            raise RuntimeError(f"Error building extension {name!r}: the sources do not define {function!r}{why}")
        vars(module)[function] = bound(made.functions[function], (doc,), name=function)
        vars(module)[function].__module__ = name
    vars(module)["__program__"] = made
    return module


def _of_members(name: str, members: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    for key, value in members.items():
        vars(module)[key] = _of_members(value.name, value.members) if isinstance(value, Module) else value
        if isinstance(value, FunctionType):
            value.__module__ = name
    return module


@contextmanager
def replaced() -> Iterator[None]:
    """Puts :func:`load_inline` and :func:`load` in the place of PyTorch's inside a ``with`` block.

    They replace the functions of ``torch.utils.cpp_extension``, also where a module has imported them by name.

    >>> with replaced():
    ...     from torch.utils.cpp_extension import load_inline
    >>> load_inline.__module__
    'cupyops.cpp_extension'
    """
    ours = {id(builder): own for builder, own in zip(_BUILDERS, (load, load_inline), strict=True)}
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for module in [*sys.modules.values()]:
        names = getattr(module, "__dict__", {})
        changed += [(names, key, value) for key, value in [*names.items()] if id(value) in ours]
    for names, key, value in changed:
        names[key] = ours[id(value)]
    try:
        yield
    finally:
        for names, key, value in changed:
            names[key] = value


class _OnCPU(TorchFunctionMode):
    """Leaves tensors on the CPU where a program asks for a GPU: ``x.cuda()``, ``x.to("cuda")``, ``x.to(0)``, ``device=0``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:  # a device itself stays: the host code of a program looks at it
            return func(*args, **(kwargs or {}))
        named = {key: _cpu(value, key == "device") for key, value in (kwargs or {}).items()}
        to = getattr(func, "__name__", "") in ("to", "_parse_to")  # of a tensor, of a module
        return func(*(_cpu(value, to) for value in args), **named)


def _cpu(value: Any, is_device: bool) -> Any:
    """Returns the CPU in place of a GPU. A number is a GPU where `is_device` says that it is a device."""
    if is_device and type(value) is int:
        return "cpu"
    if isinstance(value, str):
        return "cpu" if re.fullmatch(r"cuda(:\d+)?", value) else value
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


@contextmanager
def simulated(*, sanitize: bool | None = None, timeout: float | None = None) -> Iterator[None]:
    """Runs programs that ask for a GPU on the CPU inside a ``with`` block, with their kernels in the simulator.

    Tensors stay on the CPU: ``x.cuda()`` and ``module.cuda()`` return their object, ``"cuda"`` or a number as the device of a function
    of PyTorch is ``"cpu"``, and ``torch.cuda.synchronize()`` does nothing. The rest of ``torch.cuda`` is as without a
    GPU: ``torch.cuda.is_available()`` is False, and events raise. The devices hold for the thread of the block.

    Args:
        sanitize: what is checked; see :func:`cupyops.simulate`.
        timeout: seconds for a launch; see :func:`cupyops.simulate`.
    """
    synchronize = torch.cuda.synchronize
    torch.cuda.synchronize = lambda device=None: None
    try:
        with simulator.simulate(sanitize=sanitize, timeout=timeout), _OnCPU():
            yield
    finally:
        torch.cuda.synchronize = synchronize
