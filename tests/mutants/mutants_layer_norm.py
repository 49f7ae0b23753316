"""The mutants of layer normalisation: of its formulas, of the choice of a program, and of arrays that hold several values of a row."""

FORMULAS, BODY, SOURCE = (
    "cupyops/ops/layer_norm/programs.py",
    "cupyops/ops/layer_norm/body.py",
    "cupyops/programs/row_source.py",
)

Fault = tuple[str, str, str, str]  # what, file, old, new

_WHOLE = (
    '"m = sum({x}) / N; d = {x} - m; e = sum(d) / N; q = sum(d * d) / N; v = q - (e * e < q ? e * e : 0);"'
    ' " r = rsqrt(v + eps); xhat = (d - e) * r"'
)


def _formula(what: str, old: str, new: str) -> Fault:
    """A fault of the formula of the forward."""
    if _WHOLE.count(old) != 1:
        raise ValueError(f"{old!r} stands {_WHOLE.count(old)} times in the formula")
    return what, FORMULAS, _WHOLE, _WHOLE.replace(old, new)


_OF_X = 'f"s * (w - a - xhat * b){more}"'
LAYER_NORM: list[Fault] = [
    _formula("mean forgotten", "d = {x} - m", "d = {x}"),
    _formula("variance not of the mean", "sum(d * d)", "sum({x} * {x})"),
    _formula("rounding of the mean kept", "xhat = (d - e) * r", "xhat = d * r"),
    _formula("square of a huge rounding", "(e * e < q ? e * e : 0)", "e * e"),
    _formula("variance over n - 1", "sum(d * d) / N", "sum(d * d) / (N - 1)"),
    _formula("eps left out", " + eps", ""),
    ("sum not rounded", FORMULAS, '"rounded(x + residual)"', '"x + residual"'),
    ("weight left out of the gradient of x", FORMULAS, '"grad_y * weight" if weight', '"grad_y" if weight'),
    ("mean of the gradient left out", FORMULAS, _OF_X, _OF_X.replace(" - a", "")),
    ("mean of the product left out", FORMULAS, _OF_X, _OF_X.replace(" - xhat * b", "")),
    ("a further gradient left out", FORMULAS, '" + grad_sum" * grad_sum', '""'),
    ("gradient of weight of the gradient alone", FORMULAS, '"column_sum(grad_y * xhat)"', '"column_sum(grad_y)"'),
    ("gradient of bias of the normalised row", FORMULAS, '"column_sum(grad_y)"', '"column_sum(grad_y * grad_y)"'),
    ("tangent of weight left out", FORMULAS, '" + tangent_weight * xhat" * tangent_weight', '""'),
    ("tangent's mean left out", FORMULAS, '"r * (tangent_x - a - xhat * b)"', '"r * (tangent_x - xhat * b)"'),
    (
        "first part of an array for all",
        SOURCE,
        'f"    {const}acc_t* const {in_source(x)} = {in_source(stack)} + {i} * {of_row};"',
        'f"    {const}acc_t* const {in_source(x)} = {in_source(stack)};"',
    ),
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
