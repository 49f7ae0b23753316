"""The training step as CUDA graphs: the data stays on the GPU and the host does nothing per batch but ask for a replay.

A LeNet-5 step is some sixty kernels of a few microseconds each, so the published recipe spends its time in Python, in
the DataLoader and in launching. Here all of that happens once. Per epoch the samples are gathered into the order in
which they will be used; a replayed step then finds its batch, its row of optimizer coefficients and the place for its
loss through `position`, a counter on the GPU that the step itself advances.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.datasets import ImageSet
from examples.training import Advance

__all__ = ["FastTrainer", "flatten_parameters", "nadam_coefficients", "nadam_step"]

# Steps captured together: their kernels follow one another without a gap for the launch of the next graph. More would
# make the capture longer for little.
STEPS_PER_GRAPH = 16
WARMUP_STEPS = 3
TEST_BATCH = 5000

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
    """What NAdam needs to know of t, for t = `first_step` .. `first_step` + `steps` - 1: (steps, 3) float64.

    With μ_t = β₁·(1 - ½·0.96^(t·ψ)) and M_t = μ_1···μ_t, NAdam (Dozat 2016, as in `torch.optim.NAdam`) is

        m ← β₁·m + (1 - β₁)·g,  v ← β₂·v + (1 - β₂)·g²
        p ← p - [lr·(1 - μ_t)/(1 - M_t)·g + lr·μ_{t+1}/(1 - M_{t+1})·m] / (√(v / (1 - β₂^t)) + ε)

    Multiplying the fraction's both halves by c = √(1 - β₂^t) leaves p - (A·g + B·m) / (√v + C). A row is (A, B, C); it
    depends on t alone, so it is worked out here and not by two dozen one-number kernels in every step.
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
    """One step of NAdam in place; all are vectors of one length but `coefficients`, a row of `nadam_coefficients`."""
    a, b, c = coefficients.unbind()
    m.lerp_(gradient, 1 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    parameters.addcdiv_((gradient * a).addcmul_(m, b), v.sqrt().add_(c), value=-1)


class FastTrainer:
    """Trains like `examples.training.LoaderTrainer`, on the same batches in the same order, by replaying CUDA graphs.

    With ``graphs=False`` the same steps run one by one, on any device: to debug them, and to test them without a GPU.
    """

    def __init__(
        self,
        model: nn.Module,
        train: ImageSet,
        test: ImageSet,
        *,
        batch_size: int,
        lr: float,
        device: torch.device,
        graphs: bool = True,
    ) -> None:
        began = time.perf_counter()
        self.model, self.lr, self.device = model, lr, device
        self.parameters = list(model.parameters())
        self.flat = flatten_parameters(model)
        self.m, self.v = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.steps_done = 0

        self.images, self.labels = train.images.to(device), train.labels.to(device)
        self.test_images = test.images.to(device).unsqueeze(1).to(torch.float32).div_(255)
        self.test_labels = test.labels.to(device)

        # What the steps read and write. Graphs hold addresses, so these are filled anew each epoch, never replaced.
        count = len(train)
        self.full_batches, self.tail = divmod(count, batch_size)
        self.steps = self.full_batches + (self.tail > 0)
        self.epoch_images = torch.zeros(count, 1, *train.images.shape[1:], device=device)
        self.epoch_labels = torch.zeros(count, dtype=torch.int64, device=device)
        self.coefficients = torch.ones(self.steps, 3, device=device)
        self.losses = torch.zeros(self.steps, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)

        cut = self.full_batches * batch_size
        self.batched_images = self.epoch_images[:cut].unflatten(0, (self.full_batches, batch_size))
        self.batched_labels = self.epoch_labels[:cut].unflatten(0, (self.full_batches, batch_size))
        self.tail_images, self.tail_labels = self.epoch_images[cut:], self.epoch_labels[cut:]

        # How to run several full steps, one, and the tail: replaced by replays when graphs are wanted.
        self.run_many: Callable[[], None] = self._many_steps
        self.run_one: Callable[[], None] = self._full_step
        self.run_tail: Callable[[], None] = self._tail_step
        if graphs:
            self._capture()
        self.setup_seconds = time.perf_counter() - began

    # The steps that are captured -------------------------------------------------------------------------------------

    def _full_step(self) -> None:
        images = self.batched_images.index_select(0, self.position).squeeze(0)
        labels = self.batched_labels.index_select(0, self.position).squeeze(0)
        self._step(images, labels)

    def _many_steps(self) -> None:
        for _ in range(STEPS_PER_GRAPH):
            self._full_step()

    def _tail_step(self) -> None:
        self._step(self.tail_images, self.tail_labels)

    def _step(self, images: Tensor, labels: Tensor) -> None:
        loss = F.cross_entropy(self.model(images), labels)
        # Not backward(): adding to ten .grad tensors and zeroing them would be twenty kernels; this cat is one.
        gradients = torch.autograd.grad(loss, self.parameters)
        gradient = torch.cat([g.flatten() for g in gradients])
        with torch.no_grad():
            row = self.coefficients.index_select(0, self.position).squeeze(0)
            nadam_step(self.flat, gradient, self.m, self.v, row)
            self.losses.index_copy_(0, self.position, loss.detach().unsqueeze(0))
            self.position += 1

    # Capture ---------------------------------------------------------------------------------------------------------

    def _capture(self) -> None:
        """Turn the three kinds of step into graphs; parameters, optimizer and random numbers end as they began."""
        if self.device.type != "cuda":
            raise ValueError(f"CUDA graphs need a CUDA device, got {self.device}")
        changed = (self.flat, self.m, self.v, self.losses, self.position)
        with torch.cuda.device(self.device):
            saved = [tensor.clone() for tensor in changed]
            stream = torch.cuda.Stream()
            # Warm-up and capture share one side stream: autograd ties its nodes to the stream that they first ran on,
            # and the default stream must not be drawn into a capture. The first steps also compile the kernels, choose
            # cuDNN's algorithms and make cuBLAS allocate, none of which may happen inside a capture.
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), torch.random.fork_rng(devices=[self.device]):
                for step in (self._full_step,) * (self.full_batches > 0) + (self._tail_step,) * (self.tail > 0):
                    for _ in range(WARMUP_STEPS):
                        self.position.zero_()
                        step()
            torch.cuda.current_stream().wait_stream(stream)
            for tensor, value in zip(changed, saved, strict=True):
                tensor.copy_(value)
            if self.full_batches >= STEPS_PER_GRAPH:
                self.run_many = self._graph_of(self._many_steps, stream)
            if self.full_batches:
                self.run_one = self._graph_of(self._full_step, stream)
            if self.tail:
                self.run_tail = self._graph_of(self._tail_step, stream)

    @staticmethod
    def _graph_of(steps: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            steps()
        return graph.replay

    # The trainer -----------------------------------------------------------------------------------------------------

    def train_epoch(self, order: Tensor, advance: Advance) -> Tensor:
        order = order.to(self.device)
        # Gathered in uint8, a quarter of the bytes; copy_ converts.
        self.epoch_images.copy_(self.images.index_select(0, order).unsqueeze(1)).div_(255)
        torch.index_select(self.labels, 0, order, out=self.epoch_labels)
        self.coefficients.copy_(nadam_coefficients(self.steps_done + 1, self.steps, self.lr))
        self.position.zero_()
        many, single = divmod(self.full_batches, STEPS_PER_GRAPH)
        for _ in range(many):
            self.run_many()
            advance(STEPS_PER_GRAPH)
        for _ in range(single):
            self.run_one()
            advance(1)
        if self.tail:
            self.run_tail()
            advance(1)
        self.steps_done += self.steps
        return self.losses.cpu()  # the epoch's one wait for the GPU

    @torch.inference_mode()
    def accuracy(self) -> float:
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        for images, labels in zip(self.test_images.split(TEST_BATCH), self.test_labels.split(TEST_BATCH), strict=True):
            correct += (self.model(images).argmax(1) == labels).sum()
        return 100 * correct.item() / len(self.test_labels)

    def optimizer_state(self) -> dict[str, Any]:
        return {"steps": self.steps_done, "m": self.m.to("cpu", copy=True), "v": self.v.to("cpu", copy=True)}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
        self.steps_done = state["steps"]
