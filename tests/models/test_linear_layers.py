"""optimize() and linear layers: which get another class, which are fused with GELU, and which must not be."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.torch import optimize
from cupyops.torch.models import leaves
from cupyops.torch.models.classes import is_optimised

from .calls import Calls, in_graph
from .stand_ins import WIDTH, Conv1D, Mlp

pytestmark = pytest.mark.usefixtures("one_thread")
# The sizes (N, K) of a product that is padded, and of its neighbours that are not.
ODD, EVEN = (513, 1024), (512, 1024)


def linear(n: int, k: int) -> nn.Module:
    return nn.Linear(k, n)


def counted(module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, int]]:
    """The result of a model, and its calls of operators."""
    with Calls() as calls, torch.no_grad():
        y = module(x)
    return y, dict(calls.counts)


# Which get another class ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k", "padded"),
    [
        (*ODD, True),
        (1024, 513, True),
        (*EVEN, False),
        (1001, 512, False),  # fewer than 2^19 elements
        (127, 8193, False),  # fewer than 128 rows
        (8193, 127, False),
    ],
)
@pytest.mark.parametrize("make", [linear, Conv1D])
def test_a_linear_layer_calls_the_operator_if_its_product_is_padded(
    make: Callable[[int, int], nn.Module], n: int, k: int, padded: bool
) -> None:
    module, x = nn.Sequential(make(n, k), nn.ReLU()), torch.randn(2, k)
    cls, wanted = type(module[0]), module(x)
    report = optimize(module)
    assert is_optimised(type(module[0])) is padded
    assert [(site.name, site.what, site.operator) for site in report.replaced] == (
        [("0", cls.__name__, "linear")] if padded else []
    )
    assert report.skipped == ()
    y, calls = counted(module, x)
    torch.testing.assert_close(y, wanted)
    assert calls == ({"linear": 1} if padded else {"aten.addmm": 1})
    report.undo()
    assert type(module[0]) is cls


def test_a_weight_that_a_wrapper_holds_as_a_vector_or_elsewhere_is_not_padded() -> None:
    """Its shape does not determine the product."""
    flat, without, absent = nn.Linear(1024, 513), nn.Linear(1024, 513), nn.Linear(1024, 513)
    flat.weight = nn.Parameter(flat.weight.detach().view(-1))
    del without.weight
    absent.register_parameter("weight", None)
    module = nn.ModuleList([flat, without, absent])
    assert optimize(module).replaced == ()
    assert [type(m) for m in module] == [nn.Linear] * 3


def language_model() -> Any:
    """An embedding of an odd number of words, whose weight the last layer has, too."""
    module = nn.Sequential(nn.Embedding(*ODD), nn.LayerNorm(ODD[1]), nn.Linear(*reversed(ODD), bias=False))
    module[2].weight = module[0].weight
    return module


def test_a_tied_odd_weight_stays_tied_and_gets_both_gradients() -> None:
    module, words = language_model(), torch.tensor([[1, 5, 512], [0, 5, 7]])

    def gradient(module: nn.Module) -> Tensor:
        module.zero_grad()
        F.cross_entropy(module(words).flatten(0, 1), words.flatten()).backward()
        return module[0].weight.grad.clone()  # type: ignore[operator, union-attr, index]

    wanted = gradient(module)
    report = optimize(module)
    assert [(site.name, site.operator) for site in report.replaced] == [("1", "layer_norm"), ("2", "linear")]
    assert type(module[0]) is nn.Embedding
    for model in (module, copy.deepcopy(module)):
        assert model[2].weight is model[0].weight
        torch.testing.assert_close(gradient(model), wanted)
    report.undo()
    assert torch.equal(gradient(module), wanted)


@pytest.mark.parametrize("make", [linear, Conv1D])
def test_an_odd_layer_is_pickled_as_itself_and_copied_as_it_is(make: Callable[[int, int], nn.Module]) -> None:
    module, x = make(*ODD), torch.randn(2, ODD[1])
    cls, held, wanted = type(module), dict(vars(module)), module(x)
    report = optimize(module)
    made = type(module)
    assert is_optimised(made)
    assert dict(vars(module)) == held
    for protocol in (0, 2, 5):
        read = pickle.loads(pickle.dumps(module, protocol))
        assert type(read) is cls
        assert torch.equal(read(x), wanted)
    twin = copy.deepcopy(module)
    assert type(twin) is made
    assert counted(twin, x)[1] == {"linear": 1}
    assert twin.weight is not module.weight
    report.undo()
    assert type(module) is cls
    assert dict(vars(module)) == held
    assert counted(module, x)[1] == {"aten.addmm": 1}


def test_models_that_come_and_go_leave_no_function_behind() -> None:
    def come_and_go() -> int:
        optimize(nn.Sequential(nn.Linear(*reversed(ODD)), nn.GELU()))
        gc.collect()
        return len(leaves._PRODUCTS)

    assert come_and_go() == come_and_go()


# Which are fused ------------------------------------------------------------------------------------------------------


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Halved(Tensor):
    """A subclass of Tensor that holds half of a weight. F.linear knows that, as with the weights of quantised models."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, bias = args
            return F.linear(x, 2 * weight.as_subclass(Tensor), bias)
        return super().__torch_function__(func, types, args, kwargs or {})


def halve(layer: Any) -> Any:
    """Gives a layer a weight of a subclass of Tensor."""
    layer.weight = nn.Parameter((layer.weight.detach() / 2).as_subclass(Halved))
    return layer


def replaced_forward() -> nn.Module:
    layer, own = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    layer.forward = own.forward  # type: ignore[method-assign]
    return layer


def chain(first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())


class Pairs(nn.Module):
    """Two linear layers in a method, with GELU after each."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.fc1, self.act1, self.fc2, self.act2 = chain(first).children()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.fc1(x))
        return self.act2(self.fc2(x))


MODELS = {"sequential": (chain, "0"), "method": (Pairs, "fc1")}
UNFIT: dict[str, Callable[[], nn.Module]] = {
    "own forward": lambda: OwnLinear(WIDTH, WIDTH),
    "subclass": lambda: halve(nn.Linear(WIDTH, WIDTH)),
    "replaced": replaced_forward,
}


@pytest.mark.parametrize("model", MODELS)
def test_an_excluded_linear_layer_is_not_fused_and_its_neighbour_is(model: str) -> None:
    make, name = MODELS[model]
    module, x = make(nn.Linear(WIDTH, WIDTH)), torch.randn(3, WIDTH)
    wanted = module(x)
    report = optimize(module, exclude=name)
    assert [(s.name, s.what, s.reason) for s in report.skipped] == [(name, "Linear", "excluded by name")]
    assert sum(site.operator == "linear_gelu" for site in report.replaced) == 1
    for m in (module, copy.deepcopy(module)):
        y, calls = counted(m, x)
        torch.testing.assert_close(y, wanted)
        assert calls == {"aten.addmm": 1, "gelu": 1, "linear_gelu": 1}


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("model", MODELS)
def test_an_unfit_linear_layer_is_not_fused_and_its_neighbour_is(model: str, case: str) -> None:
    make, name = MODELS[model]
    module, x = make(UNFIT[case]()), torch.randn(3, WIDTH)
    wanted = module(x)
    report = optimize(module)
    assert [s.name for s in report.skipped] == [name]
    assert sum(site.operator == "linear_gelu" for site in report.replaced) == 1
    torch.testing.assert_close(module(x), wanted)


def test_a_shared_layer_that_is_wanted_by_one_of_its_names_is_fused_in_both_places() -> None:
    shared = nn.Linear(WIDTH, WIDTH)
    module = nn.Sequential(chain(shared), chain(shared))
    optimize(module, exclude="0.0")
    assert counted(module, torch.randn(3, WIDTH))[1] == {"linear_gelu": 4}


@pytest.mark.parametrize("sizes", [EVEN, ODD])
def test_parts_that_were_optimised_before_are_fused(sizes: tuple[int, int]) -> None:
    n, k = sizes
    module, x = nn.Sequential(nn.Linear(k, n), nn.GELU()), torch.randn(2, k)
    wanted = module(x)
    parts = [optimize(part) for part in module]
    assert counted(module, x)[1] == ({"linear": 1, "gelu": 1} if sizes == ODD else {"aten.addmm": 1, "gelu": 1})
    whole = optimize(module)
    assert [site.operator for site in whole.replaced] == ["linear_gelu"]
    y, calls = counted(module, x)
    torch.testing.assert_close(y, wanted)
    assert calls == {"linear_gelu": 1}
    for report in (whole, *parts):
        report.undo()
    assert [type(m) for m in module.modules()] == [nn.Sequential, nn.Linear, nn.GELU]


@pytest.mark.parametrize("size", [WIDTH, ODD[0]])
def test_a_linear_layer_whose_class_changes_later_is_called(size: int) -> None:
    """The class may be derived from that of the optimised layer."""
    module, x = nn.Sequential(nn.Linear(1024, size), nn.GELU()), torch.randn(2, 1024)
    optimize(module)
    plain = F.linear(x, module[0].weight, module[0].bias)
    torch.testing.assert_close(module(x), F.gelu(plain))
    own = nn.Linear.forward
    body = {"forward": lambda self, x: 2 * own(self, x)}
    for base in (nn.Linear, type(module[0])):
        module[0].__class__ = type("Later", (base,), body)
        torch.testing.assert_close(module(x), F.gelu(2 * plain))


def test_a_weight_that_becomes_a_subclass_later_is_the_layer_s_own() -> None:
    module, x = Mlp(), torch.randn(3, WIDTH)
    wanted = module(x)
    optimize(module)
    halve(module.fc1)
    torch.testing.assert_close(module(x), wanted)


def test_a_layer_that_is_added_to_a_sequential_later_is_computed() -> None:
    module, x = chain(nn.Linear(WIDTH, WIDTH)), torch.randn(3, WIDTH)
    plain = copy.deepcopy(module)
    optimize(module, exclude="0")
    more = nn.Linear(WIDTH, WIDTH)
    for m in (module, plain):
        m.insert(0, more)  # type: ignore[operator]
        m.append(nn.ReLU())  # type: ignore[operator]
    torch.testing.assert_close(module(x), plain(x))
    for m in (module, plain):
        del m[0]  # type: ignore[operator]
        del m[0]  # type: ignore[operator]
    torch.testing.assert_close(module(x), plain(x))


@pytest.mark.parametrize("exclude", [None, "0"])
def test_a_compiled_sequential_holds_an_excluded_layer_apart_in_one_graph(exclude: str | None) -> None:
    module, x, graphs = chain(nn.Linear(WIDTH, WIDTH)), torch.randn(3, WIDTH), []
    wanted = module(x)

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    optimize(module, exclude=exclude)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend=backend)(x), wanted)
    (graph,) = graphs
    assert in_graph(graph) == (["linear_gelu"] * 2 if exclude is None else ["gelu", "linear_gelu"])
