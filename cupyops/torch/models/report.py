"""The changes that :func:`cupyops.torch.optimize` made to a model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from cupyops.profiling.tables import bar, cell, table

from .classes import original_class
from .measured import Measured

__all__ = ["OptimizeReport", "Site"]


@dataclass(frozen=True)
class Site:
    """A place in a model.

    Attributes:
        name: the name of a module.
        what: the module's class, or the calls in one of its methods.
        operator: the operator that is called there now; empty if the place was left alone.
        reason: why the place was left alone; empty if it was not.
    """

    name: str
    what: str
    operator: str = ""
    reason: str = ""


class OptimizeReport:
    """The result of :func:`cupyops.torch.optimize`. ``undo()`` reverts the changes.

    ``print(report)`` shows what was replaced, what was left alone, and why; in a notebook the report is a table. As a
    context manager, the report undoes the change at the end of the block.

    Attributes:
        model: the model.
        replaced: the places that call an operator now.
        skipped: the places that were left alone, with the reasons.
        notes: patterns of ``include`` and ``exclude`` that match no name.
        measured: what each kind of change does to the time of a step; empty without ``step=``.
    """

    def __init__(
        self,
        model: nn.Module,
        replaced: Sequence[Site],
        skipped: Sequence[Site],
        notes: Sequence[str],
        classes: Mapping[nn.Module, type[nn.Module]],
        measured: Sequence[Measured] = (),
    ) -> None:
        self.model = model
        self.replaced = tuple(replaced)
        self.skipped = tuple(skipped)
        self.notes = tuple(notes)
        self.measured = tuple(measured)
        self._classes = dict(classes)

    def __enter__(self) -> "OptimizeReport":
        return self

    def __exit__(self, *_: Any) -> None:
        self.undo()

    def __repr__(self) -> str:
        name = type(self.model).__name__
        return f"<OptimizeReport of {name}: {len(self.replaced)} replaced, {len(self.skipped)} skipped>"

    def __str__(self) -> str:
        name = type(self.model).__name__
        head = f"optimize({name}): {len(self.replaced)} places call cupyops, {len(self.skipped)} are left alone"
        lines = [head if self.replaced else f"optimize({name}): nothing to replace"]
        lines += _lines(self.replaced)
        if self.skipped:
            lines.append("left alone:")
            lines += _lines(self.skipped)
        if self.measured:
            lines.append("a step:")
            lines += [f"  {one}" for one in self.measured]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        most = max((count for _, count, _, _ in _groups(self.replaced + self.skipped)), default=1)
        rows = [
            [cell(title), bar(str(count), count / most, colour), cell(what), cell(places)]
            for sites, colour in ((self.replaced, "#a8dcb5"), (self.skipped, "#dddddd"))
            for title, count, what, places in _groups(sites)
        ]
        notes = "\n".join([*map(str, self.measured), *self.notes])
        return table(str(self).partition("\n")[0], ("operator, or why not", "places", "of", "names"), rows, notes)

    def undo(self) -> None:
        """Gives every module its class back. A second call does nothing.

        Deep copies of the model that were made in between keep their classes.

        Raises:
            RuntimeError: other code has changed the class of a module in the meantime. The other modules are restored.
        """
        changed = []
        for module, made in self._classes.items():
            if type(module) is made:
                original = original_class(made)
                assert original is not None
                module.__class__ = original
            elif original_class(made) is not type(module):
                changed.append(type(module).__name__)
        self._classes = {}
        if changed:
            raise RuntimeError(
                f"undo: something else has changed the class of {len(changed)} modules since optimize(): "
                f"{', '.join(sorted(set(changed)))}; these modules were left as they are, the others are restored"
            )


def _lines(sites: Iterable[Site]) -> list[str]:
    return [f"  {title}: {count} x {what}: {places}" for title, count, what, places in _groups(sites)]


def _groups(sites: Iterable[Site]) -> list[tuple[str, int, str, str]]:
    """Returns for each kind of place the operator or the reason, the number of places, what they are, and their names.
    Names that differ only in numbers share an entry, with * for the numbers."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for site in sites:
        names = groups.setdefault((site.operator or site.reason, site.what), {})
        names.setdefault(re.sub(r"\b\d+\b", "*", site.name), []).append(site.name or "(the model)")
    found = []
    for (title, what), names in groups.items():
        places = ", ".join(each[0] if len(each) == 1 else f"{p} ({len(each)})" for p, each in names.items())
        found.append((title, sum(map(len, names.values())), what, places))
    return found
