"""Exported operators give PyTorch's results in onnxruntime, as standard operators and as nodes of their own."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autograd_bridge as bridge
import cupyops
from autograd_bridge import GELU, AddLayerNorm, LayerNorm, add2, gelu, layer_norm
from cupyops.torch import export_onnx
from tests.cases import CASES, Case
from tests.conftest import CUDA
from tests.onnx.onnx_support import FLOATS, FORMS, Model, free, functions, nodes, onnx, run

EXPORTED = [c for c in CASES if not c.op.name().endswith("_backward")]


@pytest.mark.sample(9)
@pytest.mark.parametrize("case", EXPORTED, ids=lambda c: c.name)
@pytest.mark.parametrize("backend", ["reference", CUDA], indirect=True)
def test_every_operator(case: Case, device: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    shapes = (free(),) * case.tensors
    inputs = tuple(case.inputs(device, shape=(3, 19)))
    report = export_onnx(Model(case.ours), inputs, path, dynamic_shapes=shapes, output_names=["y"])
    assert report.errors["y"] < 1e-5
    assert report.shapes == (((3, 19),) * case.tensors, ((4, 19),) * case.tensors)
    larger = case.inputs("cpu", shape=(11, 19))
    torch.testing.assert_close(run(path, *larger)[0], case.theirs(*larger), rtol=1e-5, atol=1e-5)
    assert {n.domain for n in onnx.load(path).graph.node} == {""}


@pytest.mark.thorough
@pytest.mark.simulator
def test_every_operator_gives_what_its_kernels_give(tmp_path: Path) -> None:
    """In one model: what is exported does not depend on what the results are compared with."""
    names = [case.name for case in EXPORTED]
    most = max(case.tensors for case in EXPORTED)
    inputs = tuple(next(c for c in EXPORTED if c.tensors == most).inputs("cpu", shape=(3, 19)))
    model = Model(lambda *given: tuple(case.ours(*given[: case.tensors]) for case in EXPORTED))
    shapes = (free(),) * most
    with cupyops.simulate(sanitize=True):
        report = export_onnx(model, inputs, tmp_path / "m.onnx", dynamic_shapes=shapes, output_names=names)
    assert report.errors.keys() == set(names)
    assert max(report.errors.values()) < 1e-5, report.errors
    assert report.shapes == (((3, 19),) * most, ((4, 19),) * most)


def _of_everything(weight: Tensor, x: Tensor) -> tuple[Any, ...]:
    y, mean, rstd = layer_norm(x, 8, weight, None, return_stats=True)
    z, s = bridge.add_layer_norm(y, x, 8, None, weight, eps=1e-3)
    return gelu(x), gelu(x, "tanh"), y, z, s, mean, rstd, add2(x, weight, alpha=-0.3)


@pytest.mark.sample(2)
@FORMS
@FLOATS
def test_every_dtype_is_as_accurate_as_pytorch(dtype: torch.dtype, custom_domain: bool, tmp_path: Path) -> None:
    weight, x = torch.randn(8).to(dtype), torch.randn(3, 5, 8).mul(4).to(dtype)
    path = tmp_path / "model.onnx"
    model = Model(_of_everything, weight=weight)
    export_onnx(model, (x,), path, custom_domain=custom_domain)
    names = ("gelu", "gelu tanh", "layer_norm", "add_layer_norm", "sum", "mean", "rstd", "add2")
    for name, got, theirs, exact in zip(
        names, run(path, x), model(x), _of_everything(weight.double(), x.double()), strict=True
    ):
        statistics = torch.float64 if dtype == torch.float64 else torch.float32
        assert got.dtype == (statistics if name in ("mean", "rstd") else dtype), name
        ours, their_error = ((y.double() - exact).abs().max() for y in (got, theirs))
        rounding = torch.finfo(dtype).eps / 2 * exact.abs().max()
        assert ours <= 2 * (their_error + rounding), f"{name}: {ours:.3g}, PyTorch {their_error:.3g}"


def test_float64_is_not_made_of_float32_constants(tmp_path: Path) -> None:
    """Runtimes hold Gelu's constants and LayerNormalization's eps in float32, which costs 1e-9."""
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    small = x * 1e-6  # its variance is about eps
    path = tmp_path / "model.onnx"
    model = Model(lambda x, small: (gelu(x), gelu(x, "tanh"), layer_norm(small, 4001, eps=1e-11)))
    export_onnx(model, (x, small), path)
    got = run(path, x, small)
    torch.testing.assert_close(got[0], x * torch.special.erfc(-x / 2**0.5) / 2, rtol=1e-13, atol=0)
    torch.testing.assert_close(got[1], nn.functional.gelu(x, approximate="tanh"), rtol=1e-13, atol=4e-15)
    torch.testing.assert_close(got[2], nn.functional.layer_norm(small, (4001,), eps=1e-11), rtol=1e-13, atol=1e-15)


def test_small_numbers_are_not_taken_for_zero_nor_one(tmp_path: Path) -> None:
    """onnxscript's rewriter drops x + 1e-9 and x·1.000001; the export does without it."""
    tiny, near = torch.tensor(1e-9, dtype=torch.float64), torch.tensor(1.000001, dtype=torch.float64)
    model = Model(lambda x: (add2(x, tiny), x + 1e-9, gelu(x) * near))
    x = torch.tensor([[0.0, 1e-9, 2.0]], dtype=torch.float64)
    path = tmp_path / "model.onnx"
    export_onnx(model, (x,), path)
    for got, wanted in zip(run(path, x), model(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.int8, torch.int8),
        (torch.uint8, torch.int16),
        (torch.int64, torch.int32),
        (torch.int64, torch.float16),
        (torch.bfloat16, torch.float16),
        (torch.float32, torch.float64),
    ],
    ids=lambda d: str(d).removeprefix("torch."),
)
def test_add2_promotes_wraps_and_broadcasts(a: torch.dtype, b: torch.dtype, tmp_path: Path) -> None:
    x, y = torch.arange(-6, 6).reshape(3, 1, 4).mul(20).to(a), torch.arange(-5, 5).reshape(2, 5, 1).mul(9).to(b)
    y = y.reshape(1, 10, 1)
    model = Model(lambda x, y: (add2(x, y), add2(x, y, alpha=3), add2(y, 5), add2(x, y[0, 0, 0])))
    path = tmp_path / "model.onnx"
    export_onnx(model, (x, y), path, dynamic_shapes=(free("M"), {1: "N"}))
    for got, wanted in zip(run(path, x, y), model(x, y), strict=True):
        assert got.dtype == wanted.dtype
        if wanted.is_floating_point():
            torch.testing.assert_close(got, wanted)
        else:
            assert torch.equal(got, wanted)


def test_a_number_beside_16_bits_is_not_rounded_to_them(tmp_path: Path) -> None:
    """1 + 2^-8 + 2^-20 is nearer to 1 + 2^-7; a number rounded to bfloat16 first would make it a tie, and 1."""
    path = tmp_path / "model.onnx"
    x = torch.ones(3, dtype=torch.bfloat16)
    export_onnx(Model(lambda x: add2(x, 2.0**-8 + 2.0**-20)), x, path)
    assert run(path, x)[0].tolist() == [1 + 2.0**-7] * 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("affine", ["weight and bias", "weight", "bias", "none"])
@FORMS
def test_layer_norm_with_and_without_its_parameters(affine: str, custom_domain: bool, tmp_path: Path) -> None:
    weight = torch.rand(4, 6) if "weight" in affine else None
    bias = torch.rand(4, 6) if "bias" in affine else None
    model = Model(
        lambda x: (
            *layer_norm(x, (4, 6), weight, bias, return_stats=True),
            *bridge.add_layer_norm(x, x * 2, (4, 6), weight, bias),
            layer_norm(x.half(), (4, 6), weight, bias),  # parameters wider than x
        )
    )
    path = tmp_path / "model.onnx"
    report = export_onnx(
        model, torch.randn(2, 3, 4, 6), path, dynamic_shapes=({0: "batch", 1: "time"},), custom_domain=custom_domain
    )
    assert report.shapes[1] == ((3, 4, 4, 6),)
    x = torch.randn(7, 1, 4, 6)
    got = run(path, x)
    assert got[1].shape == (7, 1, 1, 1)
    for mine, wanted in zip(got, model(x), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=2e-3 if wanted.dtype == torch.float16 else 1e-5)


def test_rows_whose_length_is_free(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = Model(lambda x: layer_norm(x, x.shape[-1:]))
    export_onnx(model, torch.randn(3, 6), path, dynamic_shapes=({1: "N"},), custom_domain=True)
    x = torch.randn(3, 50)
    torch.testing.assert_close(run(path, x)[0], model(x))
    assert onnx.load(path).graph.node[-1].attribute[0].ints == [-1]


@FORMS
def test_modules_are_exported_with_their_weights(custom_domain: bool, tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.norm = nn.Linear(6, 12), GELU("tanh"), LayerNorm(12)
            self.add = AddLayerNorm(12, eps=1e-3)
            nn.init.normal_(self.norm.weight)
            nn.init.normal_(self.add.bias)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.act(self.first(x))
            return self.add(self.norm(y), y)

    model = Block().eval()
    path = tmp_path / "block.onnx"
    export_onnx(
        model,
        torch.randn(1, 6),
        path,
        input_names=["x"],
        output_names=["y", "s"],
        dynamic_shapes={"x": {0: "batch"}},
        custom_domain=custom_domain,
    )
    proto = onnx.load(path)
    assert [i.name for i in proto.graph.input] == ["x"]
    assert [o.name for o in proto.graph.output] == ["y", "s"]
    for value, size in ((proto.graph.input[0], 6), *((o, 12) for o in proto.graph.output)):
        assert [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] == ["batch", size]
    x = torch.randn(9, 6)
    for got, wanted in zip(run(path, x), model(x), strict=True):
        torch.testing.assert_close(got, wanted)


# What a file is made of -----------------------------------------------------------------------------------------------


def test_standard_form_has_the_operators_that_runtimes_know(tmp_path: Path) -> None:
    model = Model(lambda w, x: layer_norm(gelu(add2(x, w)), 8, w, w), w=torch.rand(8))
    export_onnx(model, torch.randn(3, 8), tmp_path / "m.onnx")
    assert nodes(tmp_path / "m.onnx") == ["Add", "Gelu", "LayerNormalization"]
    assert functions(tmp_path / "m.onnx") == {}


def test_custom_nodes_have_attributes_and_share_a_body_for_each_kind_of_call(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = Model(lambda x, w: (gelu(x), gelu(x * 2), gelu(w), gelu(x, "tanh"), layer_norm(x, 8, None, w, eps=0.25)))
    export_onnx(model, (torch.randn(3, 8), torch.randn(8)), path, custom_domain=True)
    proto = onnx.load(path)
    ours = [n for n in proto.graph.node if n.domain == "cupyops"]
    assert [(n.op_type, n.overload) for n in ours] == [("gelu", "")] * 3 + [("gelu", "2"), ("layer_norm", "")]
    assert [ours[i].attribute[0].s for i in (0, 3)] == [b"none", b"tanh"]
    norm = {a.name: onnx.helper.get_attribute_value(a) for a in ours[4].attribute}
    assert norm == {"normalized_shape": [8], "eps": 0.25}
    assert [bool(name) for name in ours[4].input] == [True, False, True]
    assert sorted(functions(path)) == [("cupyops", "gelu", ""), ("cupyops", "gelu", "2"), ("cupyops", "layer_norm", "")]
    body = next(f for f in proto.functions if f.name == "layer_norm")
    assert list(body.input) == ["x", "weight", "bias"]
    assert list(body.attribute) == ["normalized_shape", "eps"]
    assert {o.domain: o.version for o in proto.opset_import} == {"": 20, "cupyops": 1}


def test_both_forms_give_the_same_bits(tmp_path: Path) -> None:
    weight, x = torch.randn(8), torch.randn(2, 5, 8)
    found = []
    for custom_domain in (False, True):
        export_onnx(Model(_of_everything, w=weight), x, tmp_path / "m.onnx", custom_domain=custom_domain)
        found.append(run(tmp_path / "m.onnx", x))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_same_model_gives_the_same_bytes_without_this_machine_in_them(tmp_path: Path) -> None:
    def digest() -> str:
        export_onnx(
            Model(_of_everything, w=torch.ones(8)), torch.ones(2, 5, 8), tmp_path / "m.onnx", custom_domain=True
        )
        data = (tmp_path / "m.onnx").read_bytes()
        assert str(Path(__file__).parent).encode() not in data
        return hashlib.sha256(data).hexdigest()

    assert digest() == digest()
