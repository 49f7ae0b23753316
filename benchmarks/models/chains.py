"""The host time of single modules: chains of 25 modules, whose kernels are too short to keep the host waiting.

The variants of a case take turns, as those of a model (:func:`.steps.timed`). A turn is two passes forward and backward,
of which the second is timed. A figure is the time from the first call until the last launch is queued, divided by the
number of modules.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import autograd_bridge as bridge
from cupyops.torch import optimize

from .steps import order, ratio

__all__ = ["CHAINS", "COUNT", "SHAPE", "measure"]

COUNT, SHAPE = 25, (8, 64, 768)
_WIDTH = SHAPE[-1]
_WARM_UP = 5  # turns before the timed ones

Make = Callable[[], nn.Module]
# By name: the modules of PyTorch, and those of cupyops. optimize() changes no linear layer of this size.
CHAINS: dict[str, dict[str, Make]] = {
    "LayerNorm": {"torch": lambda: nn.LayerNorm(_WIDTH), "cupyops": lambda: bridge.LayerNorm(_WIDTH)},
    "RMSNorm": {"torch": lambda: nn.RMSNorm(_WIDTH), "cupyops": lambda: bridge.RMSNorm(_WIDTH)},
    "GELU": {"torch": nn.GELU, "cupyops": bridge.GELU},
    "Linear": {"torch": lambda: nn.Linear(_WIDTH, _WIDTH), "cupyops": lambda: bridge.Linear(_WIDTH, _WIDTH)},
    "Linear and GELU": {
        "torch": lambda: nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()),
        "cupyops": lambda: bridge.LinearGELU(_WIDTH, _WIDTH),
    },
}
for _name in ("LayerNorm", "RMSNorm", "GELU", "Linear and GELU"):
    CHAINS[_name]["optimize"] = CHAINS[_name]["torch"]


def measure(device: torch.device, modes: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each chain, mode and variant: microseconds of host time a module, medians and least.

    "ratio" is that of forward and backward together to PyTorch's, with its limits (:func:`.steps.ratio`).

    Args:
        modes: "eager" (bfloat16), "autocast" (float32 under autocast to bfloat16) or "compile" (bfloat16).
        rounds: timed turns of each variant.
    """
    for name, makers in CHAINS.items():
        for mode in modes:
            torch.compiler.reset()
            timings = _timed(makers, mode, device, rounds)
            for variant, found in timings.items():
                forward, backward = zip(*found, strict=True)
                row: dict[str, Any] = {"chain": name, "mode": mode, "variant": variant}
                for direction, times in (("forward", forward), ("backward", backward)):
                    row[direction] = round(statistics.median(times), 2)
                    row[f"{direction}_least"] = round(min(times), 2)
                both = [a + b for a, b in found]
                row |= {"both": round(statistics.median(both), 2), "both_least": round(min(both), 2)}
                if variant != "torch":
                    row["ratio"], row["ratio_low"], row["ratio_high"] = ratio(
                        both, [a + b for a, b in timings["torch"]]
                    )
                yield row


def _timed(
    makers: dict[str, Make], mode: str, device: torch.device, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    dtype = torch.float32 if mode == "autocast" else torch.bfloat16
    lower: AbstractContextManager[Any] = (
        torch.autocast(device.type, torch.bfloat16) if mode == "autocast" else nullcontext()
    )
    x = torch.randn(SHAPE, device=device, dtype=dtype, requires_grad=True)
    chains: dict[str, Any] = {}
    for variant, make in makers.items():
        torch.manual_seed(0)
        chain = nn.Sequential(*(make() for _ in range(COUNT))).to(device, dtype)
        if variant == "optimize":
            optimize(chain)
        chains[variant] = torch.compile(chain) if mode == "compile" else chain
    found: dict[str, list[tuple[float, float]]] = {variant: [] for variant in makers}
    for number in range(-_WARM_UP, rounds):
        for variant in order(list(chains), number):
            with lower:
                _both_ways(chains[variant], x, device)
                times = _both_ways(chains[variant], x, device)
            if number >= 0:
                found[variant].append(times)
    return found


def _both_ways(chain: nn.Module, x: Tensor, device: torch.device) -> tuple[float, float]:
    """Returns the host's microseconds of a module's forward and of its backward."""
    _wait(device)
    began = time.perf_counter()
    y = chain(x)
    forward = time.perf_counter()
    _wait(device)
    grad = torch.ones_like(y)
    _wait(device)
    again = time.perf_counter()
    y.backward(grad)
    backward = time.perf_counter()
    _wait(device)
    x.grad = None
    chain.zero_grad(set_to_none=True)
    return (forward - began) * 1e6 / COUNT, (backward - again) * 1e6 / COUNT


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
