"""A character-level transformer, trained on the source code of Python's standard library, or on a text of yours.

::

    python -m examples.char_gpt                          # on a CPU a small model, about a minute
    python -m examples.char_gpt --text book.txt          # another text, UTF-8
    python -m examples.char_gpt --compile                # the same through torch.compile
    python -m examples.char_gpt --resume                 # go on after an interruption, to the same result
    python -m examples.char_gpt --compare --compile --steps 200     # tokens per second beside PyTorch's own operators

A resumed run comes to the numbers of one without a break: bit by bit on a CPU; on a GPU, PyTorch's attention may add in
another order each time. Norms, the additions before them, and GELU with the layer before it
are this project's operators; attention and the other matrix products are PyTorch's.
A run writes into ``--out``: ``checkpoint.pt``, ``metrics.json`` and TensorBoard events, at every evaluation. An earlier
run's files there first move into ``earlier-1`` (2, 3, ...) beneath it: none is lost.
"""

import argparse
import io
import sys
from collections.abc import Callable
from pathlib import Path

from examples.checkpoint import CHECKPOINT, load_checkpoint
from examples.console import EPILOG, add_common_options, add_run_options, describe_device, pick_device
from examples.endings import Diverged, run_command
from examples.gpt.config import EXAMPLE, SIZES, Config
from examples.gpt.corpus import load_corpus
from examples.gpt.run import Evaluation, Result, Run
from examples.gpt.speed import Contestant, compare
from examples.gpt.trainer import Trainer

__all__ = ["Config", "Diverged", "Result", "main", "measure", "train"]


def train(config: Config, echo: Callable[[str], object] = print) -> Result:
    """Train as `config` says; every line for the reader goes to `echo`.

    Raises `UserError` for what cannot be had, `Diverged` when a loss is no longer finite. Whatever ends the run, the
    checkpoint of the last evaluation is kept.
    """
    device = pick_device(config.device)
    corpus = load_corpus(config.text, config.context)
    saved = None
    if config.resume and config.out is not None:
        saved = load_checkpoint(config.out, EXAMPLE, config.settings(device, corpus.fingerprint))
    trainer = Trainer(config, corpus, device)
    describe(trainer, echo)
    echo(f"backend: {config.backend} ({'autograd_bridge' if config.backend == 'kernels' else 'torch.nn'})")
    trainer.warm_up()  # a mistake shows before any file is touched
    history: list[Evaluation] = []
    if saved is not None:
        trainer.load(saved)
        history = [Evaluation.from_dict(values) for values in saved["history"]]
    run = Run(config, trainer, history, echo)
    run.open_folder()
    result = run.run()
    run.summarise(result)
    return result


def measure(config: Config, echo: Callable[[str], object] = print) -> list[Contestant]:
    """Compare the speed of both backends, and write nothing: see `examples.gpt.speed.compare`."""
    device = pick_device(config.device)
    corpus = load_corpus(config.text, config.context)
    describe(Trainer(config, corpus, device), echo)
    return compare(config, corpus, device, echo)


def describe(trainer: Trainer, echo: Callable[[str], object]) -> None:
    """Print what is trained, where and on what."""
    config, corpus = trainer.config, trainer.corpus
    parameters = sum(parameter.numel() for parameter in trainer.parameters)
    echo(f"device:  {describe_device(trainer.device)}, {'bfloat16 autocast' if config.amp else 'float32'}")
    echo(
        f"text:    {corpus.source}: {len(corpus.tokens):,} characters, {len(corpus.characters)} different, "
        f"{corpus.held_out:,} held out"
    )
    echo(
        f"model:   {parameters:,} parameters: {config.layers} layers, {config.width} wide, {config.heads} heads, "
        f"context {config.context}"
    )
    echo(
        f"steps:   {config.steps:,} of {config.batch_size} × {config.context} = {trainer.tokens_per_step:,} characters, "
        f"{'compiled' if config.compile else 'eager'}"
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line of this example."""
    parser = argparse.ArgumentParser(
        "python -m examples.char_gpt",
        description="Train a character-level transformer on text.",
        epilog=f"{EPILOG} (On a GPU, but for the order in which PyTorch's attention adds.)",
    )
    add_common_options(parser)
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="what to learn, in UTF-8 (default: the standard library's sources)"
    )
    sizes = (
        ("layers", "blocks of attention and network"),
        ("heads", "heads of attention; they divide the width"),
        ("width", "length of each character's vector"),
        ("context", "characters that the model sees at once"),
        ("batch-size", "windows of text in a step"),
        ("steps", "steps of the optimizer"),
        ("eval-every", "steps between evaluations, samples and checkpoints"),
        ("eval-batches", "batches that the validation loss is the mean of"),
    )
    for name, meaning in sizes:
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{meaning} ({defaults(name)})")
    parser.add_argument("--lr", type=float, help=f"highest learning rate of AdamW ({defaults('lr')})")
    parser.add_argument(
        "--amp",
        action=argparse.BooleanOptionalAction,
        help="bfloat16 autocast (default: on a GPU of compute capability 8.0 or newer)",
    )
    parser.add_argument("--compile", action="store_true", help="train through torch.compile")
    parser.add_argument("--prompt", default=Config.prompt, help="what samples continue (default: a line's beginning)")
    parser.add_argument(
        "--sample-length", type=int, default=Config.sample_length, metavar="N", help="characters (default: %(default)s)"
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="measure the tokens per second of both backends, eager and with --compile compiled; nothing is written",
    )
    add_run_options(parser, Config.out)
    return parser


def defaults(name: str) -> str:
    """Both defaults of an option that depends on the device."""
    name = name.replace("-", "_")
    return f"default: {SIZES['cpu'][name]} on a CPU, {SIZES['cuda'][name]} on a GPU"


def main(argv: list[str] | None = None) -> int:
    """Run the example: 0 when done, 1 if the loss diverged, 2 for a mistake in the options, 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a sample may hold what the terminal's encoding does not
    parser = build_parser()
    options = vars(parser.parse_args(argv))
    comparing = options.pop("compare")
    action = measure if comparing else train
    return run_command(
        parser.prog,
        None if comparing else options["out"] / CHECKPOINT,
        lambda: action(Config.for_device(pick_device(options["device"]), options)),
    )


if __name__ == "__main__":
    raise SystemExit(main())
