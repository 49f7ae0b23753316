"""Code that Inductor keeps on disk: it is used for a graph whose operators are declared as before, and for no other."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

import autograd_bridge as bridge
from cupyops.torch import Operator
from cupyops.torch.compiled import keys, private
from cupyops.torch.core import conditions
from cupyops.torch.core.operator import _DECLARED
from tests.support import HANG, ROOT

DOUBLED = "tests::kept_double(Tensor x) -> Tensor y"
Run = Callable[[Tensor], Any]


def compiled(schema: str, body: Callable[..., Any], run: Callable[[Operator], Run], **declared: Any) -> tuple[Any, int]:
    """Returns what a compiled function of an operator that is declared anew returns, and how often code was found on disk."""
    op = Operator(schema, body, **declared)
    torch.compiler.reset()
    counters.clear()
    found = torch.compile(run(op), fullgraph=True)(torch.arange(8.0).view(2, 4))
    assert counters["inductor"]["fxgraph_cache_hit"] + counters["inductor"]["fxgraph_cache_miss"] == 1
    return found, counters["inductor"]["fxgraph_cache_hit"]


def plus_one(op: Operator) -> Run:
    return lambda x: op(x) + 1


def by_the_registered_operator(_: Operator) -> Run:
    return lambda x: torch.ops.tests.kept_double(x) + 1


def by_its_overload(_: Operator) -> Run:
    return lambda x: torch.ops.tests.kept_double.default(x) + 1


def in_a_region(op: Operator) -> Run:
    """The graph calls another graph twice, which has the call."""
    region: Run = torch.compiler.nested_compile_region(by_its_overload(op))
    return lambda x: (region(x) + region(x)) // 2


def that_writes(op: Operator) -> Run:
    def run(x: Tensor) -> Any:
        z = x.clone()
        return op(z) + 1, z

    return run


BODIES: list[tuple[Run, int]] = [
    (lambda x: 2 * x, 0),
    (lambda x: (2 * x).int(), 0),
    (lambda x: (3 * x).int(), 1),  # the code calls whichever body there is
]
FURTHER: list[tuple[Run, int]] = [
    (lambda x: (2 * x).double(), 0),
    (lambda x: torch.cat((x, x)), 0),
    (lambda x: (2 * x).t().contiguous().t(), 0),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("run", "compiled_as", "bodies"),
    [
        (plus_one, "kernel", BODIES + FURTHER),
        (in_a_region, "kernel", BODIES),
        (plus_one, lambda _: "kernel", BODIES),
        (by_the_registered_operator, "kernel", BODIES),
        (by_its_overload, "kernel", BODIES),
    ],
)
def test_an_edited_body_reaches_the_code_that_reads_its_result(
    run: Callable[[Operator], Run], compiled_as: str | Run, bodies: list[tuple[Run, int]]
) -> None:
    x = torch.arange(8.0).view(2, 4)
    with fresh_cache():
        for body, hits in bodies:
            y, found = compiled(DOUBLED, body, run, reference=body, compiled=compiled_as)
            assert y.dtype == body(x).dtype
            assert torch.equal(y, body(x) + 1)
            assert found == hits


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("run", "compiled_as", "autocast_in_key"),
    [
        (plus_one, "kernel", True),
        (plus_one, "kernel", False),  # before PyTorch 2.13, Dynamo's graphs under autocast have the operator itself
        (plus_one, lambda _: "kernel", True),
        (by_the_registered_operator, "kernel", True),
    ],
)
def test_an_edited_gradient_reaches_the_graph(
    run: Callable[[Operator], Run], compiled_as: str | Run, autocast_in_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AOTAutograd traces the gradient of a reference. Dynamo's graph has none."""
    monkeypatch.setattr(conditions, "_AUTOCAST_IN_KEY", autocast_in_key)
    x = torch.arange(8.0, requires_grad=True)
    with fresh_cache():
        for factor, version, hits in ((2, None, 0), (3, None, 0), (4, "1", 0), (4, "1", 1), (5, "2", 0)):
            options = {"reference": lambda x, k=factor: x * k, "compiled": compiled_as, "version": version}
            op = Operator(DOUBLED, lambda x: 2 * x, **options)
            torch.compiler.reset()
            counters.clear()
            with torch.autocast("cpu", torch.bfloat16):
                y = torch.compile(run(op), fullgraph=True)(x)
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(grad, torch.full_like(x, factor))
            assert counters["aot_autograd"]["autograd_cache_hit"] == hits, (factor, version)


@pytest.mark.thorough
def test_an_edited_result_of_an_operator_that_writes_reaches_the_code_that_reads_it() -> None:
    with fresh_cache():
        for dtype, hits in ((torch.float32, 0), (torch.float64, 0), (torch.float64, 1)):
            body = lambda x, dtype=dtype: x.mul_(2).to(dtype, copy=True)  # noqa: E731
            (y, z), found = compiled("tests::kept_doubled(Tensor(a!) x) -> Tensor y", body, that_writes)
            assert torch.equal(z, 2 * torch.arange(8.0).view(2, 4))
            assert torch.equal(y, z.to(dtype) + 1)
            assert y.dtype == dtype
            assert found == hits


# Operators whose reference, fake, backward and rule follow from a number; the results and gradients of compiled calls of them.
EDITED = """
import sys
import torch
from cupyops import simulate
from cupyops.torch import Operator

k = int(sys.argv[1])
dtype, strides = ((torch.float32, (4, 1)), (torch.float64, (1, 2)))[k % 2]


def laid(x):
    return torch.empty_strided((2, 4), strides, dtype=x.dtype)


def reference(x):
    return (k * x).to(dtype, copy=True)


def times(x):
    return x * k


def backward(grad_y):
    return k * grad_y


ops = [
    Operator("edited::a(Tensor x) -> Tensor y", reference, reference=reference),
    Operator("edited::b(Tensor x) -> Tensor y", times, reference=times, compiled=lambda x: "decompose"),
    Operator("edited::c(Tensor x) -> Tensor y", lambda x: laid(x).copy_(k * x), fake=laid, backward=backward),
    Operator("edited::d(Tensor x) -> Tensor y", times, reference=times, version=str(k)),
]
x = torch.ones(2, 4, requires_grad=True)
with simulate():
    for op in ops:
        y = torch.compile(lambda x, op=op: op(x * 1) + 1, fullgraph=True)(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        print(y[0, 0].item(), y.dtype, y.stride(), grad[0, 0].item())
"""


@pytest.mark.thorough
def test_another_process_finds_no_graph_of_an_operator_that_was_edited(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for k in (2, 3, 2):
        command = [sys.executable, "-c", EDITED, str(k)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG)
        assert not done.returncode, done.stderr[-2000:]
        dtype, strides = ("float32", "(4, 1)") if k == 2 else ("float64", "(1, 2)")
        assert done.stdout.splitlines() == [
            f"{k + 1}.0 torch.{dtype} (4, 1) {k}.0",
            f"{k + 1}.0 torch.float32 (4, 1) {k}.0",
            f"{k + 1}.0 torch.float32 {strides} {k}.0",
            f"{k + 1}.0 torch.float32 (4, 1) {k}.0",
        ]


def test_code_in_place_is_used_as_long_as_the_operator_has_that_form() -> None:
    x = torch.arange(8.0).view(2, 4)

    def run(op: Operator) -> Run:
        return lambda x: op(x.cos() @ x.t()) + 1

    with fresh_cache():
        for declared, hits in (({"inplace": torch.sin_}, 0), ({}, 0), ({"inplace": torch.sin_}, 1), ({}, 1)):
            y, found = compiled("tests::kept_sine(Tensor x) -> Tensor y", torch.sin, run, **declared)
            torch.testing.assert_close(y, (x.cos() @ x.t()).sin() + 1)
            assert found == hits


def test_code_of_other_code_of_this_package_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_cache():
        for code, hits in (("a", 0), ("b", 0), ("a", 1)):
            monkeypatch.setattr(keys, "_hash_of_code", lambda code=code: code)
            assert compiled(DOUBLED, lambda x: 2 * x, plus_one)[1] == hits


def test_the_hash_covers_the_functions_of_the_shipped_operators() -> None:
    assert bridge.softmax is not None  # the operators are declared
    shipped = [op for name, op in _DECLARED.items() if name.startswith("cupyops::")]
    modules = {inspect.unwrap(f).__module__ for op in shipped for f in (op.body, op.reference) if f is not None}
    hashed = tuple(f"cupyops.{room.replace('/', '.')}." for room in keys._ROOMS)
    assert len(modules) > 10
    assert all(module.startswith(hashed) for module in modules), modules


def test_an_edited_dtype_of_a_result_changes_the_key_of_inductor() -> None:
    from torch._inductor.codecache import FxGraphHashDetails
    from torch.fx import symbolic_trace

    keys.prepare()
    op = Operator(DOUBLED, lambda x: 2 * x)
    found = []
    for dtype in (torch.int32, torch.float32, torch.int32):  # dtypes of one size have the same layouts
        graph = symbolic_trace(by_its_overload(op))
        (node,) = (node for node in graph.graph.nodes if node.target is torch.ops.tests.kept_double.default)
        node.meta["val"] = torch.empty(2, 4, dtype=dtype)
        found.append(vars(FxGraphHashDetails(graph, [torch.ones(2, 4)], {}, []))["cupyops"])
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_keys_of_graphs_without_operators_of_this_package_are_pytorchs() -> None:
    from torch._inductor.codecache import FxGraphHashDetails
    from torch.fx import symbolic_trace

    keys.prepare()
    details = FxGraphHashDetails(symbolic_trace(lambda x: x + 1), [torch.ones(2)], {}, [])
    assert "cupyops" not in vars(details)


@pytest.mark.sample(1)
@pytest.mark.parametrize("version", [None, "1"])
def test_no_code_on_disk_is_used_where_the_facts_have_no_place(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.codecache import FxGraphHashDetails

    def init(self: Any, *args: Any) -> None:
        pytorchs(self, *args)

    pytorchs = inspect.unwrap(FxGraphHashDetails.__init__)
    monkeypatch.setattr(FxGraphHashDetails, "__init__", init)
    private.has.cache_clear()
    x = torch.arange(8.0).view(2, 4)
    told = pytest.warns(UserWarning, match=r"lacks .*\.FxGraphHashDetails\.__init__, .* without graphs on disk")
    with fresh_cache(), torch.compiler.config.patch(cache_key_tag="mine"), told:
        for dtype in (torch.float32, torch.float64, torch.float64):
            body = lambda x, dtype=dtype: (2 * x).to(dtype, copy=True)  # noqa: E731
            y, hits = compiled(DOUBLED, body, plus_one, reference=body, version=version)
            assert torch.equal(y, body(x) + 1)
            assert y.dtype == dtype
            assert hits == 0
        tag = torch.compiler.config.cache_key_tag
        assert tag.startswith("mine cupyops ")
        assert tag.count("cupyops") == 1
    assert FxGraphHashDetails.__init__ is init
    private.has.cache_clear()
    monkeypatch.setattr(FxGraphHashDetails, "__init__", pytorchs)
    keys.prepare()
    assert FxGraphHashDetails.__init__ is not pytorchs
