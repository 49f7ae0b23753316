"""Results on a CPU have the strides of the body, with which a compiled graph is traced."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autograd_bridge  # noqa: F401 - registers the operators
import cupyops.torch
from cupyops.torch.core.layouts import with_strides_of

SHAPE = (2, 3, 4)
CALLS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "gelu": (1, lambda x: torch.ops.cupyops.gelu(x, "none")),
    "gelu_backward": (2, lambda g, x: torch.ops.cupyops.gelu_backward(g, x, "tanh")),
    "add2": (2, lambda a, b: torch.ops.cupyops.add2(a, b, 2)),
}


def layouts() -> Iterator[Tensor]:
    for order in itertools.permutations(range(3)):
        yield torch.randn([SHAPE[i] for i in order]).permute([order.index(i) for i in range(3)])
    yield torch.randn(2, 3, 8)[..., ::2]
    yield torch.randn(4, 6, 2).permute(2, 1, 0)[:, ::2]
    yield torch.randn(2, 1, 4).expand(SHAPE)


@pytest.mark.parametrize("name", CALLS)
def test_a_reference_returns_the_strides_of_the_fake_result(name: str) -> None:
    count, call = CALLS[name]
    for args in itertools.product(layouts(), repeat=count):
        found, same = call(*args), call(*(x.contiguous() for x in args))
        with FakeTensorMode() as mode:
            assert found.stride() == call(*map(mode.from_tensor, args)).stride()
        torch.testing.assert_close(found, same)


class Permuted(nn.Module):
    """GELU between a contiguous operand and a gradient with other strides, as after the convolution of a speech model."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(nn.functional.gelu(self.conv(x)).transpose(1, 2))  # type: ignore[no-any-return]


def test_a_compiled_backward_takes_a_gradient_with_other_strides() -> None:
    model, x = Permuted(), torch.randn(2, 4, 16)
    model(x).square().sum().backward()
    wanted = [p.grad for p in model.parameters()]
    model.zero_grad()
    cupyops.torch.optimize(model)
    torch.compile(model)(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted, rtol=1e-4, atol=1e-4)


def test_a_body_that_takes_no_fake_tensors_leaves_the_results() -> None:
    def body(x: Tensor) -> Tensor:
        raise RuntimeError("this body reads the elements")

    x = torch.randn(3, 4).t()
    assert with_strides_of(body, torch.relu)(x).stride() == (1, 4)


def test_results_that_are_no_tensors_stay() -> None:
    def body(x: Tensor) -> tuple[Tensor, None]:
        return x.contiguous(), None

    y, nothing = with_strides_of(body, lambda x: (x.relu(), None))(torch.randn(3, 4).t())
    assert y.stride() == (3, 1)
    assert nothing is None
