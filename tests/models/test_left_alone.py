"""optimize(): modules that it leaves alone are reported with a reason, observers of a module see no difference, and bad
input raises errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from cupyops.torch import OptimizeReport, optimize
from cupyops.torch.models.classes import original_class
from cupyops.torch.models.fused import add_and_norm, add_then_norm

from .stand_ins import (
    WIDTH,
    ClippedGELU,
    FastGELU,
    Functions,
    HalfMoreRMSNorm,
    Mlp,
    PreNorm,
    QuickGELU,
    sequential,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def optimised(module: nn.Module) -> bool:
    return original_class(type(module)) is not None


# Left alone, and named ------------------------------------------------------------------------------------------------


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Counting(nn.Module):
    """Its class refuses to have a subclass."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x)


def parametrised() -> nn.Module:
    module = nn.LayerNorm(4)
    parametrize.register_parametrization(module, "weight", nn.Identity())
    return module


def replaced_forward() -> nn.Module:
    module = nn.LayerNorm(4)
    module.forward = module.forward  # type: ignore[method-assign]
    return module


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.LayerNorm(2)))


def complex_norm() -> nn.Module:
    return nn.LayerNorm(2, dtype=torch.complex64)


class Marked(Tensor):
    """A subclass of Tensor, as libraries for quantised weights have."""


def subclassed_weight() -> nn.Module:
    module = nn.LayerNorm(2, bias=False)
    module.weight = nn.Parameter(torch.randn(2).as_subclass(Marked))
    return module


class TwiceNorm(nn.LayerNorm):
    """Computes its norm by other means."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * (input - input.mean(-1, keepdim=True))


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "own forward": (lambda: OwnLinear(2, 2), "its class has its own forward"),
    "own norm": (lambda: TwiceNorm(WIDTH), "its class has its own forward"),
    "parametrised": (parametrised, "it has parametrizations, which change its class themselves"),
    "replaced forward": (replaced_forward, "its forward has been replaced on the instance"),
    "lazy": (lambda: nn.LazyLinear(3), "it is lazy and has no parameters yet: call the model once first"),
    "complex": (complex_norm, "its weight has dtype torch.complex64"),
    "tensor subclass": (subclassed_weight, "its weight is a Marked"),
    "quick gelu": (QuickGELU, "it differs from GELU by up to 0.009·max(1, |x|)"),
    "clipped gelu": (ClippedGELU, "it differs from GELU by up to 1·max(1, |x|)"),
    "half more": (lambda: HalfMoreRMSNorm(WIDTH), "it computes neither layer_norm nor rms_norm by rows"),
    "no subclasses": (Counting, "its class has no subclasses: no subclasses"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("case", LEFT)
def test_a_module_that_cannot_be_replaced_is_left_alone_and_named(case: str) -> None:
    make, reason = LEFT[case]
    module = nn.Sequential(nn.LayerNorm(WIDTH), make())
    cls, content = type(module[1]), dict(vars(module[1]))
    report = optimize(module)
    assert [(site.name, site.reason) for site in report.skipped] == [("1", reason)]
    assert type(module[1]) is cls
    assert dict(vars(module[1])) == content
    assert optimised(module[0])
    assert f"{reason}: 1 x {cls.__name__}: 1" in str(report)


def test_a_scripted_part_is_left_alone_and_its_neighbours_are_not() -> None:
    module = nn.Sequential(nn.LayerNorm(2), scripted())
    report = optimize(module)
    assert optimised(module[0])
    assert [(s.name, s.reason) for s in report.skipped] == [("1", "it is scripted already, with all that is in it")]
    assert module(torch.ones(1, 2)).shape == (1, 2)


def test_a_quantised_part_is_left_alone_and_named() -> None:
    quantised = torch.ao.nn.quantized.dynamic.Linear
    part = quantised.__new__(quantised)
    nn.Module.__init__(part)
    report = optimize(nn.Sequential(nn.Linear(2, 2), part))
    assert [(s.name, s.reason) for s in report.skipped] == [("1", "it is quantised")]
    assert type(part) is quantised


def test_a_second_call_changes_nothing_and_says_so() -> None:
    module = PreNorm()
    first = optimize(module)
    classes = [type(m) for m in module.modules()]
    second = optimize(module)
    assert [type(m) for m in module.modules()] == classes
    assert second.replaced == ()
    assert {site.reason for site in second.skipped} == {"it is optimised already"}
    second.undo()
    assert [type(m) for m in module.modules()] == classes
    first.undo()
    assert not any(map(optimised, module.modules()))


def test_a_float64_argument_takes_the_ten_digits_of_its_own_formula() -> None:
    module, x = FastGELU(), torch.randn(100, dtype=torch.float64)
    wanted = module(x)
    optimize(module)
    assert optimised(module)
    assert torch.equal(module(x), wanted)
    assert not torch.equal(wanted, nn.functional.gelu(x, approximate="tanh"))


def test_a_subclass_of_tensor_takes_the_module_s_own_forward() -> None:
    module, x = PreNorm(), torch.randn(2, WIDTH).as_subclass(Marked)
    wanted = module(x)
    optimize(module)
    assert type(module(x)) is Marked
    assert torch.equal(module(x), wanted)


# Filters --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"include": "*.mlp.*"}, {"0.mlp.act", "1.mlp.act"}),
        ({"include": ["0.norm1", "1.norm?"]}, {"0.norm1", "1.norm1", "1.norm2"}),
        ({"include": "0.*", "exclude": "*.norm?"}, {"0.mlp", "0.mlp.act"}),
        ({"include": lambda name, module: type(module) is nn.GELU}, {"0.mlp.act", "1.mlp.act"}),
        ({"exclude": lambda name, module: True}, set()),
    ],
)
def test_filters_choose_by_name_or_by_a_function(filters: Any, wanted: set[str]) -> None:
    module = nn.Sequential(PreNorm(), PreNorm())
    report = optimize(module, **filters)
    assert {site.name for site in report.replaced} == wanted
    assert {name for name, m in module.named_modules() if optimised(m)} == wanted
    assert {site.reason for site in report.skipped} <= {"excluded by name"}
    names = [site.name for site in report.skipped]
    assert len(names) == len(set(names))
    assert not set(names) & wanted


def test_a_shared_module_is_wanted_if_one_of_its_names_is() -> None:
    module = nn.Sequential(nn.LayerNorm(4), nn.Identity())
    module.append(module[0])
    report = optimize(module, include="2")
    assert [site.name for site in report.replaced] == ["2"]
    assert optimised(module[0])


def test_a_pattern_that_matches_nothing_is_said() -> None:
    report = optimize(PreNorm(), include=["blokcs.*", "norm1"])
    assert report.notes == ("include: no name matches 'blokcs.*'",)
    assert str(report).endswith("include: no name matches 'blokcs.*'")


def test_a_notebook_shows_the_places_as_a_table() -> None:
    report = optimize(nn.Sequential(nn.GELU(), nn.GELU(), nn.Sequential(nn.GELU("tanh"))), exclude=["1"])
    found = report._repr_html_()
    assert str(report).splitlines()[0] in found
    assert found.count("<tr>") == 1 + len(str(report).splitlines()) - 2, "one for each line but the two headings"
    assert "excluded" in found
    nothing = optimize(nn.Sequential(nn.ReLU()))._repr_html_()
    assert "nothing to replace" in nothing


def test_a_model_without_matches_says_so() -> None:
    report = optimize(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU()))
    assert str(report) == "optimize(Sequential): nothing to replace"
    assert repr(report) == "<OptimizeReport of Sequential: 0 replaced, 0 skipped>"


# What observes a module -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["forward", "pre", "backward", "before_backward", "global", "instance"])
@pytest.mark.parametrize("name", ["fc1", "act"])
def test_a_hook_sees_what_it_saw_before(name: str, kind: str, when: str) -> None:
    """A fused call does not compute the value that a hook between its parts is to see."""
    module, x = Mlp().double(), torch.randn(2, WIDTH, dtype=torch.float64, requires_grad=True)

    def watch(seen: list[Any]) -> Callable[[], None]:
        part = getattr(module, name)
        if kind == "forward":
            return part.register_forward_hook(lambda m, i, o: seen.append((i[0].detach(), o.detach()))).remove
        if kind == "pre":
            return part.register_forward_pre_hook(lambda m, i: seen.append(i[0].detach())).remove
        if kind == "backward":
            return part.register_full_backward_hook(lambda m, i, o: seen.append(o[0])).remove
        if kind == "before_backward":
            return part.register_full_backward_pre_hook(lambda m, o: seen.append(o[0])).remove
        if kind == "global":
            hook = nn.modules.module.register_module_forward_hook
            return hook(lambda m, i, o: seen.append(o.detach()) if m is part else None).remove
        own = part.forward
        part.forward = lambda x: seen.append(x.detach()) or own(x)
        return lambda: delattr(part, "forward")

    def run() -> list[Any]:
        seen: list[Any] = []
        remove = watch(seen)
        module(x).sum().backward()
        remove()
        return seen

    wanted = run()
    assert wanted
    if when == "after":
        optimize(module)
        torch.testing.assert_close(run(), wanted)
        return
    seen: list[Any] = []
    remove = watch(seen)
    optimize(module)
    module(x).sum().backward()
    torch.testing.assert_close(seen, wanted)
    remove()


def test_a_part_that_is_exchanged_later_is_called() -> None:
    module = Mlp()
    optimize(module)
    x = torch.randn(2, WIDTH)
    module.act = nn.ReLU()
    want = module.fc2(module.fc1(x).relu())
    torch.testing.assert_close(module(x), want)
    module.fc1 = nn.Sequential(module.fc1, nn.Tanh())  # type: ignore[assignment]
    torch.testing.assert_close(module(x), module.fc2(module.fc1(x).relu()))


def test_a_function_that_is_exchanged_later_is_called() -> None:
    class WithoutHash(list[float]):
        def __call__(self, x: Tensor) -> Tensor:
            return x * self[0]

    module, x = Functions(), torch.randn(2, WIDTH)
    optimize(module)
    module.activation = WithoutHash([2.0])
    y = nn.functional.gelu(module.fc(x), approximate="tanh")
    y = nn.functional.layer_norm(y, (WIDTH,), module.weight)
    want = 2 * nn.functional.rms_norm(2 * module.fc(y), (WIDTH,), module.weight, eps=1e-6)
    torch.testing.assert_close(module(x), want)


def test_a_parametrization_that_comes_later_is_computed() -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    module = Mlp()
    optimize(module)
    parametrize.register_parametrization(module.fc1, "weight", Double())
    x = torch.randn(2, WIDTH)
    want = nn.functional.linear(x, 2 * module.fc1.parametrizations.weight.original, module.fc1.bias)
    torch.testing.assert_close(module(x), module.fc2(nn.functional.gelu(want)))


def test_a_part_that_two_modules_share_stays_a_module_of_its_own() -> None:
    module = nn.ModuleList([Mlp(), Mlp()])
    module[1].fc1 = module[0].fc1
    optimize(module)
    x = torch.randn(2, WIDTH)
    plain = nn.functional.linear(x, module[0].fc1.weight, module[0].fc1.bias)
    torch.testing.assert_close(module[0].fc1(x), plain)
    torch.testing.assert_close(module[0](x), module[0].fc2(nn.functional.gelu(plain)))


def test_a_weight_that_a_pre_hook_computes_is_the_one_of_this_call() -> None:
    """Old weight normalisation and pruning set the weight in a hook."""
    module = Mlp()

    def fill(module: nn.Module, _: Any) -> None:
        module.weight.data.fill_(1.0)

    module.fc1.register_forward_pre_hook(fill)
    optimize(module)
    x = torch.randn(2, WIDTH)
    module.fc1.weight.data.zero_()
    want = nn.functional.gelu(x.sum(-1, keepdim=True) + module.fc1.bias)
    torch.testing.assert_close(module(x), module.fc2(want))


def test_operands_that_the_fused_addition_does_not_take_are_added_before(backend: str, device: str) -> None:
    """Broadcasting, numbers, and a residual of another dtype."""
    norm = nn.LayerNorm(WIDTH, device=device, dtype=torch.float64)
    optimize(norm)
    a = torch.randn(3, WIDTH, dtype=torch.float64, device=device)
    row = torch.randn(WIDTH, dtype=torch.float64, device=device)
    for b in (row, 2.0, a.float(), a.bool(), torch.ones_like(a, dtype=torch.int64)):
        want = nn.functional.layer_norm(a + b, (WIDTH,), norm.weight, norm.bias, norm.eps)
        torch.testing.assert_close(add_then_norm(norm, a, b), want)
        (y,), s = add_and_norm(norm, a, b)
        torch.testing.assert_close((y, s), (want, a + b))


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optimize(42), "optimize: `model` must be a torch.nn.Module, got int"),
        (lambda: optimize(nn.Linear), "optimize: `model` must be a torch.nn.Module, got type"),
        (
            lambda: optimize(torch.compile(nn.Linear(2, 2))),
            "optimize: `model` must be the model before torch.compile: torch.compile(model) comes after optimize(model), "
            "got a compiled model",
        ),
        (
            lambda: optimize(nn.Linear(2, 2), include=3),
            "optimize: `include` must be a pattern, a sequence of patterns or a function (name, module) -> bool, got 3",
        ),
        (
            lambda: optimize(nn.Linear(2, 2), exclude=[nn.Linear]),
            "optimize: `exclude` must be a pattern, a sequence of patterns or a function (name, module) -> bool, "
            "got [<class 'torch.nn.modules.linear.Linear'>]",
        ),
    ],
)
def test_bad_input_is_refused_by_name(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == words


def test_a_scripted_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^optimize: `model` must be a model in Python, got a scripted model$"):
        optimize(scripted())


class Stubborn(nn.LayerNorm):
    """Its class cannot be changed."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":
            raise RuntimeError("no other class")
        super().__setattr__(name, value)


def test_an_error_on_the_way_leaves_every_class_as_it_was() -> None:
    module = nn.Sequential(PreNorm(), Stubborn(2), PreNorm())
    classes = [type(m) for m in module.modules()]
    with pytest.raises(RuntimeError, match="no other class"):
        optimize(module)
    assert [type(m) for m in module.modules()] == classes


def test_a_filter_that_raises_leaves_every_class_as_it_was() -> None:
    module = sequential()
    with pytest.raises(ZeroDivisionError):
        optimize(module, exclude=lambda name, m: 1 // 0 if name == "3" else False)
    assert not any(map(optimised, module.modules()))


def test_a_compiled_part_is_left_alone() -> None:
    module = nn.Sequential(nn.LayerNorm(2), torch.compile(nn.LayerNorm(2)))
    report = optimize(module)
    assert optimised(module[0])
    assert not optimised(module[1]._orig_mod)
    assert isinstance(report, OptimizeReport)
    assert [(s.name, s.reason) for s in report.skipped] == [("1", "it is compiled already, with all that is in it")]
