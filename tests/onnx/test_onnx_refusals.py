"""A failed export names the operator and leaves no file; and other ways in which an export can end."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cupyops
from autograd_bridge import gelu, gelu_backward, layer_norm, layer_norm_backward
from cupyops import ExportError, MissingDependencyError
from cupyops.torch import ExportReport, Operator, export_onnx
from tests.onnx.onnx_support import Model, leftovers, onnx, run
from tests.project.test_importing import run as run_apart


def _body(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _operator(name: str, onnx: Any = None, reference: Any = torch.sin) -> Operator:
    return Operator(f"cupyops_test::{name}(Tensor x) -> Tensor", _body, reference=reference, onnx=onnx)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A folder for files, whose contents must be the same after the test."""
    old = tmp_path / "model.onnx"
    old.write_text("an earlier export")
    yield old
    assert leftovers(tmp_path) == ["model.onnx"]
    assert old.read_text() == "an earlier export"


# Models ---------------------------------------------------------------------------------------------------------------


def test_all_operators_without_a_form_are_named(path: Path) -> None:
    stranger = _operator("without_form")
    model = Model(lambda x: gelu_backward(gelu(x), x) + stranger(x))
    words = (
        "Model calls cupyops::gelu_backward and cupyops_test::without_form, which has no ONNX form; declare one with"
    )
    for custom_domain, check in ((False, True), (False, False), (True, True)):
        with pytest.raises(ExportError, match=words):
            export_onnx(model, torch.ones(3), path, custom_domain=custom_domain, check=check)


def test_a_gradient_within_a_model_is_named(path: Path) -> None:
    stats = torch.zeros(2, 3, 1)
    with pytest.raises(ExportError, match="cupyops::layer_norm_backward"):
        export_onnx(Model(lambda x: layer_norm_backward(x, x, stats, 4)[0]), torch.ones(3, 4), path)


def test_an_operator_without_a_form_within_a_branch_is_named(path: Path) -> None:
    stranger = _operator("within_a_branch")

    def forward(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: stranger(x), lambda x: x + 1, (x,))

    with pytest.raises(ExportError, match="Model calls cupyops_test::within_a_branch"):
        export_onnx(Model(forward), torch.ones(3), path)


def test_what_pytorch_cannot_translate_is_named(path: Path) -> None:
    @torch.library.custom_op("cupyops_test::unknown", mutates_args=())
    def unknown(x: Tensor) -> Tensor:
        return x.clone()

    unknown.register_fake(torch.empty_like)
    with pytest.raises(ExportError, match=r"Model has no ONNX form: .*cupyops_test.unknown"):
        export_onnx(Model(lambda x: unknown(gelu(x))), torch.ones(3), path)


def test_a_translation_that_fails_is_named(path: Path) -> None:
    failing = _operator("failing", lambda op, x: op.Add(x, nothing))  # type: ignore[name-defined]  # noqa: F821
    with pytest.raises(ExportError, match=r"translation of cupyops_test::failing fails: NameError: name 'nothing'"):
        export_onnx(Model(failing), torch.ones(3), path)
    many = _operator("many", lambda op, x: (op.Sin(x), x))
    with pytest.raises(ExportError, match="translation of cupyops_test::many must give 1 results, got 2"):
        export_onnx(Model(many), torch.ones(3), path)


def test_a_size_that_decides_the_graph_must_be_known(path: Path) -> None:
    def first(x: Tensor, n: int) -> Tensor:
        return x[:n].clone()

    op = Operator(
        "cupyops_test::first(Tensor x, SymInt n) -> Tensor", first, reference=first, onnx=lambda op, x, n: op.Relu(x)
    )
    with pytest.raises(ExportError, match=r"`n` of cupyops_test::first must be known when the model is exported"):
        export_onnx(Model(lambda x: op(x, x.shape[0])), torch.ones(3), path, dynamic_shapes=({0: "n"},))


# The check ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("custom_domain", [False, True])
def test_another_result_than_pytorchs_is_an_error(path: Path, custom_domain: bool) -> None:
    wrong = _operator(f"wrong_{custom_domain}".lower(), lambda op, x: op.Cos(x))
    with pytest.raises(ExportError, match=r"output 'y' differs from PyTorch's by 0\.\d+ for inputs of shape \(3,\)"):
        export_onnx(Model(wrong), torch.ones(3), path, output_names=["y"], custom_domain=custom_domain)


def test_a_small_difference_is_an_error_too(path: Path) -> None:
    near = _operator("near", lambda op, x: op.Mul(op.Sin(x), 1.001))
    with pytest.raises(ExportError, match="differs from PyTorch's by 0.000"):
        export_onnx(Model(near), torch.ones(3), path)


def test_how_much_is_allowed_is_the_coarsest_dtypes_in_the_model(tmp_path: Path) -> None:
    near = _operator("near_16_bits", lambda op, x: op.Mul(op.Sin(x), 1.001))
    model = Model(lambda w, x: near(x) + w.float(), w=torch.zeros(3, dtype=torch.float16))
    report = export_onnx(model, torch.ones(3), tmp_path / "m.onnx", output_names=["y"])
    assert report.errors["y"] > 5e-4


def test_a_nan_and_an_infinity_where_pytorch_has_none(path: Path) -> None:
    for i, translation in enumerate(
        (lambda op, x: op.Div(op.Sub(x, x), op.Sub(x, x)), lambda op, x: op.Reciprocal(op.Sub(x, x)))
    ):
        op = _operator(f"not_finite_{i}", translation)
        with pytest.raises(ExportError, match="differs from PyTorch's by inf"):
            export_onnx(Model(op), torch.ones(3), path)


@pytest.mark.usefixtures("without_onednn")
def test_the_same_nans_and_infinities_are_no_difference(tmp_path: Path) -> None:
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 1.0])
    assert export_onnx(Model(gelu), x, tmp_path / "m.onnx", output_names=["y"]).errors["y"] < 1e-6


def test_a_batch_size_that_is_baked_in_is_found(path: Path) -> None:
    baked = _operator("baked", lambda op, x: op.Reshape(op.Sin(x), [3, 2]))
    with pytest.raises(ExportError, match=r"onnxruntime fails for inputs of shape \(4, 2\): .*"):
        export_onnx(Model(baked), torch.ones(3, 2), path, dynamic_shapes=({0: "batch"},))
    flat = _operator("flat", lambda op, x: op.Expand(op.ReduceMean(op.Sin(x), [0], keepdims=1), [3, 2]))
    with pytest.raises(
        ExportError, match=r"output 'y' must be torch.float32 of shape \(4, 2\) .*, got torch.float32 of shape"
    ):
        export_onnx(Model(flat), torch.ones(3, 2), path, dynamic_shapes=({0: "batch"},), output_names=["y"])


def test_what_onnxruntime_cannot_run_is_an_error_unless_unchecked(tmp_path: Path) -> None:
    elu = _operator("elu", lambda op, x: op.Elu(x), reference=torch.nn.functional.elu)
    x, path = torch.ones(3, dtype=torch.float64), tmp_path / "m.onnx"
    with pytest.raises(ExportError, match=r"onnxruntime refuses the file: .*Elu.*; check=False writes it anyway"):
        export_onnx(Model(elu), x, path)
    assert leftovers(tmp_path) == []
    report = export_onnx(Model(elu), x, path, check=False)
    assert report == ExportReport(path)
    assert str(report) == f"{path}, not checked"
    assert leftovers(tmp_path) == ["m.onnx"]


def test_what_the_checker_refuses_is_an_error(path: Path) -> None:
    invented = _operator("invented", lambda op, x: op.NoSuchOperator(x))
    with pytest.raises(ExportError, match="onnx.checker refuses the file: .*NoSuchOperator"):
        export_onnx(Model(invented), torch.ones(3), path)


def test_the_report_says_how_far_each_output_is(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = Model(lambda x: (gelu(x), (x > 0), x.to(torch.int64)))
    report = export_onnx(
        model, torch.randn(1, 2), path, output_names=["y", "positive", "whole"], dynamic_shapes=({0: "batch"},)
    )
    assert list(report.errors) == ["y", "positive", "whole"]
    assert report.errors["positive"] == report.errors["whole"] == 0
    assert report.path == path
    assert "for inputs (1, 2) and (2, 2)" in str(report)
    assert str(report).startswith(f"{path}: the largest difference between onnxruntime and PyTorch is y ")


# Arguments ------------------------------------------------------------------------------------------------------------


def test_arguments_that_cannot_be(path: Path) -> None:
    x = torch.ones(3)
    with pytest.raises(TypeError, match="`model` must be an nn.Module, got function"):
        export_onnx(gelu, x, path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`model` must be in evaluation mode: call model.eval\(\), got training mode"):
        export_onnx(nn.Linear(3, 3), x, path)
    with pytest.raises(FileNotFoundError, match="`path` must be in a folder that exists, got .*absent"):
        export_onnx(Model(gelu), x, path.parent / "absent" / "m.onnx")
    with pytest.raises(IsADirectoryError, match="`path` must name a file, got the folder .*"):
        export_onnx(Model(gelu), x, path.parent)
    with pytest.raises(ValueError, match=r"`dynamic_shapes` must name parameters of forward \('input',\), got x"):
        export_onnx(nn.Linear(3, 3).eval(), x, path, dynamic_shapes={"x": {0: "batch"}})
    with pytest.raises(ValueError, match=r"`dynamic_shapes` must have a place for args\[1\]"):
        export_onnx(Model(torch.add), (x, x), path, dynamic_shapes=({0: "n"},))


def test_dimensions_that_are_fixed_are_not_called_free(path: Path) -> None:
    with pytest.raises(Exception, match="specialized"):  # in PyTorch's words, of PyTorch's own kinds
        export_onnx(
            Model(lambda x: x[:, :2] * torch.ones(3, 2)), torch.ones(3, 2), path, dynamic_shapes=({0: "batch"},)
        )


def test_an_example_of_one_can_have_a_free_batch(tmp_path: Path) -> None:
    """torch.export takes a size of 1 for a constant."""
    path = tmp_path / "m.onnx"
    report = export_onnx(
        Model(lambda x, y: layer_norm(gelu(x) + y, 4)), (torch.randn(1, 4),) * 2, path, dynamic_shapes=({0: "N"},) * 2
    )
    assert report.shapes == (((1, 4), (1, 4)), ((2, 4), (2, 4)))
    for n in (1, 7):
        assert run(path, *(torch.randn(n, 4),) * 2)[0].shape == (n, 4)
    assert [i.type.tensor_type.shape.dim[0].dim_param for i in onnx.load(path).graph.input] == ["N", "N"]


def test_limits_and_multiples_of_sizes_are_kept(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", max=4)
    model = Model(lambda x, y: (gelu(x).repeat(2, 1) + y, x * 2))
    report = export_onnx(
        model, (torch.randn(4, 3), torch.randn(8, 3)), tmp_path / "m.onnx", dynamic_shapes=({0: batch}, {0: 2 * batch})
    )
    assert report.shapes == (((4, 3), (8, 3)), ((3, 3), (6, 3)))


def test_nested_and_other_arguments(tmp_path: Path) -> None:
    class Nested(nn.Module):
        def forward(self, pair: list[Tensor], more: dict[str, Tensor], twice: bool, nothing: None, form: str) -> Any:
            y = gelu(pair[0] + more["x"], form)
            return {"y": y * 2 if twice else y, "z": pair[1] * 3}

    x = torch.randn(3, 2)
    shapes = {"pair": [{0: "N"}, None], "more": {"x": {0: "N"}}}
    path = tmp_path / "m.onnx"
    report = export_onnx(Nested().eval(), ([x, x + 1], {"x": x * 2}, True, None, "tanh"), path, dynamic_shapes=shapes)
    assert report.shapes == (((3, 2),) * 3, ((4, 2), (3, 2), (4, 2)))
    larger = torch.randn(5, 2)
    wanted = Nested()([larger, x], {"x": larger}, True, None, "tanh")
    for got, y in zip(run(path, larger, x, larger), wanted.values(), strict=True):
        torch.testing.assert_close(got, y)


def test_large_weights_lie_in_a_second_file_which_moves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.onnx._internal.exporter import _onnx_program

    moved: list[str] = []
    replace = os.replace

    def record(source: Any, target: Any) -> None:
        moved.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(_onnx_program, "_LARGE_MODEL_THRESHOLD", 1000)
    monkeypatch.setattr(os, "replace", record)
    model = nn.Linear(40, 40).eval()
    export_onnx(model, torch.randn(2, 40), tmp_path / "m.onnx")
    assert leftovers(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert moved[-2:] == ["m.onnx.data", "m.onnx"]  # whoever finds the model finds its weights
    x = torch.randn(2, 40)
    torch.testing.assert_close(run(tmp_path / "m.onnx", x)[0], model(x))


# Packages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_what_installs_it(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MissingDependencyError, match=rf"{name} is not installed. Install them with: pip install 'onnx>=1\.18' "
    ):
        export_onnx(Model(gelu), torch.ones(3), path)


def test_an_onnxscript_that_is_too_old_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxscript

    monkeypatch.delattr(onnxscript, "build_function")
    with pytest.raises(MissingDependencyError, match=r"onnxscript [\d.]+ is older than 0.7. Install them with: pip"):
        export_onnx(Model(gelu), torch.ones(3), path)


def test_unchecked_needs_no_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    export_onnx(Model(gelu), torch.ones(3), tmp_path / "m.onnx", check=False)
    assert onnx.load(tmp_path / "m.onnx").graph.node[0].op_type == "Gelu"


APART = """
import sys
import autograd_bridge, cupyops.torch, torch
loaded = [m for m in sys.modules if m.partition(".")[0] in ("onnx", "onnxscript", "onnx_ir", "onnxruntime")]
assert not loaded, f"importing loads {loaded}"
report = cupyops.torch.export_onnx(autograd_bridge.GELU().eval(), torch.randn(1, 3), "m.onnx", dynamic_shapes=({0: "N"},))
print(report)
"""


def test_without_cupy_and_importing_loads_no_onnx(tmp_path: Path) -> None:
    result = run_apart(APART, tmp_path, refuse=("cupy",))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("m.onnx: the largest difference between onnxruntime and PyTorch is ")
    assert result.stderr == ""


def test_the_error_is_the_packages_own() -> None:
    assert cupyops.ExportError is ExportError
    assert issubclass(ExportError, RuntimeError)
