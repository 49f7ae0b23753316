"""The cross entropy of a matrix of logits that the loss overwrites by their gradient: row programs for each form of the loss.

A program reads a row of logits, writes the loss of the row, and the gradient over the logits. The last elements of a
row of the logits, and of arrays with a value for each class, may be padding.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from torch import Tensor

from cupyops.programs.expressions import parse
from cupyops.programs.row_config import RowKernels
from cupyops.programs.rows import RowProgram
from cupyops.torch.programs.row_reduce import body_of

__all__ = ["Form", "columns_of", "declare_ahead", "loss_of_rows", "program_of"]


class Form(NamedTuple):
    """The parts of a loss. A separate form has no instructions for the parts that it lacks.

    Attributes:
        padded: whether rows have elements after the last class.
        biased: whether a bias is added to the logits.
        capped: whether the logits z become softcap·tanh(z/softcap).
        smoothed: whether the targets are smoothed.
        weighted: whether classes have weights.
        squared: whether z_loss·(log Σ e^z)² is added.
    """

    padded: bool = False
    biased: bool = False
    capped: bool = False
    smoothed: bool = False
    weighted: bool = False
    squared: bool = False

    @property
    def scalars(self) -> tuple[str, ...]:
        """The numbers that a program of this form takes."""
        of = {"smoothing": self.smoothed, "softcap": self.capped, "z_loss": self.squared, "classes": self.padded}
        return ("ignore", *(name for name, wanted in of.items() if wanted))

    @property
    def columns(self) -> tuple[str, ...]:
        """The arrays with a value for each class that a program of this form takes."""
        return (*["bias"] * self.biased, *["weight"] * self.weighted)


@functools.cache
def loss_of_rows(form: Form, graded: bool) -> Callable[..., Any]:
    """Returns the function ``(x, [grad_loss], target, *columns, *scalars)`` of logits x (M, N) that returns the losses (M).

    With ``graded`` the function takes the gradients (M) of the losses, writes the gradient of the logits over x, which is
    contiguous, and returns both.
    """
    return body_of(_kernels(form, graded), ["row", "element"] if graded else ["row"])


@functools.cache
def _kernels(form: Form, graded: bool) -> RowKernels:
    return RowKernels(program_of(form, graded))


def declare_ahead(lengths: Iterable[tuple[int, Form]]) -> None:
    """Declares the kernels of a form of the loss for rows of some lengths."""
    for (n, form), graded in product(lengths, (False, True)):
        _kernels(form, graded).ahead((n,))


def program_of(form: Form, graded: bool) -> RowProgram:
    """Returns the program. With q the smoothed and weighted target of each class, p = e^(z - m)·r the softmax and Q = Σ q, the
    loss is Σ q·(log Σ e^z - z), and its gradient p·Q - q.

    The sums are sums of z - o with o = z[target], so that they keep the digits of the differences between large logits.
    """
    c = "classes" if form.padded else "N"
    z, at = ("x + bias", "x[target] + bias[target]") if form.biased else ("x", "x[target]")
    cap = (lambda z: f"softcap * tanh(({z}) / softcap)") if form.capped else (lambda z: z)
    inside = (lambda value: f"j < classes ? {value} : 0") if form.padded else (lambda value: value)
    lines = [
        f"t = {cap(at)}",
        f"z = j < classes ? {cap(z)} : -INFINITY" if form.padded else f"z = {cap(z)}",
        "m = max(z)",
        "s = sum(exp(z - m))",
        "l = log(s)",
        f"of_target = target >= 0 && target < {c} ? m - t + l : NAN",
    ]
    share = "weight[target] * " if form.weighted else ""
    loss = f"{share}of_target"
    if form.smoothed:
        lines.append("o = abs(t) < 1e30 ? t : 0")
        if form.weighted:
            lines.append("total = sum(weight)")
            of_all = f"total * (m - o + l) - sum({inside('weight * (z - o)')})"
        else:
            of_all = f"{c} * (m - o + l) - sum({inside('z - o')})"
        loss = f"(1 - smoothing) * {loss} + smoothing / {c} * ({of_all})"
    if form.squared:
        loss = f"{loss} + z_loss * (m + l) * (m + l)"
    lines.append(f"loss = target == ignore ? 0 : {loss}")
    if graded:
        lines += _gradient(form, c, share, inside)
    return RowProgram(
        "linear_cross_entropy" + "_gradient" * graded,
        tuple(parse("\n".join(lines), "linear_cross_entropy", ["target"])),
        elements=("x",),
        rows=("grad_loss",) * graded,
        indices=("target",),
        columns=form.columns,
        scalars=form.scalars,
        results=("loss", "grad_x") if graded else ("loss",),
        wide=("loss",),
        like=(("grad_x", "x"),) if graded else (),
        over=("grad_x", "x") if graded else (),
    )


def _gradient(form: Form, c: str, share: str, inside: Callable[[str], str]) -> Sequence[str]:
    """Returns the statements of the gradient of the logits."""
    lines = ["g = target == ignore ? 0 : grad_loss", f"w = {share}{'(1 - smoothing)' if form.smoothed else '1'}"]
    every, total = "", "w"
    if form.smoothed:
        lines.append(f"e = smoothing / {c}")
        every, total = (" - e * weight", "w + e * total") if form.weighted else (" - e", "w + smoothing")
    squared = " + 2 * z_loss * (m + l)" if form.squared else ""
    slope = " * (1 - z / softcap * (z / softcap))" if form.capped else ""
    value = f"(exp(z - m) * r - (j == target ? w : 0){every}) * g{slope}"
    return [*lines, f"r = ({total}{squared}) / s", f"grad_x = {inside(value)}"]


def columns_of(form: Form, bias: Tensor | None, weight: Tensor | None) -> list[Tensor]:
    """Returns the arrays with a value for each class that a call of this form takes."""
    return [x for x, wanted in ((bias, form.biased), (weight, form.weighted)) if wanted and x is not None]
