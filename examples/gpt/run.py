"""One training run: its stretches of steps, what is looked at between them, and the files that it keeps."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from examples.checkpoint import open_folder, save_checkpoint
from examples.console import Progress
from examples.endings import Diverged, check_finite
from examples.gpt.config import EXAMPLE, Config
from examples.gpt.trainer import WARMUP_STEPS, Trainer
from examples.reporting import EventLog, GpuMonitor, GpuUse, describe_run, write_metrics

__all__ = ["Evaluation", "Result", "Run", "bits"]


def bits(nats: float) -> float:
    """A loss per character in bits."""
    return nats / math.log(2)


@dataclass(frozen=True)
class Evaluation:
    """What a stretch of training, up to and with step `step`, came to. Losses are means, in nats per character.

    `tokens` took `seconds`; both are 0 if all of the stretch was warm-up.
    """

    step: int
    train_loss: float
    validation_loss: float
    tokens: int
    seconds: float
    gpu: GpuUse | None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Evaluation":
        gpu = values["gpu"]
        return cls(**{**values, "gpu": None if gpu is None else GpuUse(**gpu)})


@dataclass(frozen=True)
class Result:
    """`history` has one entry per stretch, those before a resume included; `sample` was written at the end."""

    history: list[Evaluation]
    sample: str

    @property
    def tokens_per_second(self) -> float:
        """Over all that was measured; NaN if nothing was."""
        seconds = sum(entry.seconds for entry in self.history)
        return sum(entry.tokens for entry in self.history) / seconds if seconds else math.nan


@dataclass
class Run:
    """The stretches of one run, and the files that it keeps."""

    config: Config
    trainer: Trainer
    history: list[Evaluation]
    echo: Callable[[str], object]

    @property
    def steps_done(self) -> int:
        return self.history[-1].step if self.history else 0

    def open_folder(self) -> None:
        """Make ``--out``, if there is one, ready to be written to."""
        if self.config.out is not None:
            done = f"step {self.steps_done}" if self.config.resume else None
            open_folder(self.config.out, self.echo, going_on_after=done, save=self.save)

    def run(self) -> Result:
        """Train up to ``--steps``, looking at the model every ``--eval-every`` of them."""
        out, every = self.config.out, self.config.eval_every
        monitor = GpuMonitor(self.trainer.device)
        warm = self.steps_done + WARMUP_STEPS
        sample = ""
        try:
            with EventLog(out and out / "tensorboard") as log:
                if out and log.why_not:
                    self.echo(f"No TensorBoard events: {log.why_not}")
                if self.steps_done >= self.config.steps:
                    self.echo(f"Nothing to train: {self.steps_done} steps are done")
                while self.steps_done < self.config.steps:
                    last = min(self.steps_done // every * every + every, self.config.steps)
                    self.stretch(last, min(warm, last), monitor, log)
                    self.save()
                    sample = self.trainer.sample(self.steps_done)
                    if self.steps_done < self.config.steps:
                        self.echo(f"sample after step {self.steps_done}:\n{sample}\n")
        finally:
            monitor.close()
        return Result(self.history, sample or self.trainer.sample(self.steps_done))

    def stretch(self, last: int, warm: int, monitor: GpuMonitor, log: EventLog) -> None:
        """Take the steps up to `last`, those up to `warm` without the clock, and write down what they came to."""
        first = self.steps_done
        warm = max(first, warm)
        with Progress("Training", last - first, "step", enabled=self.config.progress) as progress:
            unmeasured, _ = self.trainer.train(first, warm, progress.advance)
            measured, seconds = self.trainer.train(warm, last, progress.advance)
        losses = torch.cat((unmeasured, measured))
        check_finite(
            losses,
            self.trainer.model,
            where=lambda index: f"step {first + index + 1}",
            after=f"step {last}",
            lr=self.config.lr,
        )
        gpu = monitor.read()
        validation_loss = self.trainer.validation_loss()
        if not math.isfinite(validation_loss):
            raise Diverged(f"the validation loss became {validation_loss} after step {last}; a lower --lr may help")
        tokens = self.trainer.tokens_per_step * len(measured)
        entry = Evaluation(
            last, losses.double().mean().item(), validation_loss, tokens, seconds if tokens else 0.0, gpu
        )
        self.history.append(entry)
        values = {"Loss/Validation": validation_loss, "BitsPerCharacter/Validation": bits(validation_loss)}
        speed = ""
        if tokens:
            values["Speed/TokensPerSecond"] = tokens / seconds
            speed = f", {tokens / seconds:,.0f} tokens/s"
        log.add_series("Loss/Train", losses.tolist(), first + 1)
        log.add(values, last, gpu)
        self.echo(
            f"step {last:>5}: training loss {entry.train_loss:.4f}, validation loss {validation_loss:.4f} nats "
            f"= {bits(validation_loss):.4f} bits per character{speed}"
        )

    def save(self) -> None:
        """Write the checkpoint and the metrics of the steps so far."""
        out = self.config.out
        if out is None:
            return
        trainer, corpus = self.trainer, self.trainer.corpus
        history = [asdict(entry) for entry in self.history]
        save_checkpoint(
            out,
            EXAMPLE,
            model=trainer.model,
            settings=self.config.settings(trainer.device, corpus.fingerprint),
            step=self.steps_done,
            history=history,
            **trainer.state(),
        )
        metrics = {
            **describe_run(self.config, trainer.device, trainer.model),
            "text": {
                "source": corpus.source,
                "characters": len(corpus.tokens),
                "held_out": corpus.held_out,
                "different": len(corpus.characters),
                "fingerprint": corpus.fingerprint,
            },
            "tokens_per_step": trainer.tokens_per_step,
            "evaluations": history,
        }
        write_metrics(out / "metrics.json", metrics)

    def summarise(self, result: Result) -> None:
        """Print what a run is judged by: its speed, its last validation loss, and what the model writes."""
        loss = result.history[-1].validation_loss
        speed = result.tokens_per_second
        told = f"{speed:,.0f}" if math.isfinite(speed) else f"not measured in {WARMUP_STEPS} steps or fewer"
        self.echo(f"sample after step {self.steps_done}:\n{result.sample}\n")
        self.echo(f"tokens per second: {told}")
        self.echo(f"validation loss: {loss:.4f} nats = {bits(loss):.4f} bits per character")
