"""The training step of `examples.lenet5` as CUDA graphs: for each batch, the host only launches a graph.

A step of LeNet-5 is about sixty kernels of a few microseconds each. Python, the DataLoader and the launches take most
of the time of the published recipe. Here the data stays on the GPU. Each epoch gathers the samples in the order of
their use. A replayed step finds its batch, its row of optimizer coefficients and the place for its loss through
`position`, a counter on the GPU that the step itself advances.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import ImageSet

# Steps in one graph. Between their kernels there is no launch of another graph. More steps take longer to capture, and
# gain little.
STEPS_PER_GRAPH = 16
WARMUP_STEPS = 3
BETA1, BETA2, EPS, MOMENTUM_DECAY = 0.9, 0.999, 1e-8, 4e-3  # torch.optim.NAdam's defaults


def flatten_parameters(model: nn.Module) -> Tensor:
    """Move a model's parameters into one vector, of which they become views; return the vector.

    An optimizer step over the vector takes one kernel where it would take one per parameter.
    """
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.data = part.view(parameter.shape)
    return flat


def nadam_coefficients(first_step: int, steps: int, lr: float) -> Tensor:
    """NAdam's coefficients for t = `first_step` .. `first_step` + `steps` - 1: (steps, 3) float64.

    With μ_t = β₁·(1 - ½·0.96^(t·ψ)) and M_t = μ_1···μ_t, NAdam (Dozat 2016, as in `torch.optim.NAdam`) is

        m ← β₁·m + (1 - β₁)·g,  v ← β₂·v + (1 - β₂)·g²
        p ← p - [lr·(1 - μ_t)/(1 - M_t)·g + lr·μ_{t+1}/(1 - M_{t+1})·m] / (√(v / (1 - β₂^t)) + ε)

    Multiplying numerator and denominator by c = √(1 - β₂^t) leaves p - (A·g + B·m) / (√v + C). A row is (A, B, C). A
    row depends on t alone, so the host computes it. On the GPU, a row would take two dozen kernels of one number each.
    """
    t = torch.arange(1, first_step + steps + 1, dtype=torch.float64)  # one past the last step, for μ_{t+1}
    mu = BETA1 * (1 - 0.5 * 0.96 ** (t * MOMENTUM_DECAY))
    product = mu.cumprod(0)
    now, following = slice(first_step - 1, first_step - 1 + steps), slice(first_step, first_step + steps)
    c = (1 - BETA2 ** t[now]).sqrt()
    a = lr * (1 - mu[now]) / (1 - product[now]) * c
    b = lr * mu[following] / (1 - product[following]) * c
    return torch.stack((a, b, EPS * c), dim=1)


def nadam_step(parameters: Tensor, gradient: Tensor, m: Tensor, v: Tensor, coefficients: Tensor) -> None:
    """One step of NAdam in place. `coefficients` is a row of `nadam_coefficients`; the other arguments are vectors of
    one length."""
    a, b, c = coefficients.unbind()
    m.lerp_(gradient, 1 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    parameters.addcdiv_((gradient * a).addcmul_(m, b), v.sqrt().add_(c), value=-1)


class FastTrainer:
    """Trains on the same batches in the same order as the published recipe, by replaying CUDA graphs.

    `state_dict` and `load_state_dict` are those of an optimizer. With `graphs=False` the same steps run without graphs
    on any device, for debugging and for tests without a GPU.
    """

    def __init__(self, model: nn.Module, train: ImageSet, batch_size: int, lr: float, *, graphs: bool = True) -> None:
        began = time.perf_counter()
        self.model, self.lr = model, lr
        self.parameters = list(model.parameters())
        self.flat = flatten_parameters(model)
        self.device = device = self.flat.device
        self.m, self.v, self.steps_done = torch.zeros_like(self.flat), torch.zeros_like(self.flat), 0
        self.images, self.labels = train.images.to(device), train.labels.to(device)

        # The steps read and write these tensors. Graphs hold their addresses, so each epoch fills the tensors and never
        # replaces them.
        count, self.batch_size = len(train), batch_size
        self.full_batches, self.tail = divmod(count, batch_size)
        self.steps = self.full_batches + (self.tail > 0)
        self.epoch_images = torch.zeros(count, 1, *train.images.shape[1:], device=device)
        self.epoch_labels = torch.zeros(count, dtype=torch.int64, device=device)
        self.coefficients = torch.ones(self.steps, 3, device=device)
        self.losses = torch.zeros(self.steps, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)

        # Functions that run STEPS_PER_GRAPH full steps, one full step, and the last, smaller step: replays of graphs if
        # `graphs`.
        runs: list[Callable[[], None]] = [self.many_steps, self.full_step, self.tail_step]
        wanted = (self.full_batches >= STEPS_PER_GRAPH, self.full_batches > 0, self.tail > 0)
        if graphs:
            self.warm_up(stream := torch.cuda.Stream(device))
            runs = [graph_of(run, stream) if used else run for run, used in zip(runs, wanted, strict=True)]
        self.run_many, self.run_one, self.run_tail = runs
        self.setup_seconds = time.perf_counter() - began

    def step(self, images: Tensor, labels: Tensor) -> None:
        loss = F.cross_entropy(self.model(images), labels)
        # torch.autograd.grad and one cat, because backward() would add to ten .grad tensors and zero them: twenty
        # kernels.
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.parameters)])
        with torch.no_grad():
            row = self.coefficients.index_select(0, self.position).squeeze(0)
            nadam_step(self.flat, gradient, self.m, self.v, row)
            self.losses.index_copy_(0, self.position, loss.detach().unsqueeze(0))
            self.position += 1

    def full_step(self) -> None:
        cut, shape = self.full_batches * self.batch_size, (self.full_batches, self.batch_size)
        images, labels = self.epoch_images[:cut].unflatten(0, shape), self.epoch_labels[:cut].unflatten(0, shape)
        self.step(*(x.index_select(0, self.position).squeeze(0) for x in (images, labels)))

    def many_steps(self) -> None:
        for _ in range(STEPS_PER_GRAPH):
            self.full_step()

    def tail_step(self) -> None:
        cut = self.full_batches * self.batch_size
        self.step(self.epoch_images[cut:], self.epoch_labels[cut:])

    def warm_up(self, stream: torch.cuda.Stream) -> None:
        """Take steps, and restore the parameters, the optimizer's state and the random number generators.

        The first steps compile kernels, choose cuDNN's algorithms and make cuBLAS allocate: none of that may happen in
        a capture. Warm-up and capture share a side stream: autograd ties its nodes to the stream that they first ran
        on, and a capture must not draw in the default stream.
        """
        changed = (self.flat, self.m, self.v, self.losses, self.position)
        saved = [tensor.clone() for tensor in changed]
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream), torch.random.fork_rng(devices=[self.device]):
            for step in (self.full_step,) * (self.full_batches > 0) + (self.tail_step,) * (self.tail > 0):
                for _ in range(WARMUP_STEPS):
                    self.position.zero_()
                    step()
        current.wait_stream(stream)
        for tensor, value in zip(changed, saved, strict=True):
            tensor.copy_(value)

    def train_epoch(self, order: Tensor, advance: Callable[[int], object]) -> Tensor:
        """Train on every sample once, in the given order, and return the loss of each batch on the CPU."""
        order = order.to(self.device)
        # The gather reads uint8, a quarter of the bytes of float32. copy_ converts.
        self.epoch_images.copy_(self.images.index_select(0, order).unsqueeze(1)).div_(255)
        torch.index_select(self.labels, 0, order, out=self.epoch_labels)
        self.coefficients.copy_(nadam_coefficients(self.steps_done + 1, self.steps, self.lr))
        self.position.zero_()
        many, single = divmod(self.full_batches, STEPS_PER_GRAPH)
        for count, steps, run in ((many, STEPS_PER_GRAPH, self.run_many), (single, 1, self.run_one)):
            for _ in range(count):
                run()
                advance(steps)
        if self.tail:
            self.run_tail()
            advance(1)
        self.steps_done += self.steps
        return self.losses.cpu()  # the epoch's one wait for the GPU

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps_done, "m": self.m.to("cpu", copy=True), "v": self.v.to("cpu", copy=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
        self.steps_done = state["steps"]


def graph_of(steps: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
    """Capture `steps` on `stream`, and return the function that replays the graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        steps()
    return graph.replay
