"""Translations: those of linear layers and of the LLTM on test operators, and a user's operator."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.torch import Operator, export_onnx
from cupyops.torch.ops.linear import linear_onnx
from cupyops.torch.ops.linear_gelu import linear_gelu_onnx
from cupyops.torch.ops.lltm import lltm_onnx
from cupyops.torch.ops.lltm_cell import lltm_cell_onnx
from tests.onnx.onnx_support import FORMS, Model, free, functions, nodes, onnx, run

# Linear ---------------------------------------------------------------------------------------------------------------


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    pre = F.linear(x, weight, bias)
    return F.gelu(pre, approximate=approximate), pre


# A translation makes the same nodes in either form: the custom domain holds them in functions.
FORM_OF_DTYPE = pytest.mark.parametrize(
    ("dtype", "custom_domain"),
    [(dtype, False) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    + [(dtype, True) for dtype in (torch.bfloat16, torch.float32)],
    ids=lambda value: str(value) if isinstance(value, torch.dtype) else "custom domain" if value else "standard",
)
linear = Operator(
    "cupyops_test::linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _linear,
    reference=_linear,
    onnx=linear_onnx,
)
linear_gelu = Operator(
    "cupyops_test::linear_gelu(Tensor x, Tensor weight, Tensor? bias, str approximate) -> (Tensor, Tensor)",
    _linear_gelu,
    reference=_linear_gelu,
    onnx=linear_gelu_onnx,
)


@pytest.mark.sample(1)
@FORM_OF_DTYPE
def test_linear_of_any_rank_with_and_without_bias(dtype: torch.dtype, custom_domain: bool, tmp_path: Path) -> None:
    weight, bias, row = torch.randn(5, 3).to(dtype), torch.randn(5).to(dtype), torch.randn(3).to(dtype)

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        results = [linear(v, weight, b) for v in (x, x[0], x[0, 0]) for b in (bias, None)]
        return (
            *results,
            linear(x, row, None),
            *linear_gelu(x, weight, bias, "none"),
            *linear_gelu(x, weight, None, "tanh"),
        )

    path = tmp_path / "m.onnx"
    x = torch.randn(4, 2, 3).to(dtype)
    export_onnx(Model(forward), x, path, dynamic_shapes=({0: "M", 1: "N"},), custom_domain=custom_domain)
    x = torch.randn(1, 6, 3).to(dtype)
    eps = torch.finfo(dtype).eps
    for got, wanted in zip(run(path, x), forward(x), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), wanted.double(), rtol=8 * eps, atol=8 * eps)


def test_linear_is_one_product_where_there_is_one(tmp_path: Path) -> None:
    weight, bias = torch.randn(5, 3), torch.randn(5)
    export_onnx(Model(linear, x=torch.randn(2, 3)), (weight, bias), tmp_path / "m.onnx")
    assert nodes(tmp_path / "m.onnx") == ["Gemm"]
    export_onnx(Model(lambda w, x: linear(x, w, None), w=weight), torch.randn(2, 2, 3), tmp_path / "m.onnx")
    assert nodes(tmp_path / "m.onnx") == ["MatMul"]  # the transposed weight is a constant


# LLTM -----------------------------------------------------------------------------------------------------------------


def _cell(
    input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gates = F.linear(torch.cat([old_h, input], 1), weights, bias)
    i, o, z = gates.chunk(3, 1)
    new_cell = old_cell + F.elu(z) * i.sigmoid()
    return new_cell.tanh() * o.sigmoid(), new_cell, gates


def _sequence(input: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, ...]:
    h, c, steps = h0, c0, []
    for x in input.unbind(0):
        h, c, gates = _cell(x, weights, bias, h, c)
        steps.append((h, c, gates))
    of_h, of_cell, of_gates = (torch.stack(of_all) for of_all in zip(*steps, strict=True))
    return of_h, torch.stack((h, c)), of_cell, of_gates


def _sequence_body(input: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, ...]:
    T, B, S = input.shape[0], input.shape[1], h0.shape[1]
    return tuple(input.new_empty(shape) for shape in ((T, B, S), (2, B, S), (T, B, S), (T, B, 3 * S)))


cell = Operator(
    "cupyops_test::lltm_cell(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell)"
    " -> (Tensor, Tensor, Tensor)",
    _cell,
    reference=_cell,
    onnx=lltm_cell_onnx,
)
sequence = Operator(
    "cupyops_test::lltm(Tensor input, Tensor weights, Tensor bias, Tensor h0, Tensor c0)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _sequence_body,
    reference=_sequence,
    onnx=lltm_onnx,
)


@pytest.mark.sample(1)
@FORM_OF_DTYPE
def test_lltm_cell_and_sequence_of_any_length(dtype: torch.dtype, custom_domain: bool, tmp_path: Path) -> None:
    S, features = 5, 3
    weights, bias = torch.randn(3 * S, features + S).to(dtype), torch.randn(3 * S).to(dtype)

    def forward(weights: Tensor, bias: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        input, h, c = given
        return *cell(input[0], weights, bias, h, c), *sequence(input, weights, bias, h, c)

    model = Model(forward, weights=weights, bias=bias)
    path = tmp_path / "m.onnx"
    inputs = torch.randn(4, 2, features), torch.randn(2, S), torch.randn(2, S)
    shapes = ({0: "T", 1: "B"}, free("B"), free("B"))
    report = export_onnx(
        model, tuple(x.to(dtype) for x in inputs), path, dynamic_shapes=shapes, custom_domain=custom_domain
    )
    assert report.shapes[1] == ((5, 3, 3), (3, 5), (3, 5))
    for T in (9, 1):
        longer = [x.to(dtype) for x in (torch.randn(T, 1, features), torch.randn(1, S), torch.randn(1, S))]
        eps = torch.finfo(dtype).eps
        for got, wanted in zip(run(path, *longer), model(*longer), strict=True):
            # Every step's rounding is fed to the next one.
            torch.testing.assert_close(got.double(), wanted.double(), rtol=32 * eps, atol=32 * eps)


def test_an_lltm_for_inference_is_a_product_and_a_loop(tmp_path: Path) -> None:
    S = 5
    weights, bias = torch.randn(3 * S, 3 + S), torch.randn(3 * S)
    model = Model(lambda x, h, c: sequence(x, weights, bias, h, c)[0])
    export_onnx(model, (torch.randn(4, 2, 3), torch.randn(2, S), torch.randn(2, S)), tmp_path / "m.onnx")
    assert nodes(tmp_path / "m.onnx") == ["MatMul", "Add", "Scan"]


def test_elu_keeps_its_accuracy_near_zero_and_its_nan(tmp_path: Path) -> None:
    """exp(z) - 1 cancels near 0; and fmax would swallow a NaN."""
    z = torch.tensor([-1e-9, 1e-9, 0.0, -3e-5, -90.0, 90.0, float("-inf"), float("nan")], dtype=torch.float64)
    S = len(z)
    bias = torch.cat([torch.full((S,), 40.0), torch.zeros(S), z]).double()  # the input gate is open
    weights = torch.zeros(3 * S, S + 1, dtype=torch.float64)
    h = torch.zeros(1, S, dtype=torch.float64)
    model = Model(lambda x, h, c: cell(x, weights, bias, h, c)[1])
    export_onnx(model, (h[:, :1], h, h), tmp_path / "m.onnx")
    got = run(tmp_path / "m.onnx", h[:, :1], h, h)[0]
    torch.testing.assert_close(got, F.elu(z)[None], rtol=1e-14, atol=0, equal_nan=True)


# A stranger's ---------------------------------------------------------------------------------------------------------


def _clip(
    x: Tensor, limit: float = 2.0, powers: Sequence[int] = (1, 2), name: str | None = None, squared: bool = True
) -> Tensor:
    return x.clamp(-limit, limit) * sum(powers) * (2 if squared else 1)


def _clip_onnx(op: Any, x: Any, limit: float, powers: list[int], name: str | None, squared: bool) -> Any:
    return op.Mul(op.Min(op.Max(x, -limit), limit), float(sum(powers) * (2 if squared else 1)))


clip = Operator(
    "mylib::clip(Tensor x, float limit=2.0, int[] powers=[1, 2], str? name=None, bool squared=True) -> Tensor",
    _clip,
    reference=_clip,
    onnx=_clip_onnx,
)


@FORMS
def test_a_strangers_operator_by_the_same_call_in_its_own_domain(custom_domain: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = Model(lambda x: (clip(x, 0.5, [3], "n", False), clip.op(x), clip.op(x, 0.5, squared=True)))
    export_onnx(model, torch.randn(6), path, custom_domain=custom_domain)
    x = torch.randn(6)
    for got, wanted in zip(run(path, x), model(x), strict=True):
        torch.testing.assert_close(got, wanted)
    if custom_domain:
        assert nodes(path) == ["mylib::clip"] * 3
        found = [{a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in onnx.load(path).graph.node]
        assert found[0] == {"limit": 0.5, "powers": [3], "name": b"n", "squared": 0}
        assert found[1] == {"limit": 2.0, "powers": [1, 2], "squared": 1}
        assert sorted(functions(path)) == [("mylib", "clip", o) for o in ("", "2", "3")]
    else:
        assert set(nodes(path)) == {"Min", "Max", "Mul"}


def test_a_runtimes_own_kernel_runs_a_node_without_a_body(tmp_path: Path) -> None:
    """Exports an operator without a form, with attributes, an absent tensor and two results, and one with a body."""

    def split(x: Tensor, shift: Tensor | None, factor: float, powers: list[int]) -> tuple[Tensor, Tensor]:
        return factor * x + (0.0 if shift is None else shift), x.pow(powers[0]).sum(-1)

    op = Operator(
        "mylib::split(Tensor x, Tensor? shift, float factor, int[] powers) -> (Tensor, Tensor)", split, reference=split
    )

    class Split(onnx.reference.op_run.OpRun):
        op_domain = "mylib"
        op_schema = onnx.defs.OpSchema(
            "split",
            "mylib",
            1,
            attributes=[
                onnx.defs.OpSchema.Attribute("factor", onnx.defs.OpSchema.AttrType.FLOAT, required=True),
                onnx.defs.OpSchema.Attribute("powers", onnx.defs.OpSchema.AttrType.INTS, required=True),
            ],
        )

        def _run(self, x: Any, shift: Any = None, factor: Any = None, powers: Any = None) -> Any:
            return factor * x + (0 if shift is None else shift), (x ** powers[0]).sum(-1)

    Split.__name__ = "split"
    path = tmp_path / "m.onnx"
    model = Model(lambda x: (*op(clip(x), None, 0.5, [2, 7]), *op(x, x, 2.0, [3])))
    report = export_onnx(model, torch.randn(2, 4), path, dynamic_shapes=({0: "rows"},), custom_domain=True, check=False)
    assert not report.shapes
    assert nodes(path) == ["mylib::clip", "mylib::split", "mylib::split"]
    assert list(functions(path)) == [("mylib", "clip", "")]
    onnx.checker.check_model(onnx.load(path), full_check=True)
    dims = [[d.dim_param or d.dim_value for d in y.type.tensor_type.shape.dim] for y in onnx.load(path).graph.output]
    assert dims == [["rows", 4], ["rows"]] * 2
    x = torch.randn(5, 4)
    session = onnx.reference.ReferenceEvaluator(onnx.load(path), new_ops=[Split])
    found = session.run(None, {session.input_names[0]: x.numpy()})
    for got, wanted in zip(found, model(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), wanted)


def test_a_result_that_is_an_argument_gets_a_name_of_its_own(tmp_path: Path) -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.clone(), x * 2, x * 2

    def twice_onnx(op: Any, x: Any) -> tuple[Any, ...]:
        y = op.Mul(x, 2.0)
        return x, y, y

    op = Operator("cupyops_test::twice(Tensor x) -> (Tensor, Tensor, Tensor)", twice, reference=twice, onnx=twice_onnx)
    x = torch.randn(3)
    for custom_domain in (False, True):
        export_onnx(Model(op), x, tmp_path / "m.onnx", custom_domain=custom_domain)
        for got, wanted in zip(run(tmp_path / "m.onnx", x), twice(x), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 6)])
def test_calls_of_other_shapes_share_one_body(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = Model(lambda x: (clip(x, 1.0, [1], None, False), clip(x.flatten()[:2], 1.0, [1], None, False)))
    export_onnx(model, torch.randn(shape), tmp_path / "m.onnx", custom_domain=True)
    assert list(functions(tmp_path / "m.onnx")) == [("mylib", "clip", "")]
