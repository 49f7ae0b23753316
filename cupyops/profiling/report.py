"""The report of :func:`cupyops.explain`."""

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path

from .launch_report import KernelReport
from .page import page

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """What :func:`cupyops.explain` returns. In a notebook it is a page with the source and pictures.

    Attributes:
        kernels: one report for each launch, in their order.
    """

    kernels: tuple[KernelReport, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.kernels))

    def _repr_html_(self) -> str:
        # A frame separates the page's styles from the notebook's.
        return f'<iframe srcdoc="{escape(page(self.kernels))}" style="width:100%;height:44rem;border:0"></iframe>'

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one HTML file, which loads nothing from a network.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(page(self.kernels), encoding="utf-8")
