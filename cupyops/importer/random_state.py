"""Translations of PyTorch's C++ names for the state of random numbers that kernels get: a seed and an offset of Philox."""

from typing import Any

import torch

from . import tensors  # noqa: F401  its C++ text comes first
from .cuda_devices import on_gpu
from .references import Variable
from .standard import Lock
from .words import declare, section, word

__all__: list[str] = []

section("CUDAGeneratorImpl", "PhiloxCudaState", "philox")
declare("#pragma clang force_cuda_host_device begin")


@word(
    "at::PhiloxCudaState",
    "struct PhiloxCudaState { PhiloxCudaState(); PhiloxCudaState(uint64_t seed, uint64_t offset); };"
    " struct CUDAGeneratorImpl { std::mutex mutex_; PhiloxCudaState philox_cuda_state(uint64_t);"
    " std::pair<uint64_t, uint64_t> philox_engine_inputs(uint64_t); uint64_t current_seed() const; };"
    " template <class T> T* check_generator(const std::optional<Generator>&);"
    " template <class T> T* get_generator_or_default(const std::optional<Generator>&, const Generator&);"
    " namespace cuda { namespace detail { const Generator& getDefaultCUDAGenerator(DeviceIndex = -1); }"
    " namespace philox { std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState); } }",
)
class PhiloxCudaState:
    """A seed and an offset, which a launch passes by value."""

    def __init__(self, seed: int = 0, offset: int = 0) -> None:
        self.seed, self.offset = seed, offset

    def as_argument(self) -> tuple[int, int]:
        return self.seed, self.offset

    def copy(self) -> "PhiloxCudaState":
        return PhiloxCudaState(self.seed, self.offset)

    def assign(self, other: "PhiloxCudaState") -> None:
        self.seed, self.offset = other.seed, other.offset


declare("#pragma clang force_cuda_host_device end")


word("at::Generator")(lambda value=None: value)  # PyTorch's own; None is the default one of the simulator


@word("at::CUDAGeneratorImpl")
class Generator:
    """A generator of random numbers. In the simulator, its seeds are numbers of PyTorch's generator of the CPU."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator, self.mutex_ = generator, Lock()

    def philox_engine_inputs(self, increment: int) -> tuple[int, int]:
        """Returns the seed and the offset. A kernel uses `increment` numbers of each thread after the offset."""
        if not on_gpu():
            return int(torch.randint(2**62, (), generator=self.generator)), 0
        found = self.generator or torch.cuda.default_generators[torch.cuda.current_device()]
        offset = found.get_offset()
        found.set_offset(offset + -(-increment // 4) * 4)
        return found.initial_seed(), offset

    def philox_cuda_state(self, increment: int) -> PhiloxCudaState:
        return PhiloxCudaState(*self.philox_engine_inputs(increment))

    def current_seed(self) -> int:
        return (self.generator or torch.default_generator).initial_seed()


@word("at::get_generator_or_default", typed=True)
@word("at::check_generator", typed=True)
def _generator(kind: Any, generator: Any, default: Any = None) -> Variable:
    return Variable(Generator(generator if generator is not None else default))


@word("at::cuda::detail::getDefaultCUDAGenerator")
def _default(device: int = -1) -> Any:
    return torch.cuda.default_generators[torch.cuda.current_device() if device < 0 else device] if on_gpu() else None


@word("at::cuda::philox::unpack")
def _unpacked(state: PhiloxCudaState) -> tuple[int, int]:
    return state.as_argument()


section()
