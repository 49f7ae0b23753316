"""Plots bandwidth over bytes with the roofline of memory-bound operators.

The roofline is GB/s = bytes / max(launch time, bytes / copy bandwidth). The launch time bounds an operator that moves
few bytes. The copy bandwidth bounds an operator that moves many bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install

__all__ = ["METADATA", "STYLE", "Point", "attainable", "draw_roofline"]

# The same timings give the same SVG bytes: no random identifiers, no font outlines, no date.
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "cupyops",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
METADATA = {"Date": None, "Creator": None}
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f")
_MARKERS = {"forward": "o", "backward": "s"}


@dataclass(frozen=True)
class Point:
    """The bandwidth of one implementation in one direction on one set of inputs."""

    implementation: str
    direction: str
    nbytes: int
    gb_per_s: float


def attainable(nbytes: float, copy_gb_per_s: float, launch_microseconds: float) -> float:
    """Returns the roofline at `nbytes`, in GB/s."""
    return min(copy_gb_per_s, nbytes / launch_microseconds / 1e3)


def draw_roofline(
    path: Path, title: str, points: Sequence[Point], copy_gb_per_s: float, launch_microseconds: float
) -> None:
    """Writes the plot as SVG.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            f"a picture needs matplotlib, and it does not import ({error}). "
            f"Install it with: {pip_install('examples', 'matplotlib')}"
        ) from error
    sizes = [p.nbytes for p in points]
    ridge = copy_gb_per_s * launch_microseconds * 1e3  # bytes where the two bounds meet
    low, high = min([*sizes, ridge]) / 4, max([*sizes, ridge]) * 4
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes: Any = figure.subplots()
        roof = [attainable(x, copy_gb_per_s, launch_microseconds) for x in (low, ridge, high)]
        axes.plot([low, ridge, high], roof, color="black", linewidth=1, label="_roof")
        axes.annotate(
            f"copy: {copy_gb_per_s:.0f} GB/s",
            (high, roof[-1]),
            (-4, 4),
            textcoords="offset points",
            ha="right",
            fontsize=7,
        )
        axes.annotate(
            f"a launch: {launch_microseconds:.2f} µs", (low, roof[0]), (6, 0), textcoords="offset points", fontsize=7
        )
        names = list(dict.fromkeys(p.implementation for p in points))
        for name, direction in dict.fromkeys((p.implementation, p.direction) for p in points):
            mine = sorted(
                (p.nbytes, p.gb_per_s) for p in points if (p.implementation, p.direction) == (name, direction)
            )
            axes.plot(
                [x for x, _ in mine],
                [y for _, y in mine],
                marker=_MARKERS.get(direction, "^"),
                markersize=4,
                linewidth=0.8,
                linestyle="-" if direction == "forward" else "--",
                color=_COLOURS[names.index(name) % len(_COLOURS)],
                label=f"{name}, {direction}",
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(title=title, xlabel="bytes read and written", ylabel="GB/s")
        axes.legend(fontsize=7, loc="lower right")
        figure.savefig(path, format="svg", metadata=METADATA)
