"""Every shipped operator of the registry has all of its parts, and every part belongs to an operator of the registry."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import autograd_bridge
import benchmarks.cases
import cupyops
import cupyops.torch.ops
from cupyops.launch.kernel import all_kernels
from cupyops.ops import registry
from cupyops.ops.registry import SHIPPED, Shipped, families
from cupyops.torch import Operator
from tests.cases import FAMILIES, FamilyData

ROOT = Path(__file__).parents[2]
CROSSING = {"to_cupy", "to_torch"}
PAGE = "docs/shipped_operators.md"


def operators_of(shipped: Shipped) -> list[Operator]:
    """The operators that a file declares, without those of gradients and tangents."""
    module = importlib.import_module(f"cupyops.torch.ops.{shipped.name}")
    found = [x for x in vars(module).values() if isinstance(x, Operator)]
    return [op for op in found if op.name.startswith(shipped.name) and not op.name.endswith(("_backward", "_jvp"))]


def unlisted() -> Iterator[str]:
    """Files that declare operators, and public names, that the registry does not lead to."""
    names = {s.name for s in SHIPPED}
    for file in pkgutil.iter_modules(cupyops.torch.ops.__path__):
        module = importlib.import_module(f"cupyops.torch.ops.{file.name}")
        if file.name not in names and any(isinstance(x, Operator) for x in vars(module).values()):
            yield f"cupyops/torch/ops/{file.name}.py declares operators, and is not in the registry"
    offered = {name for s in SHIPPED for name in importlib.import_module(f"cupyops.torch.ops.{s.name}").__all__}
    yield from (f"autograd_bridge.{x} is no operator's" for x in set(autograd_bridge.__all__) - offered - CROSSING)
    arrays = {name for s in SHIPPED if s.body for name in importlib.import_module(s.body).__all__}
    for name in cupyops.__all__:
        home = getattr(getattr(cupyops, name), "__module__", None) or ""
        if home.startswith("cupyops.ops.") and name not in arrays:
            yield f"cupyops.{name} is no operator's"


def untested(shipped: Shipped, data: FamilyData | None) -> Iterator[str]:
    """What the test data lack of an operator of the registry."""
    file = f"tests/cases/{shipped.family}.py"
    if data is None:
        yield f"{shipped.name} has no test data: {file}"
        return
    for op in operators_of(shipped):
        if op.op not in [case.op for case in data.cases] and op.name not in data.exempt:
            yield f"{op.name} has no case in {file}"
        if op.name not in data.samples:
            yield f"{op.name} has no samples in {file}"
    if shipped.name not in [case.operator for case in data.launches()]:
        yield f"{shipped.name} has no launch cases in {file}"


def lacking(shipped: Shipped) -> Iterator[str]:
    """What an operator of the registry lacks."""
    name, family = shipped.name, shipped.family
    if find_spec(f"cupyops.torch.ops.{name}") is None:
        yield f"{name} has no file cupyops/torch/ops/{name}.py"
        return
    module = importlib.import_module(f"cupyops.torch.ops.{name}")
    for public in module.__all__:
        if public not in autograd_bridge.__all__ or getattr(autograd_bridge, public, None) is not vars(module)[public]:
            yield f"autograd_bridge does not offer {name}'s {public}"
    body = importlib.import_module(shipped.body) if shipped.body else None
    for public in body.__all__ if body else ():
        if public not in cupyops.__all__ or getattr(cupyops, public, None) is not vars(body)[public]:
            yield f"cupyops does not offer {name}'s {public}"
    operators = operators_of(shipped)
    if name not in {op.name for op in operators}:
        yield f"cupyops/torch/ops/{name}.py does not declare cupyops::{name}"
    for op in operators:
        if op.reference is None:
            yield f"{op.name} has no reference"
        if op.onnx is None:
            yield f"{op.name} has no ONNX form"
    yield from untested(shipped, FAMILIES.get(family))
    if not (ROOT / "tests" / "operators" / f"test_{family}.py").exists():
        yield f"{name} has no tests: tests/operators/test_{family}.py"
    try:
        benchmark = importlib.import_module(f"benchmarks.{family}")
    except ModuleNotFoundError:
        yield f"{name} has no benchmark: benchmarks/{family}.py"
    else:
        if getattr(benchmark, name, None) is not vars(module).get(name):
            yield f"benchmarks/{family}.py does not measure {name}"
    if not any(kernel.name.startswith(family) for kernel in all_kernels()):
        yield f"{name} has no kernel that warmup() compiles"
    if f"`{name}(" not in (ROOT / PAGE).read_text(encoding="utf-8"):
        yield f"{name} has no line in {PAGE}"


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda s: s.name)
def test_every_operator_of_the_registry_is_complete(shipped: Shipped) -> None:
    missing = list(lacking(shipped))
    assert not missing, "\n".join(["missing parts:", *missing])


def test_what_is_offered_is_in_the_registry() -> None:
    missing = list(unlisted())
    assert not missing, "\n".join(missing)


def test_the_benchmarks_of_the_command_are_those_of_the_registry() -> None:
    assert set(benchmarks.cases.OPERATORS) == {s.family for s in SHIPPED if s.work != "steps"}
    for op in benchmarks.cases.OPERATORS:
        if find_spec(f"benchmarks.{op}") is None:
            continue  # `lacking` names the file
        assert {
            case.op for case in benchmarks.cases.device_cases(op, (2**12,), (64,) if op in families("rows") else ())
        }


def test_exemptions_are_of_operators_without_a_case() -> None:
    names = {op.name for s in SHIPPED for op in operators_of(s)}
    for data in FAMILIES.values():
        assert set(data.exempt) <= names - {case.op.name().partition("::")[2] for case in data.cases}


@pytest.mark.parametrize(
    ("of", "changes", "told"),
    [
        ("gelu", {"family": "unwritten"}, "gelu has no tests: tests/operators/test_unwritten.py"),
        ("gelu", {"family": "unwritten"}, "gelu has no test data: tests/cases/unwritten.py"),
        ("gelu", {"family": "unwritten"}, "gelu has no benchmark: benchmarks/unwritten.py"),
        ("gelu", {"family": "unwritten"}, "gelu has no kernel that warmup() compiles"),
        ("gelu", {"family": "add2"}, "benchmarks/add2.py does not measure gelu"),
        ("gelu", {"body": "cupyops.ops.shapes"}, "cupyops does not offer gelu's "),
        ("gelu", {"name": "unwritten"}, "unwritten has no file cupyops/torch/ops/unwritten.py"),
        ("gelu", {"name": "sequences"}, "cupyops/torch/ops/sequences.py does not declare cupyops::sequences"),
        ("gelu", {"name": "sequences"}, "autograd_bridge does not offer sequences's through_time"),
        ("gelu", {"name": "sequences"}, "sequences has no line in docs/shipped_operators.md"),
    ],
)
def test_a_planted_operator_is_told_by_what_it_lacks(of: str, changes: dict[str, str], told: str) -> None:
    planted = replace(next(s for s in SHIPPED if s.name == of), **changes)
    assert any(line.startswith(told) for line in lacking(planted))


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("cases", "gelu has no case in tests/cases/gelu.py"),
        ("samples", "gelu has no samples in tests/cases/gelu.py"),
        ("launches", "gelu has no launch cases in tests/cases/gelu.py"),
        ("onnx", "gelu has no ONNX form"),
        ("reference", "gelu has no reference"),
        ("bridge", "autograd_bridge does not offer gelu's GELU"),
        ("cupyops", "cupyops does not offer gelu's gelu_backward"),
    ],
)
def test_what_is_taken_from_an_operator_is_missed(what: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gelu = next(s for s in SHIPPED if s.name == "gelu")
    (operator,) = operators_of(gelu)
    if what in (without := {"cases": [], "samples": {}, "launches": lambda: iter(())}):
        monkeypatch.setitem(FAMILIES, "gelu", replace(FAMILIES["gelu"], **{what: without[what]}))
    elif what == "bridge":
        monkeypatch.setattr(autograd_bridge, "GELU", object())
    elif what == "cupyops":
        monkeypatch.setattr(cupyops, "gelu_backward", object())
    else:
        monkeypatch.setattr(operator, what, None)
    assert list(lacking(gelu)) == [told]


def test_an_operator_that_the_registry_has_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SHIPPED", tuple(s for s in SHIPPED if s.name != "gelu"))
    assert set(unlisted()) >= {
        "cupyops/torch/ops/gelu.py declares operators, and is not in the registry",
        "autograd_bridge.GELU is no operator's",
        "cupyops.gelu is no operator's",
    }


def test_the_registry_needs_no_torch() -> None:
    assert "torch" not in Path(registry.__file__).read_text(encoding="utf-8").partition('"""\n\n')[2]
