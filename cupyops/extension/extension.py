"""The function :func:`from_extension`, which reads the file of a PyTorch C++/CUDA extension."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cupyops.compile.cuda_text import scan
from cupyops.errors import expected
from cupyops.launch.kernel_source import signature_of
from cupyops.launch.signature import Parameter

from .device import device_half
from .host import constants_of, host_functions
from .reading import joined, pieces_of
from .starter import ExtensionParts, starting_file

__all__ = ["Extension", "ExtensionKernel", "from_extension"]


@dataclass(frozen=True)
class ExtensionKernel:
    """A kernel of an extension.

    Attributes:
        name: the name with its namespaces.
        template: the parameters of the template, in C++; ``""`` for a function.
        parameters: the parameters.
        launches: the launches of the host half, without their arguments, in C++.
    """

    name: str
    template: str
    parameters: tuple[Parameter, ...]
    launches: tuple[str, ...]

    def __str__(self) -> str:
        listed = []
        for p in self.parameters:
            layout = "" if p.accessor is None else f", {'up to ' * p.accessor.counted}{p.accessor.rank} dimensions"
            const = "const " if p.pointer and p.const else ""
            listed.append(f"{const}{p.type}{'*' if p.pointer else ''} {p.name}{layout}")
        head = f"template <{' '.join(self.template.split())}> {self.name}" if self.template else self.name
        lines = [head, *(f"    {line}" for line in listed), *(f"    launched by {line}" for line in self.launches)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Extension:
    """The kernels of an extension, and a file to start from.

    Attributes:
        path: the file of the extension.
        text: the text for :class:`~cupyops.Kernel`: the kernels and the declarations that they use.
        kernels: the kernels.
        refused: the names of the kernels that have no translation, each with the reason.
        missing: the names of included files that were not found.
        starter: the text of the starting file: kernels, the host half in Python, and operators.
    """

    path: Path
    text: str
    kernels: tuple[ExtensionKernel, ...]
    refused: dict[str, str]
    missing: tuple[str, ...]
    starter: str

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the starting file, and returns its path.

        Raises:
            FileExistsError: the file exists. It is not overwritten.
            OSError: the file cannot be written.
        """
        path = Path(path)
        with path.open("x", encoding="utf-8") as file:
            file.write(self.starter)
        return path

    def __str__(self) -> str:
        lines = [str(kernel) for kernel in self.kernels]
        lines += [f"{name} has no translation: {why}" for name, why in self.refused.items()]
        lines += [f"{name} was not found: give its folder as include=[...]" for name in self.missing]
        return "\n".join(lines)


def from_extension(
    path: str | os.PathLike[str], *, include: Sequence[str | os.PathLike[str]] = (), namespace: str | None = None
) -> Extension:
    """Reads the ``.cu`` file of a PyTorch C++/CUDA extension.

    The device half becomes a text for :class:`~cupyops.Kernel`: the ``__global__`` functions and the declarations that
    they use. Templates and packed accessors stay as they are, since a launch fills an accessor from the array. The host
    half becomes Python: functions that allocate, launch and return, and an :class:`~cupyops.torch.Operator` for each.
    C++ without a translation stays as a comment.

    Args:
        path: the file.
        include: folders of files that it includes, in addition to its own folder.
        namespace: the namespace of the operators; by default the name of the file.

    Raises:
        OSError: a file cannot be read.
        TypeError: `path` is no path, or `include` is no list of paths.
        ValueError: the file is not UTF-8, has no kernel, or none of its kernels has a translation. The message names the
            reasons. Or `namespace` is no identifier.

    Example:
        >>> extension = from_extension("lltm_cuda_kernel.cu")  # doctest: +SKIP
        >>> print(extension)  # doctest: +SKIP
        >>> extension.write("lltm.py")  # doctest: +SKIP
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(expected("from_extension", "path", "be the path of a .cu file", type(path).__name__))
    if isinstance(include, (str, os.PathLike)) or not all(isinstance(folder, (str, os.PathLike)) for folder in include):
        raise TypeError(expected("from_extension", "include", "be a list of folders", repr(include)))
    path, folders = Path(path), [Path(folder) for folder in include]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(expected("from_extension", "include", "name folders", str(folder)))
    space = re.sub(r"\W", "_", path.stem) if namespace is None else namespace
    space = f"_{space}" if space[:1].isdigit() else space
    if not space.isidentifier():
        raise ValueError(expected("from_extension", "namespace", "be an identifier", repr(space)))
    whole = joined(path, folders)
    pieces = pieces_of(whole.text)
    if not any(not f.special for f in scan(whole.text).functions):
        lacking = f"; it includes {', '.join(whole.missing)}, which was not found" if whole.missing else ""
        raise ValueError(
            expected("from_extension", "path", "name a file with a __global__ function", f"{path}{lacking}")
        )
    device = device_half(whole, pieces)
    if not device.functions:
        reasons = "; ".join(f"{name}: {why}" for name, why in device.refused.items())
        raise ValueError(
            expected("from_extension", "path", "name a file with a kernel that NVRTC can have", f"{path}: {reasons}")
        )
    functions = host_functions(whole.text, pieces)
    parts = ExtensionParts(
        path.name,
        space,
        device.text,
        device.functions,
        device.refused,
        whole.missing,
        functions,
        constants_of(whole.text, pieces),
    )
    kernels = tuple(
        ExtensionKernel(
            f.path,
            f.template or "",
            signature_of(device.text, f.path).parameters,
            tuple(x.shown for host in functions for x in host.launches if x.kernel == f.name),
        )
        for f in device.functions
    )
    return Extension(path, device.text, kernels, device.refused, whole.missing, starting_file(parts))
