"""Recognises the operation of a module or a function by calling it on test inputs.

The name of a class does not determine what the class computes: an ``RMSNorm`` may scale by 1 + weight, and a ``GELU``
may be the sigmoid approximation. The functions here call the module's own ``forward`` on a few numbers on the CPU, and
compare the results with the operator's formula. The module's parameters are not read, so that a module on the meta
device can be recognised.
"""

import itertools
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from cupyops.torch.ops.rotary_embedding import rotary_embedding

__all__ = [
    "RMS_NORM_KEEPS_DTYPE",
    "Form",
    "Norm",
    "Rotary",
    "gate_form",
    "gelu_candidate",
    "gelu_form",
    "is_conv1d",
    "modulation_form",
    "norm_candidate",
    "norm_of",
    "rotary_forms",
]


class Form(NamedTuple):
    """A form of GELU.

    Attributes:
        approximate: ``"none"`` or ``"tanh"``.
        exact: whether the formulas are equal. A formula with constants of ten digits equals the form within the
            rounding of float32, and not of float64.
    """

    approximate: str
    exact: bool


class Norm(NamedTuple):
    """A normalisation of the last dimension.

    Attributes:
        operator: ``"layer_norm"`` or ``"rms_norm"``.
        eps: the name of the attribute with eps, or eps itself.
        one_more: whether the factor is 1 + weight, as in Gemma's RMS norm.
    """

    operator: str
    eps: str | float
    one_more: bool = False


class Rotary(NamedTuple):
    """A function that applies rotary position embedding to tensors with four or three dimensions.

    Attributes:
        unsqueeze: the dimension of size 1 that the tables get; None if they broadcast as they are.
        interleaved: the layout of the pairs.
        pairs: which columns of a table have an element for each pair: ``"all"``, ``"first half"``, or ``""`` for a table that
            has the elements twice, in the layout of the pairs.
        partial: whether columns beyond those of the tables are copied.
        keeps_dtype: whether 16-bit rows with float32 tables stay 16-bit.
        promotes: whether they become float32.
    """

    unsqueeze: int | None
    interleaved: bool
    pairs: str
    partial: bool = False
    keeps_dtype: bool = False
    promotes: bool = False

    def tables(self, *tables: Tensor) -> tuple[Tensor, ...]:
        """Returns the tables that the operator takes."""
        if self.pairs:
            if self.pairs == "first half":
                tables = tuple(t[..., : t.shape[-1] // 2] for t in tables)
            if self.interleaved:
                tables = tuple(t.repeat_interleave(2, dim=-1) for t in tables)
            else:
                tables = tuple(torch.cat((t, t), -1) for t in tables)
        return tables if self.unsqueeze is None else tuple(t.unsqueeze(self.unsqueeze) for t in tables)


def _quiet(function: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a call without gradient, or None if the call raises. The generator's state is kept."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return function(*args)
    except Exception:  # another author's code may raise anything for these arguments
        return None


def _with_values(recognise: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function whose tensors need values: inside a fake mode, a new tensor has none."""

    @wraps(recognise)
    def outside_modes(*args: Any) -> Any:
        with _disable_current_modes(), torch.autocast("cpu", enabled=False):
            return recognise(*args)

    return outside_modes


def _numbers() -> Callable[..., Tensor]:
    """Returns a function that returns a tensor of random float32 numbers of a shape. The global generator is not
    used."""
    generator = torch.Generator("cpu").manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


# Activations ----------------------------------------------------------------------------------------------------------

# Numbers far from 0 distinguish a clipped GELU from GELU.
_POINTS = (-1e3, -30.0, -12.0, *(i / 8 for i in range(-64, 65)), 12.0, 30.0, 1e3, 1e6)
_EXACT, _NEAR = 1e-13, 1e-9  # differences, relative to max(1, |x|)


def gelu_candidate(module: nn.Module) -> bool:
    """Returns whether a module may be GELU: it has no state, and its name or its code mentions GELU's formula."""
    if module._parameters or module._buffers or module._modules:
        return False
    code = getattr(type(module).forward, "__code__", None)
    names = set() if code is None else set(code.co_names)
    return "gelu" in type(module).__name__.lower() or bool(names & {"gelu", "erf", "tanh"})


def gelu_form(function: Callable[..., Any]) -> tuple[Form | None, float]:
    """Returns the form of GELU that a function computes, or None, and the least difference from a form.

    The difference is the largest of |y - gelu(x)|/max(1, |x|) over the probe, in float64.
    """
    approximate, least = _nearest(function, _GELUS)
    return (Form(approximate, least <= _EXACT) if least <= _NEAR else None), least


def gate_form(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Returns ``F.silu`` or ``F.relu`` for a module whose class computes this function, or None.

    Such a module has no state, and its ``forward`` reads no attribute of it but ``inplace``: its class alone decides what it
    computes.
    """
    code = getattr(type(module).forward, "__code__", None)
    if module._parameters or module._buffers or module._modules or code is None:
        return None
    if not {"silu", "relu", "sigmoid", "clamp"} & set(code.co_names):
        return None
    if {name for name in code.co_names if hasattr(module, name)} - {"inplace"}:
        return None
    name, least = _nearest(lambda x: type(module).forward(module, x), _GATES)
    return _GATES[name] if least <= _EXACT else None


_GELUS = {"none": F.gelu, "tanh": partial(F.gelu, approximate="tanh")}
_GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "relu": F.relu}


@_with_values
def _nearest(function: Callable[..., Any], candidates: Mapping[str, Callable[[Tensor], Tensor]]) -> tuple[str, float]:
    """Returns which candidate a function is nearest to, and the largest of |y - candidate(x)|/max(1, |x|) over the probe, in
    float64. The difference is infinite if the function returns another shape or dtype, or changes its argument."""
    x = torch.tensor(_POINTS, dtype=torch.float64, device="cpu")
    y = _quiet(function, given := x.clone())
    same = isinstance(y, Tensor) and (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    if not same or not torch.equal(given, x):
        return "", float("inf")
    scale = x.abs().clamp(min=1)
    found = {name: float(((y - of(x)).abs() / scale).max()) for name, of in candidates.items()}
    return min(found.items(), key=lambda item: item[1])


# Normalisations -------------------------------------------------------------------------------------------------------

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "norm_eps")
_EPS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3)
_NORMS = (("layer_norm", False), ("rms_norm", False), ("rms_norm", True))
_OTHER_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LocalResponseNorm)
_PROBE_ROWS = (2, 5)


def _rms_norm_keeps_dtype() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that it has no kernel for two dtypes
        x = torch.ones(1, 2, dtype=torch.bfloat16, device="cpu")
        return F.rms_norm(x, (2,), torch.ones(2, dtype=torch.float32, device="cpu")).dtype is x.dtype


# Whether PyTorch's rms_norm of 16-bit rows with a float32 weight has the dtype of the rows, as the operator has. The
# result depends on PyTorch's version.
RMS_NORM_KEEPS_DTYPE = _rms_norm_keeps_dtype()


def norm_candidate(module: nn.Module) -> bool:
    """Returns whether a module may be a normalisation of the last dimension: its name says norm, and its only state is
    a weight and a bias."""
    name = type(module).__name__
    if isinstance(module, _OTHER_NORMS) or not re.search(r"norm", name, re.IGNORECASE):
        return False
    return not module._modules and not module._buffers and set(module._parameters) <= {"weight", "bias"}


@_with_values
def norm_of(module: nn.Module) -> Norm | None:
    """Returns which normalisation of the last dimension a module computes, or None.

    The module must return the dtype of its argument, in float32, in bfloat16, and in float32 under autocast.
    """
    parameters = {name: p for name, p in module._parameters.items() if p is not None}
    shapes = {tuple(p.shape) for p in parameters.values()}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        return None
    n = shapes.pop()[0] if shapes else 64
    if n < 2 or n == _PROBE_ROWS[1]:
        return None
    numbers = _numbers()
    values = {name: 1.5 + numbers(n) if name == "weight" else numbers(n) for name in parameters}
    x = 0.5 + numbers(*_PROBE_ROWS, n)
    named = next((name for name in _EPS_NAMES if isinstance(vars(module).get(name), float)), None)
    for eps in _EPS if named is None else (vars(module)[named],):
        # At the scale of √eps, a result depends on eps as much as on the variance.
        probes = (x, x * max(eps, 1e-12) ** 0.5)
        found = [_quiet(_twin(module, values, torch.float32), p.clone()) for p in probes]
        for operator, one_more in _NORMS:
            if operator == "rms_norm" and "bias" in values:
                continue
            wanted = [_normalised(operator, one_more, p, values, eps) for p in probes]
            if all(_close(y, w) for y, w in zip(found, wanted, strict=True)) and _keeps_dtype(module, values, x):
                return Norm(operator, eps if named is None else named, one_more)
    return None


def _normalised(operator: str, one_more: bool, x: Tensor, values: dict[str, Tensor], eps: float) -> Tensor:
    weight, bias = values.get("weight"), values.get("bias")
    if one_more and weight is not None:
        weight = 1 + weight
    if operator == "rms_norm":
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _close(y: Any, wanted: Tensor) -> bool:
    same = isinstance(y, Tensor) and (y.shape, y.dtype, y.device) == (wanted.shape, wanted.dtype, wanted.device)
    return same and torch.allclose(y, wanted, rtol=1e-3, atol=1e-4)


def _keeps_dtype(module: nn.Module, values: dict[str, Tensor], x: Tensor) -> bool:
    lower = _quiet(_twin(module, values, torch.bfloat16), x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        cast = _quiet(_twin(module, values, torch.float32), x.clone())
    return getattr(lower, "dtype", None) is torch.bfloat16 and getattr(cast, "dtype", None) is torch.float32


def _twin(module: nn.Module, values: dict[str, Tensor], dtype: torch.dtype) -> Callable[..., Any]:
    """Returns the ``forward`` of a module with the attributes of ``module`` and other parameters. ``module`` is not
    changed."""
    cls = type(module)
    twin = object.__new__(cls)
    vars(twin).update(vars(module))
    given = {name: nn.Parameter(value.to(dtype)) for name, value in values.items()}
    vars(twin)["_parameters"] = {name: given.get(name) for name in module._parameters}
    return lambda x: cls.forward(twin, x)


# Conv1D ---------------------------------------------------------------------------------------------------------------


@_with_values
def is_conv1d(module: nn.Module) -> bool:
    """Returns whether a module is x·W + b with a weight (K, N) and a bias (N), as transformers' ``Conv1D``."""
    if type(module).__name__ != "Conv1D" or module._modules or module._buffers:
        return False
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if set(module._parameters) != {"weight", "bias"} or weight is None or bias is None or weight.dim() != 2:
        return False
    k, n = weight.shape
    if bias.shape != (n,):
        return False
    numbers = _numbers()
    values = {"weight": numbers(k, n), "bias": numbers(n)}
    x = numbers(1, 2, k)
    return _close(_quiet(_twin(module, values, torch.float32), x), x @ values["weight"] + values["bias"])


# Rotary embedding -----------------------------------------------------------------------------------------------------

# Sizes of rows and tables, and the dimension that the tables get. Other dimensions would not broadcast.
_ROTATIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], int | None], ...] = (
    ((2, 3, 5, 8), (2, 5, 8), 1),
    ((2, 5, 3, 8), (2, 5, 8), 2),
    ((5, 3, 8), (5, 8), 1),
    ((2, 3, 5, 8), (5, 8), None),
    ((2, 5, 3, 8), (5, 8), 1),
    ((2, 3, 5, 8), (2, 1, 5, 8), None),
)


@_with_values
def rotary_forms(function: Callable[..., Any], count: int) -> dict[tuple[int, int], Rotary]:
    """Returns what a function (cos, sin, rows, ...) -> (turned rows, ...) computes, by the dimensions of rows and of tables.

    Args:
        function: takes the tables and ``count`` tensors of rows, and returns as many tensors.
        count: the number of tensors. Those after the first get other sizes in the dimension of the heads.
    """
    found = {}
    numbers = _numbers()
    for of_rows, of_tables, unsqueeze in _ROTATIONS:
        heads = of_rows.index(3)
        rows = [numbers(*of_rows[:heads], 3 - i, *of_rows[heads + 1 :]) for i in range(count)]
        tables = [numbers(*of_tables) for _ in range(2)]
        for pairs, interleaved in itertools.product(("", "first half", "all"), (False, True)):
            form = Rotary(unsqueeze, interleaved, pairs)
            given = [t[..., : t.shape[-1] // 2] if pairs == "all" else t for t in tables]
            if (results := _turned(function, given, rows)) is None or not _are_rotated(form, given, rows, results):
                continue
            narrow = [t[..., : t.shape[-1] // 2] for t in given]
            fewer = _turned(function, narrow, rows)
            lower = _turned(function, given, [x.bfloat16() for x in rows])
            dtypes = set() if lower is None else {y.dtype for y in lower}
            found[len(of_rows), len(of_tables)] = form._replace(
                partial=fewer is not None and _are_rotated(form, narrow, rows, fewer),
                keeps_dtype=dtypes == {torch.bfloat16},
                promotes=dtypes == {torch.float32},
            )
    return found


def _turned(function: Callable[..., Any], tables: list[Tensor], rows: list[Tensor]) -> list[Tensor] | None:
    """Returns the results of a function that applies rotary embedding, or None if it returns something else or changes an
    argument."""
    given = [t.clone() for t in (*tables, *rows)]
    results = _quiet(function, *given)
    if not isinstance(results, (tuple, list)) or len(results) != len(rows):
        return None
    kept = all(torch.equal(a, b) for a, b in zip(given, (*tables, *rows), strict=True))
    return [*results] if kept and all(isinstance(y, Tensor) for y in results) else None


def _are_rotated(form: Rotary, tables: list[Tensor], rows: list[Tensor], results: list[Tensor]) -> bool:
    return all(_close(y, _rotated(form, x, *tables)) for x, y in zip(rows, results, strict=True))


def _rotated(form: Rotary, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotary_embedding(x, *form.tables(cos, sin), interleaved=form.interleaved)


# Modulation -----------------------------------------------------------------------------------------------------------


@_with_values
def modulation_form(function: Callable[..., Any]) -> tuple[bool, frozenset[int]] | None:
    """Returns whether the first of two tensors is the scale in a function (x, shift, scale) that computes x·(1 + scale) + shift
    for rows (B, T, N), and the dimensions that the two tensors may have; None for another function."""
    numbers = _numbers()
    x = numbers(2, 3, 5)
    for first_is_scale in (False, True):
        dims = set()
        for shape in ((2, 5), (2, 1, 5)):
            tensors = numbers(*shape), numbers(*shape)
            scale, shift = (t.view(2, 1, 5) for t in (tensors if first_is_scale else tensors[::-1]))
            if _close(_quiet(function, x.clone(), *tensors), x * (1 + scale) + shift):
                dims.add(len(shape))
        if dims:
            return first_is_scale, frozenset(dims)
    return None
