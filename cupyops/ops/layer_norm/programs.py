"""Layer normalisation as row programs: one for each combination of operands and results.

With x̂ = (x - mean)·rstd, rstd = 1/√(var + eps), g = dL/dy and w = g·weight::

    y = x̂·weight + bias
    dL/dx = rstd·(w - mean(w) - x̂·mean(w·x̂)),    dL/dweight = Σ_rows g·x̂,    dL/dbias = Σ_rows g
    ẏ = weight·rstd·(ẋ - mean(ẋ) - x̂·mean(ẋ·x̂)) + ẇeight·x̂ + ḃias

A second pass over the registers takes the differences from the mean that the first pass has rounded, and their mean off them, as
Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983, correct the two-pass algorithm.
"""

from collections.abc import Mapping
from functools import cache

from cupyops.programs.expressions import parse
from cupyops.programs.row_config import RowKernels
from cupyops.programs.rows import RowProgram

__all__ = ["backward_program", "forward_program", "tangent_program"]

_NORMALIZED = (
    "m = sum({x}) / N; d = {x} - m; e = sum(d) / N; q = sum(d * d) / N; v = q - (e * e < q ? e * e : 0);"
    " r = rsqrt(v + eps); xhat = (d - e) * r"
)
_SAVED = "xhat = (x - m) * r"


def _made(
    name: str,
    statements: Mapping[str, str],
    elements: tuple[str, ...],
    results: tuple[str, ...],
    columns: tuple[str, ...] = (),
    lead: str = "x",
    like: RowKernels | None = None,
    **others: tuple[object, ...],
) -> RowKernels:
    program = RowProgram(
        name,
        tuple(parse("; ".join(f"{y} = {of}" if of else y for y, of in statements.items()), name)),
        elements,
        columns=columns,
        results=results,
        leads=lead,
        **{"rows": (), "indices": (), "scalars": (), **others},  # type: ignore[arg-type]
    )
    return RowKernels(program, like)


@cache
def forward_program(residual: bool, mixed: bool, weight: bool, bias: bool, stats: bool, typed: bool) -> RowKernels:
    """Returns the program of y, of s = x + residual with a residual, and of the statistics.

    Args:
        residual: there is a residual.
        mixed: x and the residual have different dtypes, or another dtype than their sum.
        weight, bias: there is a weight, and a bias.
        stats: mean and rstd are results, (2, M).
        typed: y has another dtype than x, or than s.
    """
    x = "s" if residual else "x"
    y = "xhat" + " * weight" * weight + " + bias" * bias
    saved = ("mean", "r") if stats else ()
    statements = {"s": "rounded(x + residual)"} if residual else {}
    statements |= {_NORMALIZED.format(x=x): "", "y": y} | ({"mean": "m + e"} if stats else {})
    return _made(
        "add_layer_norm" if residual else "layer_norm",
        statements,
        ("x", "residual") if residual else ("x",),
        ("y", *(["s"] if residual else []), *saved),
        (*(["weight"] if weight else []), *(["bias"] if bias else [])),
        "s" if mixed else "x",
        None if stats and not typed else forward_program(residual, mixed, weight, bias, True, False),
        scalars=("eps",),
        wide=saved,
        typed=("y",) if typed else (),
        stacks=(("stats", saved),) if stats else (),
    )


@cache
def backward_program(weight: bool, grad_sum: bool, want_x: bool, want_weight: bool, want_bias: bool) -> RowKernels:
    """Returns the program of the requested gradients. ``grad_sum`` is a further gradient of x.

    The sums over the rows are one array (2, parts, N) if both are wanted.
    """
    wanted = {"grad_x": want_x, "grad_weight": want_weight, "grad_bias": want_bias}
    results = tuple(name for name, want in wanted.items() if want)
    reads_x = want_x or want_weight
    statements = {_SAVED: ""} if reads_x else {}
    if want_x:
        more = " + grad_sum" * grad_sum
        statements |= {"n": "1.0 / N", "w": "grad_y * weight" if weight else "grad_y"}
        # A row of one element has no gradient. The difference would leave the rounding error of the product w.
        statements |= {"a": "sum(w) * n", "b": "sum(w * xhat) * n", "s": "N == 1 ? 0 : r"}
        statements["grad_x"] = f"s * (w - a - xhat * b){more}"
    if want_weight:
        statements["grad_weight"] = "column_sum(grad_y * xhat)"
    if want_bias:
        statements["grad_bias"] = "column_sum(grad_y)"
    return _made(
        "layer_norm_backward",
        statements,
        ("grad_y", *(["x"] if reads_x else []), *(["grad_sum"] if grad_sum and want_x else [])),
        results,
        ("weight",) if weight and want_x else (),
        "x" if reads_x else "grad_y",
        rows=("m", "r") if reads_x else (),
        stacks=(
            *([("stats", ("m", "r"))] if reads_x else []),
            *([("sums", ("grad_weight", "grad_bias"))] if want_weight and want_bias else []),
        ),
    )


@cache
def tangent_program(weight: bool, tangent_weight: bool, tangent_bias: bool, typed: bool) -> RowKernels:
    """Returns the program of ẏ, of another dtype than x's if ``typed``."""
    columns = {"weight": weight, "tangent_weight": tangent_weight, "tangent_bias": tangent_bias}
    y = "t" + " * weight" * weight + " + tangent_weight * xhat" * tangent_weight + " + tangent_bias" * tangent_bias
    return _made(
        "layer_norm_jvp",
        {
            _SAVED: "",
            "n": "1.0 / N",
            "a": "sum(tangent_x) * n",
            "b": "sum(tangent_x * xhat) * n",
            "t": "r * (tangent_x - a - xhat * b)",
            "y": y,
        },
        ("x", "tangent_x"),
        ("y",),
        tuple(name for name, given in columns.items() if given),
        rows=("m", "r"),
        typed=("y",) if typed else (),
        stacks=(("stats", ("m", "r")),),
    )
