"""How a training run may end, and what the reader is told then."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from cupyops.errors import MissingDependencyError
from examples.console import UserError, report_error

__all__ = ["Diverged", "check_finite", "run_command"]


class Diverged(RuntimeError):
    """A loss was infinite or NaN."""


def check_finite(losses: Tensor, model: nn.Module, *, where: Callable[[int], str], after: str, lr: float) -> None:
    """Raise `Diverged` if one of `losses` is not finite, or a parameter of `model` is not.

    `where(i)` names the place of loss i and `after` that of the parameters, in the message: the last step of all has no
    loss after it to show what it did.
    """
    finite = losses.isfinite()
    if not finite.all():
        first = int(finite.logical_not().nonzero()[0])
        raise Diverged(
            f"the loss became {losses[first].item()} in {where(first)}; a lower --lr may help, this run had {lr:g}"
        )
    if not torch.stack([parameter.isfinite().all() for parameter in model.parameters()]).all():
        raise Diverged(f"the parameters are not finite after {after}; a lower --lr may help")


def run_command(program: str, checkpoint: Path | None, action: Callable[[], object]) -> int:
    """Call `action`: 0 when done, 1 if it diverged, 2 for what cannot be had, 130 after Ctrl-C, each with its message.

    A run that ends early is told of its `checkpoint`, if it keeps one and has written it.
    """
    try:
        action()
    except (UserError, MissingDependencyError, OSError) as error:  # OSError: the disk is full, or was taken away
        return report_error(program, error)
    except Diverged as error:
        kept = checkpoint is not None and checkpoint.exists()
        print(f"Stopped: {error}." + (f" {checkpoint} holds the last good state." if kept else ""), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = checkpoint is not None and checkpoint.exists()
        hint = f" {checkpoint} is kept; the same command with --resume goes on from it." if kept else ""
        print(f"\nInterrupted.{hint}", file=sys.stderr)
        return 130
    return 0
