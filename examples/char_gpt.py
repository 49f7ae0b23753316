"""A character-level transformer, trained on the source code of Python's standard library, or on a text of yours.

::

    python -m examples.char_gpt                          # on a CPU a small model, about a minute
    python -m examples.char_gpt --text book.txt          # another text, UTF-8
    python -m examples.char_gpt --compile                # the same through torch.compile
    python -m examples.char_gpt --resume                 # go on after an interruption, to the same result
    python -m examples.char_gpt --compare --compile --steps 200     # tokens per second beside PyTorch's own operators

A resumed run comes to the numbers of one without a break: bit by bit on a CPU; on a GPU, PyTorch's attention may add in
another order each time. The model is in `examples/gpt/model.py`. A run writes into ``--out``: ``checkpoint.pt``,
``metrics.json`` and TensorBoard events, at every evaluation. An earlier run's files there first move into ``earlier-1``
(2, 3, ...) beneath it: none is lost.
"""

import argparse
import io
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from examples.command import CHECKPOINT, Diverged, UserError, progress, run_command
from examples.gpt.options import SETTINGS, UNTIMED_STEPS, complete, parse

if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
from torch import Tensor

from examples.command import describe_device
from examples.gpt.compare import compare
from examples.gpt.model import build_model, generate
from examples.gpt.text import Corpus, Windows, load_corpus
from examples.run import Run, check_finite


def learning_rate(options: argparse.Namespace, step: int) -> float:
    """The rate of step `step`, counted from 0: a linear rise to `--lr`, then half a cosine down to a tenth of it."""
    rise = min(100, max(1, options.steps // 10))
    if step < rise:
        return options.lr * (step + 1) / rise
    done = (step - rise) / max(1, options.steps - rise)
    return options.lr * (0.1 + (1 - 0.1) * (1 + math.cos(math.pi * done)) / 2)


class Trainer:
    """A model, its optimizer, and the batches that it learns from."""

    def __init__(self, fabric: Any, options: argparse.Namespace, corpus: Corpus) -> None:
        self.fabric, self.options, self.corpus = fabric, options, corpus
        self.module = build_model(len(corpus.characters), options)
        parameters = list(self.module.parameters())
        matrices = {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1}
        vectors = {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}  # norms and biases
        optimizer = torch.optim.AdamW([matrices, vectors], lr=options.lr, betas=(0.9, 0.95), fused=True)
        # All batches have one shape: compiled once for training and once for validation; on a GPU into CUDA graphs,
        # because the host takes longer to launch this model's kernels than a GPU to run them.
        mode = "reduce-overhead" if fabric.device.type == "cuda" else None
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # PyTorch's manager of graphs begins with one
        forward = torch.compile(self.module, dynamic=False, mode=mode) if options.compile else self.module
        self.model, self.optimizer = fabric.setup(forward, optimizer)
        self.windows = Windows(corpus, options.context, options.batch_size, fabric.device, options.seed)
        prompt = options.prompt or ("\n" if "\n" in corpus.characters else corpus.characters[0])
        self.prompt = corpus.encode(prompt).to(fabric.device)

    def step(self, step: int) -> Tensor:
        """Take step `step`, counted from 0; return its loss (), which stays on the device."""
        loss = self.model(*self.windows.draw())
        self.fabric.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.options, step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach().clone()  # a CUDA graph's own is overwritten by the next step

    def warm_up(self) -> None:
        """One forward and backward that change nothing: kernels are compiled, or say what they lack."""
        shape = (self.options.batch_size, self.options.context)
        characters = torch.zeros(shape, dtype=torch.int64, device=self.fabric.device)
        try:
            self.fabric.backward(self.model(characters, characters))
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).split("\n\n")[0]  # what follows is advice for PyTorch's developers
            raise UserError(f"--compile: PyTorch could not compile the model: {reason}") from error
        self.optimizer.zero_grad()

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean loss over the held-out windows, in nats per character."""
        losses = [self.model(*batch).clone() for batch in self.windows.held_out(self.options.eval_batches)]
        return torch.stack(losses).double().mean().item()

    def sample(self, step: int) -> str:
        """What the model writes behind `--prompt`: a function of the seed, the step and the parameters alone."""
        generator = torch.Generator(self.fabric.device).manual_seed((self.options.seed + step) % 2**63)
        with self.fabric.autocast():
            tokens = generate(self.module, self.prompt, self.options.sample_length, generator)
        return self.corpus.decode(tokens)

    def synchronize(self) -> float:
        """Wait until the device has done all that it was given; return the time."""
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)
        return time.perf_counter()

    def describe(self, echo: Callable[[str], object]) -> None:
        """Print what is trained, where and on what."""
        o, corpus = self.options, self.corpus
        echo(f"device:  {describe_device(self.fabric.device)}, {'bfloat16 autocast' if o.amp else 'float32'}")
        parts = f"{len(corpus.characters)} different, {corpus.held_out:,} held out"
        echo(f"text:    {corpus.source}: {len(corpus.tokens):,} characters, {parts}")
        sizes = f"{o.layers} layers, {o.width} wide, {o.heads} heads, context {o.context}"
        echo(f"model:   {sum(p.numel() for p in self.module.parameters()):,} parameters: {sizes}")
        size = f"{o.batch_size} × {o.context} = {o.batch_size * o.context:,} characters"
        echo(f"steps:   {o.steps:,} of {size}, {'compiled' if o.compile else 'eager'}")


def train(options: argparse.Namespace, echo: Callable[[str], object] = print) -> tuple[list[dict[str, Any]], str]:
    """Train as the options say; every line for the reader goes to `echo`. Returns a record per evaluation, and the last
    sample. Raises `UserError` for what cannot be had, `Diverged` when a number is not finite. The last checkpoint is kept.
    """
    complete(options)
    corpus = load_corpus(options.text, options.context)
    settings = {name: getattr(options, name) for name in SETTINGS} | {"text": corpus.fingerprint}
    with Run("char_gpt", options, settings, unit="step", records="evaluations", echo=echo) as run:
        trainer, tokens_per_step = Trainer(run.fabric, options, corpus), options.batch_size * options.context
        trainer.describe(echo)
        echo(f"backend: {options.backend} ({'autograd_bridge' if options.backend == 'kernels' else 'torch.nn'})")
        trainer.warm_up()  # a mistake shows before any file is touched
        generator = trainer.windows.generator
        state = {"model": trainer.model, "optimizer": trainer.optimizer, "generator": generator.get_state()}
        state |= {"step": 0, "history": []}
        run.metrics = {"text": corpus.about(), "tokens_per_step": tokens_per_step}
        history = run.begin(state)  # loads `state` with --resume
        generator.set_state(state["generator"])

        done = state["step"]
        untimed = done + UNTIMED_STEPS
        while done < options.steps:
            last = min(done // options.eval_every * options.eval_every + options.eval_every, options.steps)
            stack, timed = [], range(max(done, untimed), last)
            with progress("Training", last - done, "step") as advance:
                for step in range(done, last):
                    if step == timed.start:
                        began = trainer.synchronize()
                    stack.append(trainer.step(step))
                    advance(1)
                tokens, ended = len(timed) * tokens_per_step, trainer.synchronize()
            losses, seconds = torch.stack(stack).cpu(), ended - began if timed else 0.0
            check_finite(losses, trainer.module, "step {}", first=done + 1, after=f"step {last}", lr=options.lr)
            gpu, loss, validation = run.gpu_use(last), losses.double().mean().item(), trainer.validation_loss()
            if not math.isfinite(validation):
                raise Diverged(f"the validation loss became {validation} after step {last}; a lower --lr may help")

            result = f"validation loss {validation:.4f} nats = {validation / math.log(2):.4f} bits per character"
            speed = f", {tokens / seconds:,.0f} tokens/s" if tokens else ""
            echo(f"step {last:>5}: training loss {loss:.4f}, {result}{speed}")
            run.log("Loss/Train", losses.tolist(), done + 1)
            run.log("Loss/Validation", [validation], last)
            run.log("BitsPerCharacter/Validation", [validation / math.log(2)], last)
            run.log("Speed/TokensPerSecond", [tokens / seconds] if tokens else [], last)
            record = {"step": last, "train_loss": loss, "validation_loss": validation, "tokens": tokens}
            history.append({**record, "seconds": seconds, "gpu": gpu})
            done = state["step"] = last
            state["generator"] = generator.get_state()
            run.save(state)
            if last < options.steps:
                echo(f"sample after step {last}:\n{trainer.sample(last)}\n")
        sample, loss = trainer.sample(done), history[-1]["validation_loss"]
        seconds, tokens = (sum(record[name] for record in history) for name in ("seconds", "tokens"))
        told = f"{tokens / seconds:,.0f}" if tokens else f"not measured in {UNTIMED_STEPS} steps or fewer"
        echo(f"sample after step {done}:\n{sample}\n\ntokens per second: {told}")
        echo(f"validation loss: {loss:.4f} nats = {loss / math.log(2):.4f} bits per character")
    return history, sample


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example: 0 when done, 1 if the loss diverged, 2 for what cannot be had, 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a sample may hold what the terminal's encoding does not
    options = parse(argv)
    if options.compare:
        return run_command("char_gpt", lambda: compare(Trainer, options))
    return run_command("char_gpt", lambda: train(options), options.out / CHECKPOINT)


if __name__ == "__main__":
    raise SystemExit(main())
