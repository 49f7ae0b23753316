"""The compiled code of a kernel: PTX, machine code, registers and spilled bytes."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cupyops.compile import toolchain
from cupyops.compile.cache import Binary
from cupyops.compile.compiler import binary_for, supported_architectures, target_for
from cupyops.dtypes import dtype_names
from cupyops.errors import CompileError, LaunchError, MissingDependencyError

from . import driver

__all__ = ["Listed"]

_USUAL = 90  # the architecture on a machine without a GPU
_TOOLS = (("cuobjdump", "-sass"), ("nvdisasm", "-c"))


class Listed:
    """The part of a :class:`.kernel.Kernel` that shows its compiled code."""

    def ptx(self, dtype: Any = None, architecture: int | None = None) -> str:
        """Returns the PTX that NVRTC makes of the kernel.

        Args:
            dtype: of the undeclared types; by default the newest of the calls so far, or the first of ``dtypes``.
            architecture: the compute capability, as major * 10 + minor; by default that of the GPU, or 90 without a GPU.

        Raises:
            CompileError: NVRTC refuses the text.
            LaunchError: the kernel does not run on the architecture.
        """
        return _binary(self, dtype, architecture, assembly=True).code.rstrip(b"\0").decode()

    def sass(self: Any, dtype: Any = None, architecture: int | None = None) -> str:
        """Returns the machine code, by ``cuobjdump`` or ``nvdisasm`` of a CUDA toolkit. The arguments are those of
        :meth:`ptx`.

        Raises:
            MissingDependencyError: none of the two tools is installed.
        """
        found = [(tool, option) for name, option in _TOOLS if (tool := _tool(name))]
        if not found:
            raise MissingDependencyError(
                f"{self.name}.sass() needs cuobjdump or nvdisasm of a CUDA toolkit, in PATH or in CUDA_HOME/bin, and finds "
                f"neither; {self.name}.ptx() needs no tool"
            )
        binary = _binary(self, dtype, architecture)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernel.cubin")
            path.write_bytes(binary.code + b"\0")  # CuPy's getCUBIN cuts the last byte, as if it ended a string
            tool, option = found[0]
            done = subprocess.run([tool, option, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{tool} {option} failed on {self.name}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    @property
    def registers(self) -> int:
        """Registers of a thread, for the dtype and the architecture that :meth:`ptx` takes by default."""
        return self._resources[0]

    @property
    def spills(self) -> int:
        """Bytes of registers that a thread stores to and loads from local memory; 0 is best."""
        return self._resources[1]

    @property
    def _resources(self: Any) -> tuple[int, int]:
        """Registers, and spilled bytes.

        Raises:
            LaunchError: the GPU is newer than NVRTC. The driver then compiles the kernel, and reports neither.
        """
        binary = _binary(self, None, None)
        name = self.source.named(binary)
        if name not in binary.resources:
            raise LaunchError(f"the compiler's log has no report of {self.name}: the driver compiles it for this GPU")
        return binary.resources[name]


def _types(kernel: Any, dtype: Any) -> Mapping[str, str]:
    """Returns the dtypes of the undeclared types: `dtype` for all, or the newest of the calls so far, or the first declared ones."""
    if dtype is not None:
        (name,) = dtype_names(kernel.name, dtype)
        return {known: name if known.isidentifier() else "" for known in kernel.signature.bindings}
    met: list[Mapping[str, str]] = list(kernel.met.values())
    return met[-1] if met else next(kernel.type_choices())


def _architecture(kernel: Any, architecture: int | None) -> int:
    if architecture is None:
        architecture = driver.capability(0) if toolchain.gpu_count() else max(_USUAL, kernel.hardware.since)
    if not kernel.runs_on(architecture):
        raise LaunchError(
            f"{kernel.name} needs a GPU of {kernel.hardware}, and architecture={architecture} is asked for"
        )
    return architecture


def _binary(kernel: Any, dtype: Any, architecture: int | None, *, assembly: bool = False) -> Binary:
    types, capability = _types(kernel, dtype), _architecture(kernel, architecture)
    text, what, options = kernel.final_text(types), kernel.describe(types), kernel.options
    target = target_for(capability)
    if assembly:
        known = [a for a in supported_architectures() if a <= capability]
        target = f"compute_{max(known)}{'a' if kernel.hardware.exactly else ''}"
        options = [option for option in options if not option.startswith("-arch=")]
    try:
        return binary_for(text, what, target, options)
    except CompileError as error:
        raise kernel.source.located(error) from error.__cause__


def _tool(name: str) -> str | None:
    homes = [os.environ[variable] for variable in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(variable)]
    folders = [str(Path(home, "bin")) for home in (*homes, "/usr/local/cuda")]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
