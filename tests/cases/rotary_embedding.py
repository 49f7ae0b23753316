"""Test data of rotary_embedding."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import cupyops
from autograd_bridge import rotary_embedding
from cupyops.torch.ops import rotary_embedding as module
from tests.simulator.test_simulator_use import sparse
from tests.support import FLOATS

from .data import Arguments, Case, FamilyData, LaunchCase, dtype_name, launch_case, model_of, random, wanted


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """The operations of transformers, or of timm with pairs of neighbours, and a rest that is not turned."""
    n = cos.shape[-1]
    of, rest = x[..., :n], x[..., n:]
    with torch.autocast(x.device.type, enabled=False):  # on a CPU, it refuses to concatenate float16
        if interleaved:
            other = torch.stack([-of[..., 1::2], of[..., ::2]], -1).reshape(of.shape)
        else:
            other = torch.cat((-of[..., n // 2 :], of[..., : n // 2]), -1)
        return torch.cat((of * cos + other * sin, rest), -1)


def _tables(x: Any, interleaved: bool = False) -> tuple[Any, Any]:
    """Returns tables that all rows of x share, of all columns but an odd one; None if it is not a tensor."""
    if not isinstance(x, Tensor):
        return None, None
    angles = 10 ** -torch.arange(x.shape[-1] // 2, device=x.device).float()
    both = angles.repeat_interleave(2, -1) if interleaved else angles.repeat(2)
    return both.cos().to(x.dtype), both.sin().to(x.dtype)


def _case(name: str, interleaved: bool) -> Case:
    return Case(
        name,
        lambda x: rotary_embedding(x, *_tables(x, interleaved), interleaved=interleaved),
        lambda x: rotated(x, *_tables(x, interleaved), interleaved),
        torch.ops.cupyops.rotary_embedding.default,
        lambda x: (x, *_tables(x, interleaved), interleaved),
        1,
        elementwise=False,
    )


def _samples() -> list[Arguments]:
    x, heads = random(3, 5, 18), random(2, 5, 3, 16, seed=6)
    return [(wanted(t), *_tables(t, of), of) for t in (x, heads.transpose(1, 2)) for of in (False, True)]


def _heads(layout: str, dtype: torch.dtype) -> Callable[[], Tensor]:
    shape = (2, 7, 6, 32)  # a projection's heads, before they are transposed

    def make() -> Tensor:
        x = torch.empty(shape, dtype=dtype)
        return (x.transpose(1, 2) if layout == "transposed" else x).detach().requires_grad_()

    return make


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for of in (False, True):
            for layout in ("contiguous", "transposed"):
                call = lambda x, c, s, of=of: rotary_embedding(x, c, s, interleaved=of)  # noqa: E731
                table = ((2, 1, 7, 32) if layout == "transposed" else (7, 1, 32), dtype, False)
                about = f"{dtype_name(dtype)} {layout} {'neighbours' if of else 'halves'}"
                yield launch_case("rotary_embedding", about, call, _heads(layout, dtype), table, table)
    half = torch.bfloat16
    for about, shape, table in (
        ("partial", (2, 4, 7, 80), ((7, 32), half, False)),
        ("float32 tables", (2, 4, 7, 64), ((7, 64), torch.float32, False)),
        ("odd", (2, 4, 7, 13), ((7, 10), half, False)),
        ("a table for each row", (3, 7, 64), ((3, 7, 64), half, False)),
    ):
        yield launch_case("rotary_embedding", about, rotary_embedding, (shape, half), table, table)


MODELS = {
    "rotary_embedding": model_of(lambda x: rotary_embedding(x, *_tables(x)), (4, 3, 2, 8)),
    "rotary_embedding of neighbours": model_of(
        lambda x: rotary_embedding(x, *_tables(x, True), interleaved=True), (4, 3, 8)
    ),
}
CASES = [_case("rotary_embedding", False), _case("rotary_embedding of neighbours", True)]
DATA = FamilyData(CASES, {"rotary_embedding": _samples}, _launches, MODELS)


# What is special

# The shape of queries from a projection, whether they are then transposed, and the shape of the tables.
SHAPES = [
    ((2, 5, 6, 32), True, (2, 1, 5, 32)),
    ((2, 5, 3, 32), True, (1, 1, 5, 32)),
    ((2, 3, 7, 16), False, (7, 16)),
    ((2, 5, 6, 32), True, (1, 1, 5, 8)),
    ((2, 3, 7, 13), False, (7, 10)),
    ((3, 4, 5, 16), False, (3, 4, 5, 16)),
    ((8,), False, (8,)),
    ((0, 4, 5, 16), False, (5, 16)),
]


@pytest.mark.sample(14)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "transposed", "table"), SHAPES)
def test_values_and_gradients_against_float64(
    device: str, shape: tuple[int, ...], transposed: bool, table: tuple[int, ...], interleaved: bool, dtype: torch.dtype
) -> None:
    x = random(*shape).to(device, dtype)
    x = (x.transpose(1, 2) if transposed else x).requires_grad_()
    cos, sin = (random(*table, seed=seed).to(device, dtype) for seed in (6, 7))
    y = rotary_embedding(x, cos, sin, interleaved=interleaved)
    grad = random(*y.shape, seed=8).to(y)
    (found,) = torch.autograd.grad(y, x, grad)
    double = x.detach().double().requires_grad_()
    exact = rotated(double, cos.double(), sin.double(), interleaved)
    near = {"rtol": torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    torch.testing.assert_close(y.double(), exact, **near)
    torch.testing.assert_close(found.double(), torch.autograd.grad(exact, double, grad.double())[0], **near)
    assert not transposed or y.stride() == x.stride()


def test_queries_within_a_projection_of_several_and_misaligned() -> None:
    qkv = random(2, 5, 3 * 4 * 16 + 1)[..., 1:]
    cos, sin = random(5, 16, seed=6), random(5, 16, seed=7)
    for x in (qkv[..., 64:128].view(2, 5, 4, 16).transpose(1, 2), qkv[..., :16], random(16, 5).T):
        with cupyops.simulate():
            torch.testing.assert_close(rotary_embedding(x, cos, sin), rotated(x, cos, sin))


def test_tables_may_be_wider_and_may_require_grad() -> None:
    x = random(3, 5, 8).bfloat16()
    cos, sin = (random(5, 8, seed=seed).requires_grad_() for seed in (6, 7))
    y = rotary_embedding(x, cos, sin)
    assert y.dtype is torch.bfloat16
    of_cos, of_sin = torch.autograd.grad(y.float().sum(), (cos, sin))
    assert of_cos.abs().sum() > 0
    assert of_sin.abs().sum() > 0
    with cupyops.simulate(), torch.no_grad():
        torch.testing.assert_close(rotary_embedding(x, cos, sin), y.detach())


@pytest.mark.parametrize("interleaved", [False, True])
def test_derivatives_of_every_order(interleaved: bool) -> None:
    x = random(3, 5, 8).double().requires_grad_()
    cos, sin = random(5, 6, seed=6).double(), random(5, 6, seed=7).double()

    def call(t: Tensor) -> Tensor:
        return rotary_embedding(t, cos, sin, interleaved=interleaved)

    assert torch.autograd.gradcheck(call, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda t: call(t) ** 3, (x,))


@pytest.mark.parametrize(
    ("cos", "sin", "words"),
    [
        (torch.ones(3), torch.ones(3), r"`cos` must have an even last dimension of at most 4, got \(3,\)"),
        (torch.ones(6), torch.ones(6), "`cos` .* at most 4"),
        (torch.ones(4), torch.ones(2, 4), "`sin` must have the shape and dtype of `cos`"),
        (torch.ones(4), torch.ones(4).half(), "`sin` must have the shape and dtype of `cos`"),
        (torch.ones(3, 4), torch.ones(3, 4), r"`cos` must broadcast to the rows of `x`, \(2,\), got \(3,\)"),
        (torch.ones(1, 2, 4), torch.ones(1, 2, 4), "`cos` must broadcast to the rows"),
    ],
)
def test_tables_that_do_not_fit_are_named(cos: Tensor, sin: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=f"rotary_embedding: {words}"):
        rotary_embedding(torch.ones(2, 4), cos, sin)


def test_other_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="`x` must have dtype float16 or .*, got int64"):
        rotary_embedding(torch.ones(2, 4, dtype=torch.int64), torch.ones(4), torch.ones(4))
    with pytest.raises(TypeError, match="`sin` must be a Tensor, got None"):
        rotary_embedding(torch.ones(2, 4), torch.ones(4), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("apart", "wide"), [(2**31 - 8, False), (2**31, True)])
def test_offsets_have_64_bits_where_a_row_lies_beyond_2_31_elements(
    apart: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory between the rows is never touched."""
    asked: list[bool] = []
    kernel = SimpleNamespace(launch_vouched=lambda *_: None)
    monkeypatch.setattr(module, "kernel_of", lambda *config: asked.append(config[-1]) or kernel)
    x = torch.from_numpy(sparse(apart + 8, "float16")).as_strided((2, 8), (apart, 1))
    module._turned(x, torch.ones(8).half(), torch.ones(8).half(), False, False)
    assert asked == [wide]
