"""A training run on disk: written whole after every epoch, checked before it is used."""

import pickle
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.console import UserError
from examples.files import whole_file

__all__ = ["CHECKPOINT", "Checkpoint", "load_checkpoint", "save_checkpoint", "set_aside"]

CHECKPOINT = "checkpoint.pt"
ARTEFACTS = (CHECKPOINT, "metrics.json", "curves.png", "tensorboard")
FORMAT = "examples.lenet5/1"

Checkpoint = dict[str, Any]
"""`epoch`s done, `model` and `optimizer` states, `history` (a dict per epoch), `settings` that a resume must repeat."""


def save_checkpoint(
    folder: Path,
    *,
    epoch: int,
    model: nn.Module,
    optimizer: dict[str, Any],
    history: list[dict[str, Any]],
    settings: Mapping[str, object],
) -> None:
    """Write ``folder/checkpoint.pt``, or leave the one that is there untouched. Tensors are saved as CPU copies."""
    contents: Checkpoint = {
        "format": FORMAT,
        "epoch": epoch,
        # Copies, because parameters may be views of one vector and a view would be saved with all of it.
        "model": {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()},
        "optimizer": optimizer,
        "history": history,
        "settings": dict(settings),
    }
    with whole_file(folder / CHECKPOINT) as temporary:
        torch.save(contents, temporary)


def load_checkpoint(folder: Path, settings: Mapping[str, object]) -> Checkpoint:
    """Read ``folder/checkpoint.pt``; `UserError` if it is absent, damaged, foreign, or made with other `settings`."""
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UserError(f"--resume: there is no {path}; leave out --resume to begin, or name the run's --out")
    mend = "leave out --resume to begin anew"
    try:
        # torch.load does not look at the checksums that torch.save writes, so a flipped bit would pass.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise UserError(f"{path} is damaged: the checksum of its part {damaged} is wrong; {mend}")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, EOFError, pickle.UnpicklingError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"{path} is damaged or is no checkpoint ({reason}); {mend}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {mend}") from None
    found = contents.get("format") if isinstance(contents, dict) else type(contents).__name__
    if found != FORMAT:
        raise UserError(f"{path} is no checkpoint of this example: expected format {FORMAT!r}, found {found!r}; {mend}")
    other = [
        f"--{name.replace('_', '-')} was {contents['settings'].get(name)}, is {value}"
        for name, value in settings.items()
        if contents["settings"].get(name) != value
    ]
    if other:
        raise UserError(f"--resume must repeat the settings that {path} was made with: {'; '.join(other)}; or {mend}")
    return contents


def set_aside(folder: Path) -> Path | None:
    """Move what an earlier run left in `folder` to ``folder/earlier-N``; return that, or None if there was nothing.

    Only this example's own files are moved, so any folder may be used.
    """
    left = [folder / name for name in ARTEFACTS if (folder / name).exists()]
    if not left:
        return None
    number = 1
    while (target := folder / f"earlier-{number}").exists():
        number += 1
    target.mkdir()
    for path in left:
        shutil.move(path, target / path.name)
    return target
