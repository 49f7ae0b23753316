"""Test data of swiglu, geglu and reglu, of two tensors and of the halves of one."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import geglu, reglu, swiglu
from tests.support import FLOATS, with_floats

from .data import (
    COLUMNS,
    ROW,
    ROWS,
    Arguments,
    Case,
    FamilyData,
    LaunchCase,
    Model,
    dtype_name,
    launch_case,
    model_of,
    random,
)

# By the names of the operators: the function, and PyTorch's activation.
UNITS: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "swiglu": (swiglu, F.silu),
    "geglu": (geglu, F.gelu),
    "geglu_tanh": (partial(geglu, approximate="tanh"), partial(F.gelu, approximate="tanh")),
    "reglu": (reglu, F.relu),
}


def _beside(x: Any) -> Any:
    """Returns x as both halves; what is not a tensor stays as it is."""
    return x.repeat(*(1,) * (x.dim() - 1), 2) if isinstance(x, Tensor) else x


def _cases(name: str) -> list[Case]:
    ours, activation = UNITS[name]
    atol = 1e-5  # PyTorch's own error of GELU is absolute, and the other factor multiplies it
    return [
        Case(
            name,
            ours,
            lambda gate, up: activation(gate) * up,
            getattr(torch.ops.cupyops, name).default,
            lambda gate, up: (gate, up),
            2,
            atol=atol,
        ),
        Case(
            f"{name}_of_halves",
            lambda x: ours(_beside(x)),
            lambda x: activation(x) * x,
            getattr(torch.ops.cupyops, f"{name}_of_halves").default,
            lambda x: (_beside(x),),
            1,
            elementwise=False,
            atol=atol,
        ),
    ]


X, Y = random(ROWS, COLUMNS), random(ROWS, COLUMNS, seed=6)


def _two_samples() -> list[Arguments]:
    return [(X, Y), (X, Y[:1])]


def _halves_samples() -> list[Arguments]:
    return [(_beside(X),), (random(3, 2, 32),)]


SAMPLES = dict.fromkeys(UNITS, _two_samples) | {f"{name}_of_halves": _halves_samples for name in UNITS}


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for name, (ours, _) in UNITS.items():
            for shape in ((37, 19), (4096, 1024)):
                about = f"{dtype_name(dtype)} {shape}"
                yield launch_case(name, about, ours, (shape, dtype), (shape, dtype))
                yield launch_case(f"{name}_of_halves", about, ours, ((shape[0], 2 * shape[1]), dtype))
    half = torch.bfloat16
    yield launch_case("swiglu", "broadcast", swiglu, ((37, 64), half), ((64,), half))
    yield launch_case("swiglu_of_halves", "three dimensions", swiglu, ((3, 5, 64), half))


MODELS: dict[str, Model] = {
    "swiglu": model_of(swiglu, ROW, ROW),
    "swiglu of halves": model_of(swiglu, ROW),
    "geglu": model_of(geglu, ROW, ROW),
    "geglu tanh": model_of(lambda x: geglu(x, approximate="tanh"), ROW),
    "reglu": model_of(reglu, ROW, ROW),
}
DATA = FamilyData([case for name in UNITS for case in _cases(name)], SAMPLES, _launches, MODELS)


# What is special


def _special() -> Tensor:
    # PyTorch's GELU of infinity is NaN on a CPU.
    return torch.tensor([-torch.inf, -100.0, -0.0, 0.0, 80.0, 100.0, torch.nan, 6e4])


@pytest.mark.parametrize(("name", "dtype"), with_floats(UNITS, each=1))
def test_error_is_that_of_one_rounding(name: str, dtype: torch.dtype) -> None:
    ours, activation = UNITS[name]
    gate, up, grad = (random(64, 48, seed=i, scale=3).to(dtype) for i in (1, 2, 3))
    given = [x.clone().requires_grad_() for x in (gate, up)]
    with cupyops.simulate():
        y = ours(*given)
        found = [y, *torch.autograd.grad(y, given, grad)]
    exact = [x.double().requires_grad_() for x in (gate, up)]
    wanted = activation(exact[0]) * exact[1]
    # One rounding to the dtype, and the arithmetic's error at the scale of the factors: a sum of terms may cancel, as
    # PyTorch's tanh form in float64 does for negative gates. For 16 bits, GELU is a polynomial within 1e-4.
    scale = (1 + gate.double().abs()) * (1 + up.double().abs()) * (1 + grad.double().abs())
    inner = 16 * torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    inner += 1e-4 if dtype.itemsize == 2 else 0
    for value, near in zip(found, [wanted, *torch.autograd.grad(wanted, exact, grad.double())], strict=True):
        assert bool(((value.double() - near).abs() <= torch.finfo(dtype).eps * near.abs() + inner * scale).all())


@pytest.mark.parametrize("name", UNITS)
def test_special_values_are_those_of_pytorch(name: str) -> None:
    ours, activation = UNITS[name]
    gate, up = _special(), torch.full((8,), 2.0)
    with cupyops.simulate():
        torch.testing.assert_close(ours(gate, up), activation(gate) * up, equal_nan=True)


def test_halves_have_the_bits_of_two_tensors_and_one_gradient() -> None:
    for n in (64, 38):
        x = random(5, n).requires_grad_()
        with cupyops.simulate():
            y, two = swiglu(x), swiglu(*x.chunk(2, -1))
            assert torch.equal(y, two)
            assert torch.equal(*(torch.autograd.grad(v.square().sum(), x)[0] for v in (y, two)))


def test_gradients_broadcast() -> None:
    gate, up = (x.double().requires_grad_() for x in (random(5, 8), random(8, seed=6)))
    assert torch.autograd.gradcheck(swiglu, (gate, up))
    assert torch.autograd.gradgradcheck(geglu, (gate, up))
    assert torch.autograd.gradgradcheck(reglu, (random(5, 8).double().requires_grad_(),))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: swiglu(torch.ones(3)), ValueError, r"swiglu: `gate_up` must have an even last dimension.* \(3,\)"),
        (lambda: swiglu(torch.tensor(1.0)), ValueError, "even last dimension"),
        (lambda: swiglu(2.0), TypeError, "swiglu: `gate` must be a Tensor, got float"),  # type: ignore[arg-type]
        (lambda: geglu(torch.ones(2), 1), TypeError, "geglu: `up` must be a Tensor, got int"),  # type: ignore[arg-type]
        (lambda: reglu(torch.ones(2, dtype=torch.int64)), TypeError, "reglu: `gate_up` must have dtype float16"),
        (lambda: geglu(torch.ones(2), approximate="erf"), RuntimeError, "must be either none or tanh, got 'erf'"),
        (lambda: swiglu(torch.ones(2), torch.ones(3)), RuntimeError, "must match"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
