"""How a model is trained and tested here: the order of the samples, and the published recipe, batch by batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from examples.datasets import ImageSet

__all__ = ["Advance", "LoaderTrainer", "Trainer", "epoch_order", "repeatable"]

Advance = Callable[[int], object]
"""Called with the number of batches just done (or, on a GPU, just queued)."""


class Trainer(Protocol):
    """A model with its optimizer and its data: what `examples.lenet5` drives."""

    setup_seconds: float

    def train_epoch(self, order: Tensor, advance: Advance) -> Tensor:
        """Train on every sample once, in this order; return each batch's loss, on the CPU."""

    def accuracy(self) -> float:
        """Share of the whole test set that is classified correctly, in percent."""

    def optimizer_state(self) -> dict[str, Any]:
        """What the optimizer remembers, to be saved."""

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved `optimizer_state`."""


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The permutation of 0 .. `count` - 1 in which `epoch` visits the samples: a function of its arguments alone.

    So a resumed run sees the batches that an uninterrupted one would have seen.
    """
    mixed = int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0])
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed))


@contextmanager
def repeatable() -> Iterator[None]:
    """Have cuDNN use deterministic algorithms, chosen without timing them, in float32; the caller's settings come back.

    TF32, its default, costs LeNet-5 more in layout conversions than its tensor cores gain.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = True, False, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before


class Samples(Dataset[tuple[Tensor, int]]):
    """One sample at a time: an image (1, 28, 28) float32 in [0, 1], and its label."""

    def __init__(self, data: ImageSet) -> None:
        self.images = data.images
        self.labels: list[int] = data.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index].unsqueeze(0).to(torch.float32).div_(255), self.labels[index]


class LoaderTrainer:
    """The published recipe: a DataLoader in this process, each batch copied to the device, NAdam on cross-entropy."""

    def __init__(
        self, model: nn.Module, train: ImageSet, test: ImageSet, *, batch_size: int, lr: float, device: torch.device
    ) -> None:
        self.model, self.batch_size, self.device = model, batch_size, device
        self.train_samples, self.test_samples = Samples(train), Samples(test)
        self.optimizer = torch.optim.NAdam(model.parameters(), lr=lr)
        self.setup_seconds = 0.0

    def train_epoch(self, order: Tensor, advance: Advance) -> Tensor:
        loader = self._loader(self.train_samples, order.tolist())
        losses = torch.empty(len(loader), device=self.device)
        for batch, (images, labels) in enumerate(loader):
            loss = F.cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses[batch] = loss.detach()  # stays on the device: reading it here would wait for the GPU every step
            advance(1)
        return losses.cpu()

    @torch.inference_mode()
    def accuracy(self) -> float:
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        for images, labels in self._loader(self.test_samples):
            correct += (self.model(images.to(self.device)).argmax(1) == labels.to(self.device)).sum()
        return 100 * correct.item() / len(self.test_samples)

    def _loader(self, samples: Samples, order: list[int] | None = None) -> DataLoader[tuple[Tensor, int]]:
        # The generator of its own keeps the loader from drawing on, and so moving, the global one.
        return DataLoader(samples, batch_size=self.batch_size, sampler=order, generator=torch.Generator())

    def optimizer_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
        # load_state_dict moves every tensor but `step` to the parameter's device. NAdam wants this number on the CPU:
        # on a GPU each step would wait for it.
        for values in self.optimizer.state.values():
            values["mu_product"] = values["mu_product"].cpu()
