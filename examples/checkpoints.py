"""Sharded checkpoints by torch.distributed.checkpoint: every rank writes its part, and any number of ranks can read them.

The last two are kept, `DIR/00000012` for step 12. A checkpoint is written under a temporary name and renamed when it is
complete. `digests.json` has the SHA-256 of each of its files. (`.metadata` is a pickle: resume from folders that you
trust.)
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from .command import UserError, naming

__all__ = ["KEPT", "Checkpoints"]

KEPT = 2
DIGESTS, VALUES = "digests.json", "values.json"


class Checkpoints:
    """The checkpoints in a folder. Every rank must call each method, because each method waits for all ranks."""

    def __init__(self, folder: Path, fabric: Any, echo: Callable[[str], object]) -> None:
        self.folder, self.fabric, self.echo = folder, fabric, echo

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest undamaged checkpoint, and its values that are not tensors; None if there is none.

        `echo` prints the name of a damaged checkpoint, and the checkpoint before it is tried.
        """
        found = None
        if self.fabric.is_global_zero:
            for path in sorted(self.folder.glob("[0-9]*[0-9]"), reverse=True):
                if fault := damage(path):
                    self.echo(f"{path} is damaged ({fault}); taking the checkpoint before it")
                else:
                    found = path, json.loads((path / VALUES).read_text(encoding="utf-8"))
                    break
        taken: tuple[Path, dict[str, Any]] | None = self.fabric.broadcast(found)
        return taken

    def load(self, path: Path, values: Mapping[str, Any], state: dict[str, Any]) -> None:
        """Load modules, optimizers and tensors of `state` in place, and replace its other values.

        The checkpoint has no state of an optimizer that had taken no step. Such an optimizer is not changed.
        """
        began = {key: x for key, x in state.items() if not isinstance(x, Optimizer) or values["begun"]}
        tensors = _tensors(began)
        dcp.load(tensors, checkpoint_id=path)
        for key, x in began.items():
            if isinstance(x, nn.Module):
                set_model_state_dict(_plain(x), tensors[key])
            elif isinstance(x, Optimizer):
                set_optimizer_state_dict(_module(began), _plain(x), optim_state_dict=tensors[key])
            elif not isinstance(x, Tensor):
                state[key] = values[key]

    def save(self, done: int, state: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        """Write the checkpoint of step or epoch `done`; the two newest stay.

        Raises:
            UserError: the folder cannot be written. Earlier checkpoints remain complete.
        """
        path = self.folder / f"{done:08}"
        part, first = path.with_suffix(".part"), self.fabric.is_global_zero
        begun = any(x.state for x in state.values() if isinstance(x, Optimizer))
        kept = {key: x for key, x in state.items() if not isinstance(x, Optimizer) or begun}
        if first:
            for left in self.folder.glob("*.part"):  # left by a run that was killed while it wrote
                shutil.rmtree(left)
        self.fabric.barrier()
        try:
            dcp.save(_tensors(kept), checkpoint_id=part)
        except CheckpointException as error:
            reason = next(iter(error.failures.values()))[0]
            raise UserError(f"{path} cannot be written: {getattr(reason, 'strerror', None) or reason}") from error
        if first:
            values = {key: x for key, x in kept.items() if not isinstance(x, nn.Module | Optimizer | Tensor)}
            with naming(path):
                text = json.dumps({**header, **values, "begun": begun})
                (part / VALUES).write_text(text, encoding="utf-8")
                digests = {file.name: digest(file) for file in sorted(part.iterdir())}
                (part / DIGESTS).write_text(json.dumps(digests, indent=2), encoding="utf-8")
                if path.exists():  # a damaged checkpoint of the step that has now been repeated
                    shutil.rmtree(path)
                part.rename(path)
                for old in sorted(self.folder.glob("[0-9]*[0-9]"))[:-KEPT]:
                    shutil.rmtree(old)
        self.fabric.barrier()


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def damage(path: Path) -> str:
    """The fault of the checkpoint at `path`; an empty text if every file has its recorded digest."""
    try:
        wanted = json.loads((path / DIGESTS).read_text(encoding="utf-8"))
        return next((f"the SHA-256 of {name} differs" for name, d in wanted.items() if digest(path / name) != d), "")
    except (OSError, ValueError, AttributeError) as error:
        return getattr(error, "strerror", None) or f"{DIGESTS} is no JSON object"


def _plain(x: Any) -> Any:
    """The module or optimizer that Fabric has wrapped."""
    if isinstance(x, Optimizer):
        return getattr(x, "optimizer", x)
    return getattr(x, "module", x)


def _module(state: Mapping[str, Any]) -> nn.Module:
    found: nn.Module = _plain(next(x for x in state.values() if isinstance(x, nn.Module)))
    return found


def _tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state dicts of modules and optimizers, and the tensors. The names of parameters do not depend on how a model
    is sharded."""
    found: dict[str, Any] = {}
    for key, x in state.items():
        if isinstance(x, nn.Module):
            found[key] = get_model_state_dict(_plain(x))
        elif isinstance(x, Optimizer):
            found[key] = get_optimizer_state_dict(_module(state), _plain(x))
        elif isinstance(x, Tensor):
            found[key] = x
    return found
