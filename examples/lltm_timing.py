"""Timing of LLTM cells: forward and backward separately, the GPU idle before and after each; and the cell in Python."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Cell", "Outputs", "Step", "Timing", "cell_step", "graph_step", "inputs_for", "measure", "python_cell"]

ROUNDS = 10

Step = Callable[[], tuple[float, float]]
Outputs = Callable[..., tuple[Tensor, ...]]
Cell = Callable[..., tuple[Tensor, Tensor]]


def python_cell(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """The tutorial's cell: PyTorch's operators, and autograd."""
    z_i, z_o, z_g = F.linear(torch.cat((old_h, input), 1), weights, bias).chunk(3, 1)
    new_cell = old_cell + F.elu(z_g) * z_i.sigmoid()
    return new_cell.tanh() * z_o.sigmoid(), new_cell


@dataclass(frozen=True)
class Timing:
    """The measured microseconds of one version, forward and backward. If both are one measurement, backward is 0."""

    name: str
    forward: list[float]
    backward: list[float]

    @property
    def total(self) -> float:
        """Median of both together."""
        return statistics.median(f + b for f, b in zip(self.forward, self.backward, strict=True))

    def line(self) -> str:
        """The tutorial's line."""
        return f"Forward: {statistics.median(self.forward):.3f} us | Backward {statistics.median(self.backward):.3f} us"


def inputs_for(batch: int, features: int, state: int, device: torch.device, seed: int) -> list[Tensor]:
    """The cell's inputs: input, weights, bias, old_h, old_cell. All require gradients."""
    generator = torch.Generator().manual_seed(seed)
    bound = state**-0.5
    drawn = [
        torch.randn(batch, features, generator=generator),
        torch.empty(3 * state, features + state).uniform_(-bound, bound, generator=generator),
        torch.empty(3 * state).uniform_(-bound, bound, generator=generator),
        *(torch.randn(batch, state, generator=generator) for _ in range(2)),
    ]
    return [x.to(device).requires_grad_() for x in drawn]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _sum(outputs: tuple[Tensor, ...]) -> Tensor:
    total = outputs[0].sum()
    for output in outputs[1:]:
        total = total + output.sum()
    return total


def cell_step(cell: Outputs, inputs: list[Tensor]) -> Step:
    """A function that times one forward, and one backward from the sum of all outputs, each until the device is
    idle."""
    device = inputs[0].device

    def step() -> tuple[float, float]:
        for x in inputs:
            x.grad = None
        _wait(device)
        began = time.perf_counter()
        outputs = cell(*inputs)
        _wait(device)
        between = time.perf_counter()
        _sum(outputs).backward()
        _wait(device)
        return (between - began) * 1e6, (time.perf_counter() - between) * 1e6

    return step


def graph_step(cell: Outputs, inputs: list[Tensor]) -> Step:
    """A function that times the replay of a CUDA graph with one forward and one backward."""

    def run() -> None:
        for x in inputs:
            x.grad = None
        _sum(cell(*inputs)).backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def step() -> tuple[float, float]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e6, 0.0

    return step


def measure(
    steps: list[tuple[str, Step]], runs: int, advance: Callable[[int], object] = lambda count: None
) -> list[Timing]:
    """Time `runs` runs of each step, in rounds, after a round of warm-up. `advance(1)` is called after each run."""
    timings = [Timing(name, [], []) for name, _ in steps]
    for number in range(-1, min(ROUNDS, runs)):
        each = max(3, runs // ROUNDS) if number < 0 else runs // min(ROUNDS, runs)
        for timing, (_, step) in zip(timings, steps, strict=True):
            for _ in range(each):
                forward, backward = step()
                if number >= 0:
                    timing.forward.append(forward)
                    timing.backward.append(backward)
                    advance(1)
    return timings
