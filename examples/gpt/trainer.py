"""One model on one device: its batches, steps, validation loss and samples. The host never waits within a stretch."""

import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.console import UserError
from examples.gpt.config import Config, learning_rate
from examples.gpt.corpus import Corpus
from examples.gpt.model import build_model, generate
from examples.training import Advance

__all__ = ["WARMUP_STEPS", "Trainer"]

WARMUP_STEPS = 10
"""Steps at the beginning of a process that no speed is reckoned from: memory is still being allocated."""

BETAS, WEIGHT_DECAY, LARGEST_GRADIENT = (0.9, 0.95), 0.1, 1.0
TEMPERATURE = 0.8


class Trainer:
    """Trains on batches drawn where the text is: on the device, by a generator whose state is saved with the model."""

    def __init__(self, config: Config, corpus: Corpus, device: torch.device) -> None:
        self.config, self.corpus, self.device = config, corpus, device
        self.model = build_model(
            len(corpus.characters),
            context=config.context,
            layers=config.layers,
            heads=config.heads,
            width=config.width,
            backend=config.backend,
            seed=config.seed,
            device=device,
        )
        self.parameters = list(self.model.parameters())
        matrices = [p for p in self.parameters if p.dim() > 1]
        vectors = [p for p in self.parameters if p.dim() == 1]  # norms and biases: pulling them to 0 helps nothing
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=BETAS, fused=True)
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self.train_tokens, self.validation_tokens = corpus.train.to(device), corpus.validation.to(device)
        self.window = torch.arange(config.context + 1, device=device)
        self.prompt = self._prompt().to(device)
        # One shape for every batch, of training and of validation: compiled once for each, on a GPU into CUDA graphs, since
        # it takes the host longer to launch this model's kernels than a GPU to run them.
        mode = "reduce-overhead" if device.type == "cuda" else None
        # PyTorch's manager of graphs begins with an empty one, and warns of that.
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        self.loss = torch.compile(self._loss, dynamic=False, mode=mode) if config.compile else self._loss

    def _prompt(self) -> Tensor:
        text = self.config.prompt or ("\n" if "\n" in self.corpus.characters else self.corpus.characters[0])
        return self.corpus.encode(text)

    @property
    def tokens_per_step(self) -> int:
        return self.config.batch_size * self.config.context

    # Batches and losses ----------------------------------------------------------------------------------------------

    def windows(self, tokens: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The characters (B, context) behind each start (B), and those that follow each of them."""
        batch = tokens[starts.unsqueeze(1) + self.window].long()
        return batch[:, :-1], batch[:, 1:]

    def draw_batch(self) -> tuple[Tensor, Tensor]:
        """The next batch of training; the host learns nothing of where it lies, and so need not wait."""
        ends = len(self.train_tokens) - self.config.context
        starts = torch.randint(ends, (self.config.batch_size,), generator=self.generator, device=self.device)
        return self.windows(self.train_tokens, starts)

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.amp):
            logits = self.model(inputs)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    # Training --------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """One forward and backward that change nothing: kernels are compiled, or say what they lack.

        Raises:
            UserError: ``--compile`` found no compiler that it can use.
        """
        characters = torch.zeros(self.config.batch_size, self.config.context, dtype=torch.int64, device=self.device)
        try:
            self.loss(characters, characters).backward()
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).split("\n\n")[0]  # what follows is advice for PyTorch's developers
            raise UserError(f"--compile: PyTorch could not compile the model: {reason}") from error
        self.optimizer.zero_grad()

    def step(self, step: int) -> Tensor:
        """Take step `step`, counted from 0; return its loss (), which stays on the device."""
        loss = self.loss(*self.draw_batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, LARGEST_GRADIENT)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach().clone()  # a CUDA graph's own is overwritten by the next step

    def train(self, first: int, last: int, advance: Advance) -> tuple[Tensor, float]:
        """Take the steps `first` .. `last` - 1; return their losses, on the CPU, and the seconds that they took.

        The clock starts when the device has done all it was given before, and stops when it has done these.
        """
        self.synchronize()
        began = time.perf_counter()
        losses = []
        for step in range(first, last):
            losses.append(self.step(step))
            advance(1)
        self.synchronize()
        seconds = time.perf_counter() - began
        return torch.stack(losses).cpu() if losses else torch.empty(0), seconds

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # Looking at the model --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean loss, in nats per character, over windows evenly spread over the held-out text: always the same ones."""
        batches, size = self.config.eval_batches, self.config.batch_size
        last = len(self.validation_tokens) - len(self.window)
        starts = torch.linspace(0, last, batches * size, dtype=torch.float64).long().to(self.device)
        losses = [self.loss(*self.windows(self.validation_tokens, part)) for part in starts.split(size)]
        return torch.stack(losses).double().mean().item()

    def sample(self, step: int) -> str:
        """What the model writes behind ``--prompt``: a function of the seed, the step and the parameters alone."""
        generator = torch.Generator(self.device).manual_seed((self.config.seed + step) % 2**63)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.amp):
            tokens = generate(
                self.model,
                self.prompt,
                self.config.sample_length,
                vocabulary=len(self.corpus.characters),
                temperature=TEMPERATURE,
                generator=generator,
            )
        return self.corpus.decode(tokens)

    # Going on --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds besides the model."""
        return {"optimizer": self.optimizer.state_dict(), "generator": self.generator.get_state()}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.generator.set_state(saved["generator"])
