"""Translations of the CUDA runtime's names for errors and devices."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from cupyops.arrays import host
from cupyops.compile import toolchain

from . import cuda_device_code  # noqa: F401  its C++ text comes first
from .cuda import enum
from .launches import errors
from .words import declare, word

__all__ = ["SIMULATED", "device_properties", "device_synchronize", "done", "error_string", "on_gpu"]


_ERRORS = {
    "Success": (0, "no error"),
    "ErrorInvalidValue": (1, "invalid argument"),
    "ErrorMemoryAllocation": (2, "out of memory"),
    "ErrorInvalidConfiguration": (9, "invalid configuration argument"),
    "ErrorInvalidDevice": (101, "invalid device ordinal"),
    "ErrorNotReady": (600, "device not ready"),
    "ErrorIllegalAddress": (700, "an illegal memory access was encountered"),
    "ErrorLaunchOutOfResources": (701, "too many resources requested for launch"),
    "ErrorLaunchFailure": (719, "unspecified launch failure"),
    "ErrorNotSupported": (801, "operation not supported"),
    "ErrorUnknown": (999, "unknown error"),
}
enum("cudaError", {name: number for name, (number, _) in _ERRORS.items()}, "cuda")
declare(
    "typedef cudaError cudaError_t; typedef struct CUstream_st* cudaStream_t; typedef cudaStream_t CUstream; "
    "typedef struct CUevent_st* cudaEvent_t;"
)


word("CUstream_st")(object)  # a handle is a pointer to a class without members


def done(error: int = 0) -> int:
    """Returns a result of the runtime API. ``cudaGetLastError`` returns it if it is an error."""
    errors.last = error or errors.last
    return error


@word("cudaGetLastError", "cudaError_t cudaGetLastError();")
def get_last_error() -> int:
    found, errors.last = errors.last, 0
    return found


@word("cudaPeekAtLastError", "cudaError_t cudaPeekAtLastError();")
def peek_at_last_error() -> int:
    return errors.last


@word("cudaGetErrorString", "const char* cudaGetErrorString(cudaError_t);")
def error_string(error: int) -> str:
    return next((text for number, text in _ERRORS.values() if number == error), "unrecognized error code")


@word("cudaGetErrorName", "const char* cudaGetErrorName(cudaError_t);")
def error_name(error: int) -> str:
    return next((f"cuda{name}" for name, (number, _) in _ERRORS.items() if number == error), "unrecognized error code")


def on_gpu() -> bool:
    """Returns whether the names act on a GPU, and not on the simulated one."""
    return not host().enabled() and torch.cuda.is_available()


@word("cudaDeviceReset", "cudaError_t cudaDeviceReset();")
@word("cudaDeviceSynchronize", "cudaError_t cudaDeviceSynchronize();")
def device_synchronize() -> int:
    if on_gpu():
        torch.cuda.synchronize()
    return 0


@word("cudaSetDevice", "cudaError_t cudaSetDevice(int);")
def set_device(device: int) -> int:
    if not 0 <= device < _device_count():
        return done(101)
    if on_gpu():
        torch.cuda.set_device(device)
    return 0


@word("cudaGetDevice", "cudaError_t cudaGetDevice(int*);")
def get_device(device: Any) -> int:
    device[0] = torch.cuda.current_device() if on_gpu() else 0
    return 0


def _device_count() -> int:
    return torch.cuda.device_count() if on_gpu() else 1


@word("cudaGetDeviceCount", "cudaError_t cudaGetDeviceCount(int*);")
def get_device_count(count: Any) -> int:
    count[0] = _device_count()
    return 0


SIMULATED: dict[str, Any] = {
    "name": "simulated GPU", "totalGlobalMem": 80 << 30, "sharedMemPerBlock": 48 << 10, "regsPerBlock": 65536,
    "warpSize": 32, "memPitch": 2**31 - 1, "maxThreadsPerBlock": 1024, "maxThreadsDim": (1024, 1024, 64),
    "maxGridSize": (2**31 - 1, 65535, 65535), "clockRate": 1_980_000, "totalConstMem": 64 << 10, "major": 9, "minor": 0,
    "textureAlignment": 512, "multiProcessorCount": 4, "kernelExecTimeoutEnabled": 0, "integrated": 0,
    "canMapHostMemory": 1, "computeMode": 0, "concurrentKernels": 1, "ECCEnabled": 1, "pciBusID": 0, "pciDeviceID": 0,
    "pciDomainID": 0, "asyncEngineCount": 3, "unifiedAddressing": 1, "memoryClockRate": 2_619_000,
    "memoryBusWidth": 5120, "l2CacheSize": 50 << 20, "maxThreadsPerMultiProcessor": 2048,
    "sharedMemPerMultiprocessor": 228 << 10, "regsPerMultiprocessor": 65536, "managedMemory": 1,
    "cooperativeLaunch": 1, "sharedMemPerBlockOptin": 227 << 10, "maxBlocksPerMultiProcessor": 32,
    "reservedSharedMemPerBlock": 1 << 10, "persistingL2CacheMaxSize": 30 << 20,
}  # fmt: skip
_LONG = frozenset(
    ("totalGlobalMem", "sharedMemPerBlock", "memPitch", "totalConstMem", "textureAlignment")
    + ("sharedMemPerMultiprocessor", "sharedMemPerBlockOptin", "reservedSharedMemPerBlock")
)


def _member(name: str, value: Any) -> str:
    kind = "char" if isinstance(value, str) else "size_t" if name in _LONG else "int"
    return f"{kind} {name}{'[256]' if isinstance(value, str) else '[3]' if isinstance(value, tuple) else ''};"


@word("cudaDeviceProp", f"struct cudaDeviceProp {{ {' '.join(_member(*item) for item in SIMULATED.items())} }};")
class Properties:
    """The properties of a GPU, by CUDA's names."""

    def __init__(self) -> None:
        for name, value in SIMULATED.items():
            setattr(self, name, "" if isinstance(value, str) else _list([0, 0, 0]) if isinstance(value, tuple) else 0)

    def copy(self) -> "Properties":
        made = Properties()
        made.assign(self)
        return made

    def assign(self, other: "Properties") -> None:
        for name, value in vars(other).items():
            setattr(self, name, value.copy() if hasattr(value, "copy") else value)


def _list(values: Sequence[Any]) -> Any:
    from .containers import Vector  # late: its words are declared after those of CUDA

    return Vector(list(values))


def device_properties(device: int = -1) -> Properties:
    """Returns the properties of a GPU, by default of the current one; in the simulator those of the simulated GPU."""
    if on_gpu():
        return _gpu_properties(torch.cuda.current_device() if device < 0 else device).copy()
    return _properties({**SIMULATED, "multiProcessorCount": host().multiprocessors})


@cache
def _gpu_properties(device: int) -> Properties:
    found = toolchain.cupy().cuda.runtime.getDeviceProperties(device)
    return _properties({**SIMULATED, **{name: v for name, v in found.items() if name in SIMULATED}})


def _properties(values: dict[str, Any]) -> Properties:
    made = Properties()
    for name, value in values.items():
        value = value.decode() if isinstance(value, bytes) else value
        setattr(made, name, _list(value) if isinstance(value, (tuple, list)) else value)
    return made


@word("cudaGetDeviceProperties", "cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);")
def get_device_properties(properties: Any, device: int) -> int:
    if not 0 <= device < _device_count():
        return done(101)
    properties[0].assign(device_properties(device))
    return 0


# CUDA's numbers of attributes, with the properties that the simulated GPU has for them.
_ATTRIBUTES: dict[str, tuple[int, Any]] = {
    "MaxThreadsPerBlock": (1, "maxThreadsPerBlock"), "MaxBlockDimX": (2, 1024), "MaxBlockDimY": (3, 1024),
    "MaxBlockDimZ": (4, 64), "MaxGridDimX": (5, 2**31 - 1), "MaxGridDimY": (6, 65535), "MaxGridDimZ": (7, 65535),
    "MaxSharedMemoryPerBlock": (8, "sharedMemPerBlock"), "TotalConstantMemory": (9, "totalConstMem"),
    "WarpSize": (10, "warpSize"), "MaxRegistersPerBlock": (12, "regsPerBlock"), "ClockRate": (13, "clockRate"),
    "MultiProcessorCount": (16, "multiProcessorCount"), "MemoryClockRate": (36, "memoryClockRate"),
    "GlobalMemoryBusWidth": (37, "memoryBusWidth"), "L2CacheSize": (38, "l2CacheSize"),
    "MaxThreadsPerMultiProcessor": (39, "maxThreadsPerMultiProcessor"), "ComputeCapabilityMajor": (75, "major"),
    "ComputeCapabilityMinor": (76, "minor"),
    "MaxSharedMemoryPerMultiprocessor": (81, "sharedMemPerMultiprocessor"),
    "MaxRegistersPerMultiprocessor": (82, "regsPerMultiprocessor"), "ManagedMemory": (83, 1),
    "CooperativeLaunch": (95, 1), "MaxSharedMemoryPerBlockOptin": (97, "sharedMemPerBlockOptin"),
    "MaxBlocksPerMultiprocessor": (106, "maxBlocksPerMultiProcessor"),
    "ReservedSharedMemoryPerBlock": (111, "reservedSharedMemPerBlock"), "MemoryPoolsSupported": (115, 1),
}  # fmt: skip
enum("cudaDeviceAttr", {name: number for name, (number, _) in _ATTRIBUTES.items()}, "cudaDevAttr")


@word("cudaDeviceGetAttribute", "cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int);")
def device_get_attribute(value: Any, attribute: int, device: int) -> int:
    if not 0 <= device < _device_count():
        return done(101)
    if on_gpu():
        value[0] = int(toolchain.cupy().cuda.runtime.deviceGetAttribute(attribute, device))
        return 0
    found = next((v for number, v in _ATTRIBUTES.values() if number == attribute), None)
    value[0] = getattr(device_properties(device), found) if isinstance(found, str) else found
    return 0
