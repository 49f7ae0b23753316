"""A character-level transformer, trained on the source code of Python's standard library or on your text.

::

    python -m examples.char_gpt                          # on a CPU a small model, about a minute
    python -m examples.char_gpt --text book.txt          # another text, UTF-8
    python -m examples.char_gpt --resume                 # go on after an interruption, to the same result
    python -m examples.char_gpt --compare --compile      # tokens per second compared with PyTorch's own operators
    torchrun --nproc-per-node 2 -m examples.char_gpt --parallel ddp     # on two GPUs or in two processes; fsdp, tp

A run writes ``checkpoint.pt``, ``metrics.json``, TensorBoard events and ``curves.png`` into ``--out``. On a CPU, a
resumed run gives the same numbers, bit by bit. On a GPU, PyTorch's attention may add in another order each time.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .command import Diverged, Parser, Sizes, UserError, at_least, fill_in, kept_in, run_command, say

# A CPU of two cores takes about a minute. The GPU's model has 10.8 million parameters; a step on 65536 characters takes
# a data-center GPU longer than Python takes to launch the step.
SIZES: Sizes = {
    "layers": ("blocks of attention and network", 3, 6),
    "heads": ("heads of attention; they divide the width", 4, 6),
    "width": ("length of each character's vector", 128, 384),
    "context": ("characters that the model sees at once", 64, 256),
    "batch_size": ("windows of text in a step", 16, 256),
    "steps": ("steps of the optimizer", 800, 2000),
    "eval_every": ("steps between evaluations, samples and checkpoints", 200, 200),
    "eval_batches": ("batches that the validation loss is the mean of", 20, 12),
    "lr": ("highest learning rate of AdamW", 4e-3, 1e-3),
}
# A resumed run must repeat these options. The learning rate depends on the number of steps.
SETTINGS = (*(name for name in SIZES if "eval" not in name), "amp", "seed", "backend", "plain_loss", "compile")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line. Options that depend on the device are None unless they are given."""
    shared = "device", "backend", "seed", "text"
    parser = Parser("char_gpt", __doc__, *shared, parallel=("ddp", "fsdp", "tp"), alone="compare")
    parser.add_sizes(SIZES)
    add = parser.add_argument
    whole = "compute the logits as a whole, then their loss, as --backend torch does (default: linear_cross_entropy)"
    add("--plain-loss", action="store_true", help=whole)
    add("--compile", action="store_true", help="train through torch.compile")
    add("--prompt", default="", help="what samples continue (default: a line's beginning)")
    add("--sample-length", type=at_least(1), default=300, metavar="N", help="characters (default: %(default)s)")
    add("--compare", action="store_true", help="measure the tokens per second of both backends, and write no file")
    options = parser.parse_run(argv)
    if options.width and options.heads and options.width % options.heads:
        parser.error(f"--width must be a multiple of --heads, got {options.width} and {options.heads}")
    return options


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
from torch import Tensor

from .command import Progress
from .gpt.compare import compare
from .gpt.model import build_model, generate, learning_rate, loss_of_logits, make_optimizer
from .gpt.plans import PLANS, sum_gradients
from .gpt.text import Corpus, Share, Windows, load_corpus, nats
from .run import Run, check_finite
from .showing import what_runs


def complete(options: argparse.Namespace) -> argparse.Namespace:
    """Replace options that are None by the device's defaults."""
    fill_in(options, SIZES)
    if options.width % options.heads:
        raise UserError(f"--width must be a multiple of --heads, got {options.width} and {options.heads}")
    return options


class Trainer:
    """A model, its optimizer, and the batches that it learns from."""

    def __init__(self, fabric: Any, options: argparse.Namespace, corpus: Corpus) -> None:
        self.fabric, self.options, self.corpus = fabric, options, corpus
        share = self.share = Share(fabric, options.parallel, options.batch_size)
        self.module = build_model(len(corpus.characters), options)
        if options.plain_loss:
            self.module.loss = loss_of_logits
        # All batches have one shape: compiled once for training and once for validation; on a GPU into CUDA graphs,
        # because the host takes longer to launch this model's kernels than a GPU to run them.
        mode = "reduce-overhead" if fabric.device.type == "cuda" and not options.parallel else None
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # PyTorch's manager of graphs begins with one
        model = torch.compile(self.module, dynamic=False, mode=mode) if options.compile else self.module
        self.model = fabric.setup_module(model)
        self.optimizer = fabric.setup_optimizers(make_optimizer(self.module, options.lr))
        self.windows = Windows(corpus, options.context, options.batch_size, fabric.device, options.seed, share)
        self.prompt = corpus.encode(options.prompt or corpus.beginning).to(fabric.device)

    def step(self, step: int) -> Tensor:
        """Take step `step`, counted from 0; return its loss (), which stays on the device."""
        loss = self.model(*self.windows.draw())
        self.fabric.backward(loss)
        torch.nn.utils.clip_grad_norm_(sum_gradients(self.module), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.options.steps, self.options.lr)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach().clone()  # the next replay of a CUDA graph overwrites its result

    def warm_up(self) -> None:
        """Compute gradients and drop them: compiles the kernels, or raises their errors, and captures CUDA graphs."""
        characters = torch.zeros(self.windows.shape, dtype=torch.int64, device=self.fabric.device)[self.share.rows]
        try:
            for _ in range(3):  # PyTorch captures a graph in the second call, and replays it from the third call on
                self.fabric.backward(self.model(characters, characters))
                self.optimizer.zero_grad()
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).split("\n\n")[0]  # the other lines are advice for PyTorch's developers
            raise UserError(f"--compile: PyTorch could not compile the model: {reason}") from error

    def sample(self, step: int) -> str:
        """The text that the model writes after `--prompt`, decided by the seed, the step and the parameters alone."""
        with self.fabric.autocast():
            tokens = generate(self.module, self.prompt, self.options.sample_length, self.options.seed + step)
        return self.corpus.decode(tokens)


def train(options: argparse.Namespace, echo: Callable[[str], object] = say) -> tuple[list[dict[str, Any]], str]:
    """Train as the options say; `echo` prints the lines of output. Returns a record per evaluation, and the last sample.
    Raises `UserError` for an impossible request, `Diverged` if a number is not finite. The last checkpoint is kept."""
    corpus = load_corpus(complete(options).text, options.context)
    settings = {name: getattr(options, name) for name in SETTINGS} | {"text": corpus.fingerprint}
    with Run("char_gpt/2", options, settings, unit="step", records="evaluations", echo=echo, plans=PLANS) as run:
        trainer, tokens_per_step = Trainer(run.fabric, options, corpus), options.batch_size * options.context
        echo(f"text:    {corpus}")
        sizes = f"{options.layers} layers, {options.width} wide, {options.heads} heads, context {options.context}"
        echo(f"model:   {sum(p.numel() for p in trainer.module.parameters()):,} parameters: {sizes}")
        echo(f"steps:   {options.steps:,} of {tokens_per_step:,} characters, {('eager', 'compiled')[options.compile]}")
        trainer.warm_up()  # raises errors before any file is written
        generator = trainer.windows.generator
        begin = generator.get_state()
        batch = trainer.windows.draw()
        generator.set_state(begin)
        names = "autograd_bridge", "torch.nn"
        what_runs(options, run.device, names, trainer.module, lambda: trainer.module(*batch), echo)
        state = {"model": trainer.model, "optimizer": trainer.optimizer, "generator": generator.get_state(), "step": 0}
        run.metrics = {"text": corpus.about(), "tokens_per_step": tokens_per_step}
        history = run.begin(state)  # loads `state` with --resume
        generator.set_state(state["generator"])
        done = state["step"]
        with Progress("Training", options.steps, "steps", done) as bar:
            while done < options.steps:
                last = min(done // options.eval_every * options.eval_every + options.eval_every, options.steps)
                stack, began = [], time.perf_counter()
                for step in range(done, last):
                    stack.append(trainer.step(step))
                    bar.update(1)
                losses = trainer.share.mean(torch.stack(stack)).cpu()  # waits for the device
                tokens, seconds = (last - done) * tokens_per_step, time.perf_counter() - began
                check_finite(losses, trainer.module, "step {}", first=done + 1, after=f"step {last}", lr=options.lr)
                loss, gpu = losses.double().mean().item(), run.gpu_use(last)
                validation = trainer.windows.validation_loss(trainer.model, options.eval_batches)
                if not math.isfinite(validation):
                    raise Diverged(f"the validation loss became {validation} after step {last}; a lower --lr may help")
                told = f"training loss {loss:.4f}, validation loss {nats(validation)}"
                bar.say(f"step {last:>5}: {told}, {tokens / seconds:,.0f} tokens/s", echo)
                run.log("Loss/Train", losses.tolist(), done + 1)
                run.log("Loss/Validation", [validation], last)
                run.log("BitsPerCharacter/Validation", [validation / math.log(2)], last)
                run.log("Speed/TokensPerSecond", [tokens / seconds], last)
                record = {"step": last, "train_loss": loss, "validation_loss": validation, "tokens": tokens}
                history.append({**record, "seconds": seconds, "gpu": gpu})
                done = state["step"] = last
                state["generator"] = generator.get_state()
                run.save(state)
                if last < options.steps:
                    bar.say(f"sample after step {last}:\n{trainer.sample(last)}\n", echo)
        lines = {"training": "train_loss", "validation": "validation_loss"}
        run.draw(history, {"loss (nats per character)": lines}, f"The transformer, --backend {options.backend}")
        sample, loss = trainer.sample(done), history[-1]["validation_loss"]
        seconds, tokens = (sum(record[name] for record in history) for name in ("seconds", "tokens"))
        echo(f"sample after step {done}:\n{sample}\n\ntokens per second: {tokens / seconds:,.0f}")
        echo(f"validation loss: {nats(loss)}")
    return history, sample


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when done, 1 if the loss diverged, 2 for an impossible request, 130 after Ctrl-C."""
    options = parse(argv)
    if options.compare:
        return run_command("char_gpt", lambda: compare(Trainer, complete(options)))
    return run_command("char_gpt", lambda: train(options), kept_in(options))


if __name__ == "__main__":
    raise SystemExit(main())
