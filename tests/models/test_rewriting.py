"""The rewriting of methods: which calls become one, and which must not."""

import copy
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
from .forwards import FUSED, UNFUSED, UNITS, Base, kept, modulate, nested

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_a_gated_sum_that_the_operator_does_not_compute_is_computed_as_before() -> None:
    """Other shapes and dtypes of the residual and of the factors, and a hook of the norm between."""

    class Gated(Base):
        def forward(self, x: Any, both: Any, residual: Any, scale: Any) -> Any:
            gate, y = both.split(1)
            s = residual + gate[0] * x
            shifted = self.plain(s) * (1 + scale) + scale
            t = y[0] * x + residual
            u = modulate(self.plain(t), scale, scale)
            v = (residual.float() + gate[0] * x.float()).type_as(residual)
            w = (self.plain(residual.float()) * (1 + scale) + scale).type_as(residual)
            return shifted, s, u, t, v, w

    module, x = Gated(), torch.randn(2, 3, UNITS)
    plain = copy.deepcopy(module)
    wanted_sites = ["adaptive_layer_norm", "add_adaptive_layer_norm", "add_adaptive_layer_norm", "gated_add"]
    assert sorted(s.operator for s in optimize(module).replaced if s.name == "") == wanted_sites
    g, s = torch.randn(2, 2, 1, UNITS), torch.randn(2, 1, UNITS)
    with Calls() as calls:
        module(x, g, x, s)
        module(x, g[:, :1], x, s[:1])
        module(x.bfloat16(), g.bfloat16(), x, s)
        module(x.bfloat16(), g, x.bfloat16(), s)  # s is float32, and so is the sum
    assert calls.ours["add_adaptive_layer_norm"] == 6
    assert calls.ours["gated_add"] == 3
    assert calls.ours["adaptive_layer_norm"] == 6
    for rows, both, residual, scale in (
        (x, g, x, s),
        (x.bfloat16(), g, x.bfloat16(), s),
        (x, g.double(), x, s),
        (x, g.expand(-1, -1, 3, -1), x, s),
        (x, g[..., :1], x, s),
        (x, g[:, 0, 0], x, s),
        (x, g, x[0], s),
        (x[:1], g, x, s),
        (x.bfloat16(), g.bfloat16(), x.half(), s),
        (x.long(), g, x, s),
    ):
        for found, wanted in zip(module(rows, both, residual, scale), plain(rows, both, residual, scale), strict=True):
            assert found.dtype is wanted.dtype
            eps = torch.finfo(torch.bfloat16).eps if torch.bfloat16 in (rows.dtype, residual.dtype) else 1e-5
            torch.testing.assert_close(found, wanted, rtol=8 * eps, atol=8 * eps)
    seen: list[Any] = []
    module.plain.register_forward_hook(lambda *args: seen.append(args[2]))
    module(x, g, x, s)
    torch.testing.assert_close(seen, [plain.plain(x + g[0] * x), plain.plain(g[1] * x + x), plain.plain(x)])


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
