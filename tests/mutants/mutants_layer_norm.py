"""The mutants of layer normalisation: of its formulas, of the choice of a program, and of arrays that hold several values of a row."""

FORMULAS, BODY, SOURCE = (
    "cupyops/ops/layer_norm/programs.py",
    "cupyops/ops/layer_norm/body.py",
    "cupyops/programs/row_source.py",
)

Fault = tuple[str, str, str, str]  # what, file, old, new

LAYER_NORM: list[Fault] = [
    ("mean forgotten", FORMULAS, "d = {x} - m; r", "d = {x}; r"),
    ("variance not of the mean", FORMULAS, "r = rsqrt(sum(d * d)", "r = rsqrt(sum({x} * {x})"),
    ("variance over n - 1", FORMULAS, "sum(d * d) * n", "sum(d * d) * (1.0 / (N - 1))"),
    ("eps left out", FORMULAS, " * n + eps)", " * n)"),
    ("sum not rounded", FORMULAS, '"rounded(x + residual)"', '"x + residual"'),
    ("mean of a row with an infinity", FORMULAS, '"r == r ? m : r"', '"m"'),
    ("weight left out of the gradient of x", FORMULAS, '"grad_y * weight" if weight', '"grad_y" if weight'),
    ("mean of the gradient left out", FORMULAS, "r * (w - a - xhat * b)", "r * (w - xhat * b)"),
    ("mean of the product left out", FORMULAS, "r * (w - a - xhat * b)", "r * (w - a)"),
    ("a further gradient left out", FORMULAS, '" + grad_sum" * grad_sum', '""'),
    ("gradient of weight of the gradient alone", FORMULAS, '"column_sum(grad_y * xhat)"', '"column_sum(grad_y)"'),
    ("gradient of bias of the normalised row", FORMULAS, '"column_sum(grad_y)"', '"column_sum(grad_y * grad_y)"'),
    ("tangent of weight left out", FORMULAS, '" + tangent_weight * xhat" * tangent_weight', '""'),
    ("tangent's mean left out", FORMULAS, '"r * (tangent_x - a - xhat * b)"', '"r * (tangent_x - xhat * b)"'),
    ("first part of an array for all", SOURCE, "+ {i} * {of_row};", "+ 0 * {of_row};"),
    (
        "sums of weight and bias swapped",
        BODY,
        "(grad_weight, grad_bias) if count == 2",
        "(grad_bias, grad_weight) if count == 2",
    ),
    (
        "statistics of a call without them",
        BODY,
        "*has, want_stats, call",
        "*has, True, call",
    ),
]
