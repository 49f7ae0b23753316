"""The rewriting of methods: which calls become one, and which must not."""
# ruff: noqa: RET504 - the assignments are what is tested

import copy
import functools
import importlib.util
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.torch import optimize
from cupyops.torch.models.classes import is_optimised

from .calls import Calls
from .stand_ins import NewGELU

pytestmark = pytest.mark.usefixtures("one_thread")
UNITS = 8
OUTSIDE = NewGELU()  # a module that is no part of a model


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.norm = nn.Linear(UNITS, UNITS), nn.GELU(), nn.LayerNorm(UNITS)
        self.plain = nn.LayerNorm(UNITS, elementwise_affine=False)
        self.silu, self.up = nn.SiLU(), nn.Linear(UNITS, UNITS)
        self.inner = nn.ModuleDict({"fc": nn.Linear(UNITS, UNITS), "act": nn.GELU("tanh")})
        self.late: Callable[[], Tensor] = torch.Tensor


def inplace(x: Tensor) -> Tensor:
    return x.add_(1)


def twice(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(self: Any, x: Tensor) -> Tensor:
        return 2 * function(self, x)

    return wrapper


class Keeper:
    """A decorator that holds the function in an object."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function


def kept(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    keeper = Keeper(function)

    @functools.wraps(function)
    def wrapper(self: Any, x: Tensor) -> Tensor:
        return keeper.function(self, x)

    return wrapper


# Each function is the forward of a module. The words are the operators of its changes.


def nested(self: Any, x: Tensor) -> Tensor:
    return self.act(self.fc(x))


def same_name(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    x = self.act(x)
    return x * 2


def other_name(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = self.act(z)
    return y * 2


def returned(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    return self.act(x)


def inside_an_expression(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = x + F.dropout(self.act(z), 0.0)
    return y


def in_branches(self: Any, x: Tensor) -> Tensor:
    for i in range(2):
        if i == 1:
            x = self.fc(x)
            x = self.act(x)
        else:
            x = x * 2
    return x


def in_a_comprehension(self: Any, x: Tensor) -> Tensor:
    return sum(self.act(self.fc(x * k)) for k in range(2))  # type: ignore[return-value]


def functions(self: Any, x: Tensor) -> Tensor:
    x = F.gelu(self.fc(x), approximate="tanh")
    x = torch.nn.functional.gelu(x, approximate="none")
    return F.layer_norm(x, (UNITS,), eps=1e-3)


def outside(self: Any, x: Tensor) -> Tensor:
    return OUTSIDE(self.fc(x))


def norm_of_a_sum(self: Any, x: Tensor) -> Tensor:
    return self.norm(x + self.fc(x))


def sum_and_norm(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    return x + F.dropout(self.norm(x), 0.0)


def sum_and_residual(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x) + x
    residual = x
    other = x
    x = self.norm(x)
    return x + residual * other


def gated(self: Any, x: Tensor) -> Tensor:
    return self.silu(self.fc(x)) * self.up(x)


def gated_the_other_way_round(self: Any, x: Tensor) -> Tensor:
    return self.up(x) * self.act(inplace(self.fc(x)))


def gated_by_items(self: Any, x: Tensor) -> Tensor:
    parts = x.split(4, dim=-1)
    return F.relu(parts[0]) * parts[1]


def gated_further_down(self: Any, x: Tensor) -> Tensor:
    a = F.silu(self.fc(x))
    x = self.up(x)
    x = x * a
    return x + 1


def gated_by_a_variable(self: Any, x: Tensor) -> Tensor:
    g = inplace(x * 2)
    a = self.act(g)
    y = a * g
    return y + g


def gated_halves(self: Any, x: Tensor) -> Tensor:
    g, u = self.fc(x).chunk(2, -1)
    u = self.silu(g) * u
    return u + 1


def gated_second_half(self: Any, x: Tensor) -> Tensor:
    u, g = self.fc(x).chunk(2, -1)
    return u * self.silu(g)


def scaled_by_an_attribute(self: Any, x: Tensor) -> Tensor:
    return self.act(self.fc(x)) * self.fc.bias


def modulated(self: Any, x: Tensor) -> Tensor:
    x = x[:, None]
    return self.plain(self.fc(x)) * (x + 1) + x


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


def modulate_more(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1.5 + scale) + shift


def modulated_by_a_function(self: Any, x: Tensor) -> Tensor:
    s = self.fc(x)[:, None]
    return modulate(self.plain(x[:, None]), s, s)


def modulated_after_an_addition(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    s = x[:, None]
    x = x[:, None] + self.fc(s)
    y = self.plain(x)
    y = y * (1.0 + s) + s
    return y + x


FUSED: list[tuple[Callable[..., Tensor], list[str]]] = [
    (nested, ["linear_gelu"]),
    (same_name, ["linear_gelu"]),
    (other_name, ["linear_gelu"]),
    (returned, ["linear_gelu"]),
    (inside_an_expression, ["linear_gelu"]),
    (in_branches, ["linear_gelu"]),
    (in_a_comprehension, ["linear_gelu"]),
    (functions, ["linear_gelu", "gelu", "layer_norm"]),
    (outside, ["linear_gelu"]),
    (norm_of_a_sum, ["add_layer_norm"]),
    (sum_and_norm, ["add_layer_norm"]),
    (sum_and_residual, ["add_layer_norm"]),
    (gated, ["swiglu"]),
    (gated_the_other_way_round, ["geglu"]),
    (gated_by_items, ["reglu"]),
    (gated_further_down, ["swiglu"]),
    (gated_by_a_variable, ["geglu"]),
    (gated_halves, ["swiglu"]),
    (gated_second_half, ["swiglu"]),
    (scaled_by_an_attribute, ["linear_gelu"]),
    (modulated, ["adaptive_layer_norm"]),
    (modulated_by_a_function, ["adaptive_layer_norm"]),
    (modulated_after_an_addition, ["adaptive_layer_norm"]),
    (twice(nested), ["linear_gelu"]),
    (twice(twice(sum_and_norm)), ["add_layer_norm"]),
]


# The value between is read again, changed, or may be read.


def read_again(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = self.act(z)
    return y + z


def read_and_written_in_place(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = self.act(z)
    z += 1
    return y


def read_in_the_same_statement(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    x = self.act(x) + x
    return x


def read_by_a_function_inside(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    late = lambda: x  # noqa: E731
    x = self.act(x)
    return x + late()


def read_in_a_handler(self: Any, x: Tensor) -> Tensor:
    try:
        x = self.fc(x)
        x = self.act(x)
        raise KeyError
    except KeyError:
        return x


def read_as_a_local(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    x = self.act(x)
    return locals()["x"]  # type: ignore[no-any-return]


def read_after_a_loop(self: Any, x: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        z = self.fc(x)
        y = self.act(z) + y
    return y + z


def in_another_order(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    y = inplace(x) + self.norm(x)
    return y


def with_a_call_between(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    inplace(x)
    return self.norm(x)


def with_an_assignment_between(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    return (x := x * 2) + self.norm(x)


def if_it_is_wanted(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    return self.norm(x) if self.training else x


def in_place(self: Any, x: Tensor) -> Tensor:
    y = x * 1
    y += self.fc(x)
    return self.norm(y) + y


def with_an_argument_by_name(self: Any, x: Tensor) -> Tensor:
    return self.act(input=self.fc(input=x))


def with_a_name_of_its_own(self: Any, x: Tensor) -> Tensor:
    F = self
    return F.act(F.fc(x))


def with_another_self(self: Any, x: Tensor) -> Tensor:
    self = self.inner
    return self.act(self.fc(x))


def subtracted(self: Any, x: Tensor) -> Tensor:
    return self.norm(x - self.fc(x))


def gate_changed_by_the_other_factor(self: Any, x: Tensor) -> Tensor:
    return self.silu(x) * inplace(x)


def gate_changed_before_the_product(self: Any, x: Tensor) -> Tensor:
    a = self.silu(x)
    u = inplace(x)
    return a * u


def gate_changed_in_the_statement_of_the_product(self: Any, x: Tensor) -> Tensor:
    a = self.silu(x)
    return inplace(x) + a * x


def activation_read_again(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    y = a * x
    return y + a


def activation_read_in_a_loop(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    for _ in range(2):
        x = a * x
    return x


def activation_replaced_before_the_product(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    if self.training:
        a = x
    return a * x


def activation_of_two_arguments(self: Any, x: Tensor) -> Tensor:
    return F.relu(x.clone(), True) * F.silu(x, inplace=False)


def gate_shadowed(self: Any, x: Tensor) -> Tensor:
    silu = torch.tanh
    return silu(x) * x


def chunks_of_another_dimension(self: Any, x: Tensor) -> Tensor:
    g, u = torch.cat((x, x + 1)).chunk(2, 0)
    return g + u


def activation_times_a_number(self: Any, x: Tensor) -> Tensor:
    a = self.silu(x)
    return a * 2


def activation_times_an_attribute(self: Any, x: Tensor) -> Tensor:
    return self.silu(x) * self.fc.bias


def activation_replaced_in_the_statement(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    return (a := x) + a * x


def modulated_with_weight(self: Any, x: Tensor) -> Tensor:
    return self.norm(x) * (1 + x) + x


def modulated_by_another_function(self: Any, x: Tensor) -> Tensor:
    return modulate_more(self.plain(x), x, x)


def modulated_after_a_change(self: Any, x: Tensor) -> Tensor:
    h = self.plain(x)
    return inplace(x) + (h * (1 + x) + x)


def modulated_with_a_change(self: Any, x: Tensor) -> Tensor:
    return self.plain(x) * (1 + inplace(x)) + x


def modulated_and_read_again(self: Any, x: Tensor) -> Tensor:
    h = self.plain(x)
    y = h * (1 + x) + x
    return y + h


UNFUSED = [
    activation_times_a_number,
    activation_times_an_attribute,
    activation_replaced_in_the_statement,
    modulated_with_weight,
    modulated_by_another_function,
    modulated_after_a_change,
    modulated_with_a_change,
    modulated_and_read_again,
    gate_changed_by_the_other_factor,
    gate_changed_before_the_product,
    gate_changed_in_the_statement_of_the_product,
    activation_read_again,
    activation_read_in_a_loop,
    activation_replaced_before_the_product,
    activation_of_two_arguments,
    gate_shadowed,
    chunks_of_another_dimension,
    read_again,
    read_and_written_in_place,
    read_in_the_same_statement,
    read_by_a_function_inside,
    read_in_a_handler,
    read_as_a_local,
    read_after_a_loop,
    in_another_order,
    with_a_call_between,
    with_an_assignment_between,
    if_it_is_wanted,
    in_place,
    with_an_argument_by_name,
    with_a_name_of_its_own,
    with_another_self,
    subtracted,
]


def module_of(forward: Callable[..., Tensor]) -> nn.Module:
    return type("Written", (Base,), {"forward": forward})().double()


def compared(forward: Callable[..., Tensor]) -> list[str]:
    """The operators of the changes, of a method that computes what it computed."""
    module, x = module_of(forward), torch.randn(3, UNITS, dtype=torch.float64)
    wanted = module(x.clone())
    report = optimize(module)
    torch.testing.assert_close(module(x.clone()), wanted)
    return [site.operator for site in report.replaced if site.name == ""]


@pytest.mark.parametrize(("forward", "operators"), FUSED, ids=lambda f: getattr(f, "__name__", ""))
def test_calls_beside_each_other_become_one(forward: Callable[..., Tensor], operators: list[str]) -> None:
    assert compared(forward) == operators


@pytest.mark.parametrize("forward", UNFUSED, ids=lambda f: f.__name__)
def test_calls_of_which_something_sees_the_value_between_stay_two(forward: Callable[..., Tensor]) -> None:
    assert compared(forward) == []


@pytest.mark.parametrize(
    ("dim", "last"),
    [(0, "g"), (-1, "u")],
)
def test_halves_that_something_reads_again_stay_two_tensors(dim: int, last: str) -> None:
    """The gate and the other half have the shape of a half, along whichever dimension."""

    def halves(self: Any, x: Tensor) -> Tensor:
        g, u = torch.cat((self.fc(x), x), dim).chunk(2, dim)
        y = self.silu(g) * u
        return y + (g if last == "g" else u)

    assert compared(halves) == ["swiglu"]


def test_a_gate_or_a_factor_that_the_operator_does_not_take_is_multiplied_as_before() -> None:
    """Other shapes, dtypes and kinds of a factor, a hook of the activation, and one that changes its argument."""

    class Gated(Base):
        def forward(self, x: Any, u: Any) -> Any:
            return self.silu(x) * u

    module, x = Gated(), torch.randn(3, UNITS)
    plain = copy.deepcopy(module)
    optimize(module)
    for u in (2.0, torch.randn(UNITS), torch.arange(UNITS), x.bfloat16(), x.double(), x.to_sparse()):
        wanted = plain(x, u)
        found = module(x, u)
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)
    seen: list[Any] = []
    module.silu.register_forward_hook(lambda *args: seen.append(args[2]))
    module(x, x)
    torch.testing.assert_close(seen, [F.silu(x)])
    other = nn.SiLU(inplace=True)
    module.silu = plain.silu = other
    y = module(z := x.clone(), x)
    torch.testing.assert_close([y, z], [F.silu(x) * x, F.silu(x)])


def test_a_modulation_that_the_operator_does_not_compute_is_computed_as_before() -> None:
    """Other shapes and dtypes of scale and shift, and a hook of the norm."""

    class Modulated(Base):
        def forward(self, x: Any, scale: Any, shift: Any) -> Any:
            return self.plain(x) * (1 + scale) + shift, modulate(self.plain(x), shift, scale)

    module, x = Modulated(), torch.randn(2, 3, UNITS)
    plain = copy.deepcopy(module)
    sites = [site.operator for site in optimize(module).replaced]
    assert sites.count("adaptive_layer_norm") == 2
    s = torch.randn(2, 1, UNITS)
    with Calls() as calls:
        module(x, s, s)
        module(x, s.bfloat16(), s)
        module(x, s[:1], s[:1])
    assert dict(calls.ours) == {"adaptive_layer_norm": 6}
    for rows, scale, shift in (
        (x, s, s),
        (x, 2.0, s),
        (x, x, x),
        (x, s, s[:1]),
        (x, s[..., :1], s[..., :1]),
        (x, s[0, 0], s[0, 0]),
        (x[0], s[0], s[0]),
        (x[:1], s, s),
        (x.bfloat16(), s, s),
        (x, s.double(), s.double()),
        (x, s.long(), s.long()),
    ):
        for found, wanted in zip(module(rows, scale, shift), plain(rows, scale, shift), strict=True):
            assert found.dtype is wanted.dtype
            torch.testing.assert_close(found, wanted)
    seen: list[Any] = []
    module.plain.register_forward_hook(lambda *args: seen.append(args[2]))
    module(x, s, s)
    torch.testing.assert_close(seen, [plain.plain(x)] * 2)


def test_a_value_that_a_function_reads_after_the_method_is_the_one_that_it_read() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.late = lambda: x
        x = self.fc(x)
        return self.act(x)

    module, x = module_of(forward), torch.randn(3, UNITS, dtype=torch.float64)
    optimize(module)
    module(x)
    torch.testing.assert_close(module.late(), module.fc(x))


def test_a_sum_that_a_norm_has_read_does_not_keep_the_norm_alive() -> None:
    """A variable of the rewritten method would keep the normalised tensor in memory until the method returns."""
    import weakref

    seen: list[Any] = []
    alive: list[bool] = []

    class Watched(Base):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.fc(x)
            x = x + self.watch(self.norm(x))
            alive.append(seen[0]() is not None)  # an assert here would be rewritten, and then the method is not
            return x

        def watch(self, y: Tensor) -> Tensor:
            seen.append(weakref.ref(y))
            return y.sum()

    module = Watched()
    module.requires_grad_(False)
    x = torch.randn(3, UNITS)
    module(x)
    seen.clear()
    assert "add_layer_norm" in [site.operator for site in optimize(module).replaced]
    module(x)
    assert alive == [False, False]


# The function that is made --------------------------------------------------------------------------------------------


def test_a_rewritten_method_keeps_its_lines_its_defaults_and_its_closure() -> None:
    factor = 3.0

    class Closing(Base):
        def forward(self, x: Tensor, *, more: float = 2.0) -> Tensor:
            """Some words."""
            x = self.act(self.fc(x)) * factor * more
            if more < 0:
                raise ValueError("negative")
            return super().extra_repr() or x

    module, x = Closing(), torch.randn(2, UNITS)
    before = Closing.forward
    optimize(module)
    after = type(module).forward
    assert after is not before
    assert after.__doc__ == "Some words."
    assert after.__qualname__ == before.__qualname__
    assert after.__kwdefaults__ == before.__kwdefaults__
    torch.testing.assert_close(module(x, more=1.0), F.gelu(module.fc(x)) * 3.0)
    factor = 1.0
    torch.testing.assert_close(module(x), F.gelu(module.fc(x)) * 2.0)
    lines = []
    for call in (lambda: before(module, x, more=-1.0), lambda: after(module, x, more=-1.0)):
        with pytest.raises(ValueError, match="negative") as error:
            call()
        lines.append((error.traceback[-1].path, error.traceback[-1].lineno))
    assert lines[0] == lines[1]


def reasons(module: nn.Module) -> list[str]:
    return [site.reason for site in optimize(module).skipped]


def test_a_method_without_source_is_named() -> None:
    scope: dict[str, Any] = {}
    exec("def forward(self, x):\n    return self.act(self.fc(x))\n", scope)
    module = module_of(scope["forward"])
    x = torch.randn(2, UNITS, dtype=torch.float64)
    wanted = module(x)
    assert reasons(module) == ["forward cannot be rewritten: it has no source"]
    torch.testing.assert_close(module(x), wanted)


def test_a_method_whose_file_has_changed_since_its_import_is_named(tmp_path: Path) -> None:
    """The text in the file is no longer what the method does."""
    file = tmp_path / "edited_model.py"
    file.write_text("def forward(self, x):\n    return self.act(self.fc(x)) * 2\n")
    spec = importlib.util.spec_from_file_location("edited_model", file)
    assert spec is not None
    assert spec.loader is not None
    edited = importlib.util.module_from_spec(spec)
    sys.modules["edited_model"] = edited
    try:
        spec.loader.exec_module(edited)
        file.write_text("def forward(self, x):\n    return self.act(self.fc(x)) * 3\n")
        linecache.checkcache(str(file))
        said = reasons(module_of(edited.forward))
    finally:
        del sys.modules["edited_model"]
    assert said == ["forward cannot be rewritten: its source is not that of the code that runs"]


def test_a_method_with_a_private_name_is_named() -> None:
    class Private(Base):
        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.fc(x)) + self.__more()

        def __more(self) -> float:
            return 1.0

    module, x = Private(), torch.randn(2, UNITS)
    wanted = module(x)
    assert reasons(module) == ["forward cannot be rewritten: it uses the private name __more"]
    torch.testing.assert_close(module(x), wanted)


def test_a_method_whose_decorator_hides_it_is_named() -> None:
    assert reasons(module_of(kept(nested))) == [
        "forward cannot be rewritten: its decorator does not keep the method in its closure"
    ]


def test_two_modules_of_one_class_with_other_parts_get_other_methods() -> None:
    a, b = module_of(nested), module_of(nested)
    b.__class__ = type(a)
    b.act = nn.ReLU()
    optimize(nn.ModuleList([a, b]))
    assert is_optimised(type(a))
    assert not is_optimised(type(b))
    x = torch.randn(2, UNITS, dtype=torch.float64)
    torch.testing.assert_close(b(x), b.fc(x).relu())


def test_an_overridden_method_of_a_base_class_stays_what_super_calls() -> None:
    class Lower(Base):
        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.fc(x))

    class Upper(Lower):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.helper(x)

        def helper(self, x: Tensor) -> Tensor:
            return self.inner.act(self.inner.fc(x))

    module, x = Upper(), torch.randn(2, UNITS)
    wanted = module(x)
    report = optimize(module)
    assert [site.operator for site in report.replaced if site.name == ""] == ["linear_gelu"]
    torch.testing.assert_close(module(x), wanted)
