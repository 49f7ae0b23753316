"""Translations of PyTorch's C++ names for guards, streams and GPUs."""

from collections.abc import Callable
from typing import Any

import torch

from . import tensors  # noqa: F401  its C++ text comes first
from .cuda_devices import device_properties
from .devices import simulated
from .references import Pointer, Variable
from .words import declare, methods, word

__all__ = ["no_gpu"]


class _Guard:
    """Changes a setting at its construction, and restores it at the end of its block."""

    _back: Callable[[], Any] | None = None

    def close(self) -> None:
        back, self._back = self._back, None
        if back is not None:
            back()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()


@word(
    "c10::cuda::CUDAGuard",
    "struct CUDAGuard { explicit CUDAGuard(Device); explicit CUDAGuard(DeviceIndex); CUDAGuard(const CUDAGuard&) = delete;"
    " void set_device(Device); void set_index(DeviceIndex); void reset_device(Device); Device current_device() const;"
    " Device original_device() const; };"
    "struct OptionalCUDAGuard { OptionalCUDAGuard(); explicit OptionalCUDAGuard(std::optional<Device>);"
    " explicit OptionalCUDAGuard(std::optional<DeviceIndex>); explicit OptionalCUDAGuard(Device);"
    " explicit OptionalCUDAGuard(DeviceIndex);"
    " OptionalCUDAGuard(const OptionalCUDAGuard&) = delete; void set_device(Device); void set_index(DeviceIndex); void reset(); };"
    "} } namespace at { namespace cuda { using namespace c10::cuda; } } namespace torch { namespace cuda {",
)
class CUDAGuard(_Guard):
    """Makes a GPU the current one. Host memory has none."""

    def __init__(self, device: Any = None) -> None:
        self._first = -1 if simulated() or not torch.cuda.is_available() else torch.cuda.current_device()
        if device is not None:
            self.set_device(device)

    def set_device(self, device: Any) -> None:
        index = device.index if isinstance(device, torch.device) else device
        if self._first >= 0 and index is not None and index >= 0:
            self._back = lambda first=self._first: torch.cuda.set_device(first)
            torch.cuda.set_device(index)

    set_index = reset_device = set_device
    reset = _Guard.close

    def original_device(self) -> torch.device:
        return torch.device("cuda", max(self._first, 0))

    def current_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device() if self._first >= 0 else 0)


word("c10::cuda::OptionalCUDAGuard")(CUDAGuard)


@word("c10::cuda::CUDAStreamGuard")
class CUDAStreamGuard(_Guard):
    """Makes a stream the current one."""

    def __init__(self, stream: Any) -> None:
        self._stream, before = stream, None if stream is None else torch.cuda.current_stream()
        if stream is not None:
            torch.cuda.set_stream(stream)
            self._back = lambda: torch.cuda.set_stream(before)  # type: ignore[arg-type]  # there is one

    def current_stream(self) -> Any:
        return self._stream


word(
    "c10::DeviceGuard",
    "struct DeviceGuard { explicit DeviceGuard(Device); };"
    " struct OptionalDeviceGuard { OptionalDeviceGuard(); explicit OptionalDeviceGuard(std::optional<Device>); };",
)(CUDAGuard)
word("c10::OptionalDeviceGuard")(CUDAGuard)


@word("at::NoGradGuard", "struct NoGradGuard { NoGradGuard(); };")
class NoGradGuard(_Guard):
    """Autograd does not record."""

    def __init__(self, enabled: bool = False) -> None:
        before = torch.is_grad_enabled()
        self._back = lambda: torch.set_grad_enabled(before)
        torch.set_grad_enabled(enabled)


class _BelowAutograd(NoGradGuard):
    def __init__(self, enabled: bool = True) -> None:
        super().__init__(not enabled)


word("at::AutoGradMode", "struct AutoGradMode { explicit AutoGradMode(bool); };")(NoGradGuard)
for _name in (
    "AutoDispatchBelowADInplaceOrView",
    "AutoDispatchBelowAutograd",
    "AutoNonVariableTypeMode",
):
    # These guards exclude autograd, so nothing is recorded.
    word(f"at::{_name}", f"struct {_name} {{ explicit {_name}(bool = true); }};")(_BelowAutograd)
word("c10::InferenceMode", "struct InferenceMode { explicit InferenceMode(bool = true); };")(_BelowAutograd)


@word(
    "c10::cuda::CUDAStream",
    "struct CUDAStream { cudaStream_t stream() const; operator cudaStream_t() const; DeviceIndex device_index() const; int64_t id() const;"
    " void synchronize() const; bool query() const; Device device() const; bool operator==(const CUDAStream&) const; };"
    "CUDAStream getCurrentCUDAStream(DeviceIndex = -1); CUDAStream getDefaultCUDAStream(DeviceIndex = -1);"
    "CUDAStream getStreamFromPool(bool high_priority = false, DeviceIndex = -1); void setCurrentCUDAStream(CUDAStream);"
    "struct CUDAStreamGuard { explicit CUDAStreamGuard(CUDAStream); CUDAStreamGuard(const CUDAStreamGuard&) = delete;"
    " CUDAStream current_stream() const; };"
    "DeviceIndex current_device(); DeviceIndex device_count(); void device_synchronize(); void set_device(DeviceIndex);"
    "int ExchangeDevice(int); int MaybeExchangeDevice(int); void SetDevice(int); void MaybeSetDevice(int);",
    methods="c10::cuda::CUDAStream_",
)
def _stream(stream: Any = None) -> Any:
    return stream


def no_gpu() -> bool:
    return simulated() or not torch.cuda.is_available()


def _index(index: int) -> int | None:
    return index if index >= 0 else None


# A CUDAStream and a cudaStream_t are PyTorch's stream; None where no GPU is.
methods(
    "c10::cuda::CUDAStream_",
    {
        "stream": lambda stream: stream,
        "id": lambda stream: 0 if stream is None else stream.stream_id,
        "device_index": lambda stream: 0 if stream is None else stream.device_index,
        "device": lambda stream: torch.device("cuda", 0) if stream is None else stream.device,
        "synchronize": lambda stream: None if stream is None else stream.synchronize(),
        "query": lambda stream: stream is None or stream.query(),
    },
)
methods(
    "c10::cuda",
    {
        "getCurrentCUDAStream": lambda index=-1: None if no_gpu() else torch.cuda.current_stream(_index(index)),
        "getDefaultCUDAStream": lambda index=-1: None if no_gpu() else torch.cuda.default_stream(_index(index)),
        "getStreamFromPool": lambda high=False, index=-1: (
            None if no_gpu() else torch.cuda.Stream(_index(index), priority=-1 if high else 0)
        ),
        "setCurrentCUDAStream": lambda stream: None if stream is None else torch.cuda.set_stream(stream),
        "current_device": lambda: 0 if no_gpu() else torch.cuda.current_device(),
        "device_count": lambda: 1 if simulated() else torch.cuda.device_count(),
        "device_synchronize": lambda: None if no_gpu() else torch.cuda.synchronize(),
        **dict.fromkeys(
            ("set_device", "SetDevice", "MaybeSetDevice"),
            lambda index: None if no_gpu() or index < 0 else torch.cuda.set_device(index),
        ),
        **dict.fromkeys(
            ("ExchangeDevice", "MaybeExchangeDevice"),
            lambda index: 0 if no_gpu() else torch.cuda._exchange_device(index),
        ),
    },
)


@word(
    "at::cuda::getCurrentDeviceProperties",
    "cudaDeviceProp* getCurrentDeviceProperties(); cudaDeviceProp* getDeviceProperties(DeviceIndex); int warp_size();",
)
def _current_properties() -> Pointer:
    return Pointer(Variable(device_properties()))


@word("at::cuda::getDeviceProperties")
def _properties(index: int) -> Pointer:
    return Pointer(Variable(device_properties(index)))


word("at::cuda::warp_size")(lambda: 32)
declare(
    "namespace torch { namespace cuda { using namespace at::cuda; bool is_available(); size_t device_count(); void synchronize(int64_t = -1);"
    " void manual_seed(unsigned long); } void manual_seed(unsigned long); }"
)
methods(
    "torch::cuda",
    {
        "is_available": lambda: simulated() or torch.cuda.is_available(),
        "device_count": lambda: 1 if simulated() else torch.cuda.device_count(),
        "synchronize": lambda index=-1: None if no_gpu() else torch.cuda.synchronize(_index(index)),
        "manual_seed": lambda seed: torch.cuda.manual_seed(seed),
    },
)
