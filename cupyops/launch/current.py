"""The device and the stream of a call without arrays, and whether a CUDA graph is being captured."""

from collections.abc import Iterable

from cupyops.arrays import LIBRARIES, ArrayLibrary, Info, host, in_use
from cupyops.compile import toolchain

__all__ = ["capturing", "current_gpu", "place"]


def place(kernel: str) -> tuple[ArrayLibrary, Info]:
    """Returns where a launch without arrays runs: in the simulator while it is on, else on the current GPU.

    The launch is on PyTorch's current stream if PyTorch has used a GPU in this process, else on CuPy's.

    Raises:
        ValueError: there is no GPU, and the simulator is off.
    """
    if host().enabled():
        import numpy

        return LIBRARIES[numpy.ndarray], Info("uint8", (), (), 0, "cpu", None, 0)
    return in_use(), Info("uint8", (), (), 0, "cuda", current_gpu(kernel), 0)


def current_gpu(kernel: str) -> int:
    """Returns the index of the calling thread's current GPU.

    Raises:
        ValueError: there is no GPU.
    """
    try:
        return int(toolchain.cupy().cuda.runtime.getDevice())
    except toolchain.cupy().cuda.runtime.CUDARuntimeError as error:
        raise ValueError(
            f"{kernel}: no array of the call says where it runs, and there is no current GPU ({error}); "
            f"cupyops.simulate() runs kernels on the CPU"
        ) from None


def capturing(devices: Iterable[int], *more: ArrayLibrary) -> bool:
    """Returns whether a CUDA graph is captured on the current stream of one of the GPUs, of an array library that the
    process has used or of one of `more`."""
    libraries = {one.name: one for one in (*LIBRARIES.values(), *more)}.values()
    return any(_captures(one.stream(device)) for one in libraries for device in devices)


def _captures(stream: int) -> bool:
    try:
        return bool(toolchain.cupy().cuda.runtime.streamIsCapturing(stream))
    except Exception as error:  # CuPy's error for a query of the default stream while another stream captures
        if "StreamCapture" in str(error):
            return True
        raise
