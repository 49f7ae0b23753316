"""A training run on disk: written whole every time, checked before it is used."""

import io
import pickle
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.console import UserError
from examples.files import write_whole

__all__ = ["CHECKPOINT", "Checkpoint", "load_checkpoint", "open_folder", "save_checkpoint", "set_aside"]

CHECKPOINT = "checkpoint.pt"
ARTEFACTS = (CHECKPOINT, "metrics.json", "curves.png", "tensorboard")
FORMAT = "examples.{}/1"

Checkpoint = dict[str, Any]
"""The `model`'s state, the `settings` that a resume must repeat, and what else the example has saved."""


def save_checkpoint(
    folder: Path, example: str, *, model: nn.Module, settings: Mapping[str, object], **state: object
) -> None:
    """Write ``folder/checkpoint.pt``, or leave the one that is there untouched and raise `Unwritable`.

    It holds the name of the `example`, CPU copies of the model's tensors, `settings`, and `state` under its own names.
    """
    contents: Checkpoint = {
        "format": FORMAT.format(example),
        # Copies, because parameters may be views of one vector and a view would be saved with all of it.
        "model": {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()},
        "settings": dict(settings),
        **state,
    }
    whole = io.BytesIO()  # onto a full disk, torch.save would fail with words of its own
    torch.save(contents, whole)
    write_whole(folder / CHECKPOINT, whole.getbuffer())


def load_checkpoint(folder: Path, example: str, settings: Mapping[str, object]) -> Checkpoint:
    """Read ``folder/checkpoint.pt``; `UserError` if it is absent, damaged, not of this `example`, or made with other
    `settings`."""
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
    wanted = FORMAT.format(example)
    if found != wanted:
        raise UserError(f"{path} is no checkpoint of this example: expected format {wanted!r}, found {found!r}; {mend}")
    other = [
        f"--{name.replace('_', '-')} was {contents['settings'].get(name)}, is {value}"
        for name, value in settings.items()
        if contents["settings"].get(name) != value
    ]
    if other:
        raise UserError(f"--resume must repeat the settings that {path} was made with: {'; '.join(other)}; or {mend}")
    return contents


def open_folder(
    out: Path, echo: Callable[[str], object], *, going_on_after: str | None, save: Callable[[], object]
) -> None:
    """Make ``--out`` ready: an earlier run's files move aside, and the beginning is saved, so Ctrl-C finds it.

    A run that goes on keeps the files that are there; `going_on_after` says after what.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if going_on_after is not None:
            echo(f"output:  {out}, going on after {going_on_after}")
            return
        earlier = set_aside(out)
        echo(f"output:  {out}" + (f" (an earlier run's files moved to {earlier})" if earlier else ""))
        save()
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error}; name another folder with --out") from None


def set_aside(folder: Path) -> Path | None:
    """Move what an earlier run left in `folder` to ``folder/earlier-N``; return that, or None if there was nothing.

    Only the examples' own files are moved, so any folder may be used.
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
