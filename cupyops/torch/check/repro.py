"""The file that :func:`cupyops.save_repro` writes for a failed check of an operator."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from cupyops.arrays import Info, library_of
from cupyops.errors import expected, nearest
from cupyops.launch.repro import Script, literal, stored
from cupyops.launch.saved_memory import SavedMemory
from cupyops.torch.core.operator import Operator

__all__ = ["Checked"]


@dataclass(frozen=True)
class Checked:
    """A call of :func:`cupyops.torch.check_op`, some of whose checks have failed.

    Attributes:
        op: the operator.
        samples: the samples, as tuples of all arguments.
        tolerance, dtypes: the arguments of ``check_op``.
        failed: the rows of the failed checks.
        prove: the conditions of the argument ``prove``.
    """

    op: Operator
    samples: Sequence[tuple[Any, ...]]
    tolerance: float
    dtypes: Sequence[str] | None
    failed: Sequence[Any]
    prove: Sequence[str] = ()

    def __reduce__(self) -> Any:
        return type(None), ()  # an exception that is pickled for another process loses the operator

    def script(self, check: str | None, operator: str | None) -> Script:
        """Returns the file of a failed launch if a launch failed in the check, else the file of the check.

        Raises:
            ValueError: the check did not fail; or no module has the operator as an attribute.
        """
        names = [row.check for row in self.failed]
        if check is not None and check not in names:
            wanted = f"be a failed check, {' or '.join(names)}{nearest(check, names)}"
            raise ValueError(expected("save_repro", "check", wanted, repr(check)))
        row = next(row for row in self.failed if check in (None, row.check))
        launch = stored(row.error) if row.error is not None and operator is None else None
        if launch is not None and not launch.arguments.lead.fake:
            found: Script = launch.script(None, None)
            return found
        infos: dict[str, Info] = {}
        plain = [_plain(args) for args in self.samples]  # keeps the memory alive until it is copied
        samples = ["    (" + "".join(f"{_value(x, infos)}, " for x in args) + ")," for args in plain]
        given: dict[str, Any] = {"checks": [row.check], "backends": [row.backend]}
        given |= {"tolerance": self.tolerance} if self.tolerance != 1 else {}
        given |= {"dtypes": list(self.dtypes)} if self.dtypes is not None else {}
        given |= {"prove": list(self.prove)} if self.prove else {}
        words = ", ".join(f"{name}={literal(value)}" for name, value in given.items())
        return Script(
            f"{row.check} ({row.backend}) of {self.op.qualified_name}: {row.words}",
            "Runs the check again, of the operator that the module has now.",
            [
                "import sys",
                "",
                "import torch",
                "from cupyops.launch.saved_memory import restored",
                "from cupyops.torch import check_op",
                *self._imported(operator),
            ],
            [],
            SavedMemory.copied(infos),
            True,
            ["samples = [", *samples, "]", f"check_op(operator, samples, {words})"],
        )

    def _imported(self, operator: str | None) -> list[str]:
        """Returns the lines that import the operator as ``operator``."""
        if operator is not None:
            name, _, expression = operator.partition(":")
            if not name or not expression:
                raise ValueError(expected("save_repro", "operator", "be 'module:expression'", repr(operator)))
            return [*_path_lines(sys.modules.get(name)), f"import {name}", "", f"operator = {name}.{expression}"]
        for module in list(sys.modules.values()):
            for attribute, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
                if self._is(value) and (name := _importable(module)):
                    return [*_path_lines(module), f"from {name} import {attribute} as operator"]
        raise ValueError(
            f"save_repro: no module has {self.op.qualified_name} as an attribute, so a file cannot import the operator. "
            f"Give operator='module:expression'"
        )

    def _is(self, value: Any) -> bool:
        return value is self.op or (type(value) is FunctionType and getattr(value, "op", None) is self.op)


def _plain(value: Any) -> Any:
    """Returns an argument without the negative and conjugate bits of its tensors, whose memory has other values."""
    if isinstance(value, Tensor):
        return value.detach().resolve_neg().resolve_conj().requires_grad_(value.requires_grad)
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _value(x: Any, infos: dict[str, Info]) -> str:
    """Returns the Python text of an argument, and adds its tensors to the arrays of the file."""
    if isinstance(x, Tensor):
        name = f"{len(infos)}"
        infos[name] = replace(library_of(x).info(x), pointer=x.data_ptr())
        return f'arrays["{name}"]{".cuda()" if x.is_cuda else ""}{".requires_grad_()" if x.requires_grad else ""}'
    if isinstance(x, (list, tuple)) and any(isinstance(part, Tensor) for part in x):
        return "[" + "".join(f"{_value(part, infos)}, " for part in x) + "]"
    return str(x) if isinstance(x, (torch.dtype, torch.layout)) else literal(x)


def _importable(module: ModuleType) -> str:
    """Returns the name by which another process can import a module; the empty string if there is none."""
    if module.__name__ != "__main__":
        return module.__name__
    file = getattr(module, "__file__", None)
    return Path(file).stem if file and Path(file).stem.isidentifier() else ""


def _path_lines(module: ModuleType | None) -> list[str]:
    """Returns the line that makes a module's folder known to Python."""
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return []
    folder = Path(file).resolve().parent
    for _ in range(_importable(module).count(".") + (Path(file).name == "__init__.py")):
        folder = folder.parent
    return ["", f"sys.path.append({str(folder)!r})"]
