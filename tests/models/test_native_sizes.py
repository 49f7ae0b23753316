"""native() leaves calls on few elements to PyTorch, and takes no time of them in a program that has no others."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.torch import native
from cupyops.torch.models import overrides
from cupyops.torch.models.watch import CALLS

from .overriding import PLACES, inside, tables

WIDTH = 8
FEW, MANY = (6, WIDTH), (7, WIDTH)
BUILTIN = torch.layer_norm


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors have a limit, as CUDA tensors have one."""
    before = tables()
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(overrides.LEAST, device, 7 * WIDTH)
        overrides._sizes.pop(device, None)
    yield
    overrides._sizes.clear()
    assert tables() == before
    assert torch.layer_norm is BUILTIN


def step(shape: tuple[int, ...], place: str = "cpu") -> list[Tensor]:
    """A result, and its gradients."""
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(s, generator=generator).to(place).requires_grad_() for s in (shape, WIDTH, WIDTH))
    y = F.gelu(F.layer_norm(x, (WIDTH,), weight, bias))
    return [y, *torch.autograd.grad(y.square().sum(), [x, weight, bias])]


def only_few(place: str = "cpu") -> None:
    """Norms on few elements, after which no kernel is registered."""
    for _ in range(CALLS):
        F.layer_norm(torch.ones(FEW, device=place), (WIDTH,))


def test_few_elements_are_pytorchs_bits_whatever_was_called_before(place: str) -> None:
    wanted = step(FEW, place)
    with inside(place) as launches:
        for prepare in (lambda: None, lambda: step(MANY, place), lambda: only_few(place)):
            prepare()
            launched = len(launches)
            found = step(FEW, place)
            assert len(launches) == launched
            assert all(map(torch.equal, found, wanted))


def test_many_elements_are_this_projects_kernels_whatever_was_called_before(place: str) -> None:
    wanted = step(MANY, place)
    found = []
    with inside(place) as launches:
        for prepare in (lambda: None, lambda: step(FEW, place), lambda: only_few(place)):
            prepare()
            launched = len(launches)
            found.append(step(MANY, place))
            assert len(launches) - launched == 4, "of GELU, the norm, and their backwards"
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))
    for a, b in zip(found[0], wanted, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


def test_the_dispatcher_enters_no_python_in_a_program_without_large_tensors(place: str) -> None:
    before = tables()
    with inside(place):
        assert tables() != before
        only_few(place)
        assert tables() == before
        with native([place]):
            assert tables() == before
    with inside(place):  # a step of a training loop may have a block of its own
        assert tables() == before
        F.layer_norm(torch.ones(MANY, device=place), (WIDTH,))
        assert tables() != before
    with inside(place):
        assert tables() != before


@pytest.mark.simulator
def test_a_large_tensor_of_another_operator_keeps_the_kernels() -> None:
    """F.layer_norm sees the norms alone."""
    with inside("cpu") as launches:
        for _ in range(3):
            for _ in range(CALLS - 1):
                F.layer_norm(torch.ones(FEW), (WIDTH,))
            F.gelu(torch.ones(MANY))
    assert len(launches) == 3


@pytest.mark.simulator
def test_tensors_of_other_devices_and_subclasses_decide_nothing() -> None:
    class Other(Tensor):
        pass

    before = tables()
    with inside("cpu"):
        for x in (torch.ones(FEW, device="meta"), torch.ones(FEW).as_subclass(Other)):
            for _ in range(CALLS):
                F.layer_norm(x, (WIDTH,))
        assert tables() != before
        only_few()
        F.layer_norm(torch.ones(MANY, device="meta"), (WIDTH,))
        assert tables() == before


@pytest.mark.simulator
def test_a_large_forward_has_its_gradients_after_the_kernels_are_removed() -> None:
    x = torch.randn(MANY, dtype=torch.float64, requires_grad=True)
    with inside("cpu"):
        y = F.layer_norm(x, (WIDTH,))
        only_few()
        (found,) = torch.autograd.grad(y.sin().sum(), x)
    (wanted,) = torch.autograd.grad(F.layer_norm(x, (WIDTH,)).sin().sum(), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.simulator
def test_the_watched_function_takes_the_arguments_of_the_builtin() -> None:
    x, ones = torch.randn(FEW), torch.ones(WIDTH)
    wanted = torch.layer_norm(x, [WIDTH], ones, None, 1e-3)
    with inside("cpu"):
        assert torch.layer_norm is not BUILTIN
        assert torch.equal(torch.layer_norm(x, [WIDTH], ones, None, 1e-3), wanted)
        assert torch.equal(torch.layer_norm(input=x, normalized_shape=[WIDTH], eps=1e-3, weight=ones), wanted)
        with pytest.raises(TypeError, match="normalized_shape"):
            torch.layer_norm(x)  # type: ignore[call-overload]
        assert pickle.loads(pickle.dumps(torch.layer_norm)) is torch.layer_norm


@pytest.mark.simulator
def test_a_mode_sees_the_calls_that_it_sees_without_a_block() -> None:
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    x = torch.ones(FEW)
    with Mode():
        F.layer_norm(x, (WIDTH,))
        torch.layer_norm(x, (WIDTH,))
    wanted = list(seen)
    assert wanted
    seen.clear()
    with inside("cpu"), Mode():
        F.layer_norm(x, (WIDTH,))
        torch.layer_norm(x, (WIDTH,))
    assert seen == wanted


@pytest.mark.simulator
def test_a_compiled_model_keeps_its_graph_in_and_out_of_blocks() -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(str(graph.graph))
        return graph.forward

    model, x = nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU()), torch.randn(FEW)
    for first in (True, False):
        torch.compiler.reset()
        compiled = torch.compile(model, backend=backend)
        for within in (first, not first, first):
            if within:
                with inside("cpu"):
                    compiled(x)
            else:
                compiled(x)
    assert len(graphs) == 2, "Dynamo compiled the model again"
    assert graphs[0] == graphs[1]


@pytest.mark.simulator
def test_traced_and_scripted_functions_hold_the_function() -> None:
    def norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, [8])

    x = torch.randn(FEW)
    with inside("cpu"):
        traced = torch.fx.symbolic_trace(norm)
        scripted = torch.jit.script(norm)
    assert F.layer_norm in [node.target for node in traced.graph.nodes]
    torch.testing.assert_close(traced(x), norm(x))
    torch.testing.assert_close(scripted(x), norm(x))


@pytest.mark.simulator
def test_another_function_in_the_place_of_the_builtin_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels stay registered then: nothing would tell of a large tensor."""

    def other(*args: Any, **kwargs: Any) -> Tensor:
        y: Tensor = BUILTIN(*args, **kwargs)
        return y

    before = tables()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "layer_norm", other)
        with inside("cpu"):
            assert torch.layer_norm is other
            only_few()
            assert tables() != before
        assert torch.layer_norm is other
    with inside("cpu"):
        watching = torch.layer_norm
        torch.layer_norm = other
    assert torch.layer_norm is other
    torch.layer_norm = BUILTIN
    assert watching is not BUILTIN


@pytest.mark.simulator
@pytest.mark.parametrize("order", [("cpu", "cuda"), ("cuda", "cpu")])
def test_blocks_of_two_devices_may_end_in_any_order(order: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(overrides, "_register", lambda device: None)
    first, second = (native([device]) for device in order)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.layer_norm is not BUILTIN
    second.__exit__(None, None, None)
    assert torch.layer_norm is BUILTIN
