"""The options of `examples.char_gpt`, and the sizes that a CPU and a GPU get unless asked otherwise. No PyTorch here:
`--help` and wrong arguments are answered before its import."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from examples.command import EPILOG, Parser, UserError, at_least, pick_device, positive

# On two CPU cores a run takes about a minute. The GPU's model has 10.8 million parameters; its batches of 65536 characters
# keep a GPU of today busy for longer than Python takes to ask for a step.
SIZES: dict[str, tuple[str, int, int]] = {  # meaning, default on a CPU, default on a GPU
    "layers": ("blocks of attention and network", 3, 6),
    "heads": ("heads of attention; they divide the width", 4, 6),
    "width": ("length of each character's vector", 128, 384),
    "context": ("characters that the model sees at once", 64, 256),
    "batch_size": ("windows of text in a step", 16, 256),
    "steps": ("steps of the optimizer", 800, 2000),
    "eval_every": ("steps between evaluations, samples and checkpoints", 200, 200),
    "eval_batches": ("batches that the validation loss is the mean of", 20, 12),
}
UNTIMED_STEPS = 10  # at the beginning of a process, while memory is still being allocated
RATES = (4e-3, 1e-3)  # on a CPU, on a GPU
# The number of steps decides the numbers, too: the learning rate falls towards the last step.
SETTINGS = ("layers", "heads", "width", "context", "batch_size", "steps", "lr", "amp", "seed", "backend", "compile")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line. Options that depend on the device are None unless they are given."""
    parser = Parser(
        "char_gpt",
        "Train a character-level transformer on text.",
        f"{EPILOG} (On a GPU, but for the order in which PyTorch's attention adds.)",
    )
    add = parser.add_argument
    parser.add_common()
    add("--text", type=Path, metavar="FILE", help="what to learn, in UTF-8 (default: the standard library's sources)")
    default = "default: {} on a CPU, {} on a GPU"
    for name, (meaning, *sizes) in SIZES.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=at_least(1), metavar="N", help=f"{meaning} ({default.format(*sizes)})")
    add("--lr", type=positive, help=f"highest learning rate of AdamW ({default.format(*RATES)})")
    amp = "bfloat16 autocast (default: on a GPU of compute capability 8.0 or newer)"
    add("--amp", action=argparse.BooleanOptionalAction, help=amp)
    add("--compile", action="store_true", help="train through torch.compile")
    add("--prompt", default="", help="what samples continue (default: a line's beginning)")
    add("--sample-length", type=at_least(1), default=300, metavar="N", help="characters (default: %(default)s)")
    both = "measure the tokens per second of both backends, eager and with --compile compiled; nothing is written"
    add("--compare", action="store_true", help=both)
    parser.add_run("runs/char_gpt")
    options = parser.parse_run(argv)
    if options.text is not None and not options.text.exists():
        parser.error(f"--text: there is no file {options.text}")
    if options.width and options.heads and options.width % options.heads:
        parser.error(f"--width must be a multiple of --heads, got {options.width} and {options.heads}")
    return options


def complete(options: argparse.Namespace) -> None:
    """Give the options that are None the defaults of the device."""
    import torch

    device = pick_device(options.device)
    on_gpu = device.type == "cuda"
    # Without bfloat16 units, before compute capability 8.0, autocast would cost time instead of saving it.
    amp = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    for name, (_, *sizes) in {**SIZES, "lr": ("", *RATES), "amp": ("", amp, amp)}.items():
        if getattr(options, name) is None:
            setattr(options, name, sizes[on_gpu])
    if options.width % options.heads:
        raise UserError(f"--width must be a multiple of --heads, got {options.width} and {options.heads}")
