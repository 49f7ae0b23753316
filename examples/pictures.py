"""Pictures that the examples draw with matplotlib: curves, and images of digits with their predicted classes."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .command import UserError, write_whole

Curve = Sequence[float] | Mapping[str, Sequence[float]]  # one line, or several by name


def picture(
    path: Path, draw: Callable[..., object], *args: Any, name: str = "Picture", echo: Callable[[str], object] = print
) -> None:
    """Have `draw` write a picture to `path`, and print the path. Without matplotlib, print that no picture is drawn."""
    try:
        draw(path, *args)
        echo(f"{name}: {path}")
    except ModuleNotFoundError as error:
        from cupyops.installing import pip_install

        echo(f"No {name.lower()}: {error}; {pip_install('examples', 'matplotlib')}")


def new_figure(width: float, height: float) -> Any:
    """A figure in inches. The figure does not belong to pyplot, so there is no window and no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of the path's ending, PNG without one; make the folder if there is none.

    Raises:
        UserError: matplotlib does not know the format, or the file cannot be written. An existing file is then not
        changed.
    """
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=path.suffix[1:] or "png", dpi=120)
    except ValueError as error:
        raise UserError(f"--plot: cannot write {path}: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, drawn.getbuffer())


def plot_curves(
    path: Path, curves: Mapping[str, Curve], title: str, unit: str = "epoch", at: Sequence[int] | None = None
) -> None:
    """Draw curves side by side; a loss has a logarithmic axis.

    Args:
        curves: label of the axis to its values, or to the values of several lines by name.
        unit: label of the horizontal axis.
        at: places of the values on that axis; by default 1, 2, 3, ...
    """
    figure = new_figure(10, 4)
    figure.suptitle(title)
    for axes, (label, curve) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        lines = curve if isinstance(curve, Mapping) else {"": curve}
        for name, values in lines.items():
            places = list(at or range(1, len(values) + 1))[: len(values)]
            axes.plot(places, values, marker="o", markersize=3, label=name or None)
        axes.set(xlabel=unit, ylabel=label, yscale="log" if "loss" in label or "error" in label else "linear")
        axes.locator_params(axis="x", integer=True)
        axes.grid(visible=True, alpha=0.3)
        if len(lines) > 1:
            axes.legend()
    write_figure(figure, path)


def plot_digits(path: Path, images: Any, labels: Sequence[int], found: Sequence[int]) -> None:
    """Draw up to 32 images (N, 28, 28) with their predicted digits. Mistakes come first, in red, with the correct
    digit."""
    order = sorted(range(len(labels)), key=lambda i: labels[i] == found[i])[:32]
    figure = new_figure(10, 6.4)
    figure.suptitle(f"Mistakes: {sum(a != b for a, b in zip(labels, found, strict=True))} of {len(labels)} digits")
    for axes, i in zip(figure.subplots(4, 8).flat, order, strict=False):
        axes.imshow(images[i], cmap="gray_r")
        right = labels[i] == found[i]
        axes.set_title(f"{found[i]}" if right else f"{found[i]}, is {labels[i]}", color="black" if right else "red")
    for axes in figure.axes:
        axes.set_axis_off()
    write_figure(figure, path)
