"""The starting files of two extensions, with the edits that a person makes: they run, with gradients."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import cupyops
from cupyops import from_extension
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.torch import Operator, check_op
from tests.launch.devices import DEVICES

HERE = Path(__file__).parent


def module_of(name: str, folder: Path) -> Any:
    """The starting file of an extension as a module."""
    path = from_extension(HERE / f"{name}.cu", namespace=f"of_{name}").write(folder / f"of_{name}.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", name="cell")
def cell_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return module_of("gated_cell", tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module", name="axpby")
def axpby_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return module_of("axpby", tmp_path_factory.mktemp("axpby"))


def reference(x: Any, weight: Any, bias: Any, h: Any) -> Any:
    joined = torch.cat([h, x], 1)
    g = torch.addmm(bias, joined, weight.t()).reshape(h.shape[0], 2, h.shape[1])
    z, c = torch.sigmoid(g[:, 0]), torch.tanh(g[:, 1])
    return h + z * (c - h), z, c, joined


def cell_operator(cell: Any) -> Operator:
    def gradient(grad_new_h: Any, x: Any, weight: Any, bias: Any, h: Any, z: Any, c: Any, joined: Any) -> Any:
        return cell.cell_backward(grad_new_h, h, z, c, joined, weight)

    schema = "of_gated_cell::cell(Tensor x, Tensor weight, Tensor bias, Tensor h) -> (Tensor new_h, Tensor z, Tensor c, Tensor joined)"
    return Operator(schema, cell.cell_forward, backward=gradient, reference=reference, autocast="float32")


def inputs(device: str, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, weight, bias, h = torch.randn(5, 3), torch.randn(14, 10) / 3, torch.randn(14), torch.randn(5, 7)
    return [t.to(device, dtype).requires_grad_() for t in (x, weight, bias, h)]


@pytest.mark.parametrize("device", DEVICES)
def test_an_extension_with_accessors_and_its_gradient(cell: Any, device: str) -> None:
    given = inputs(device)
    op = cell_operator(cell)
    with cupyops.simulate(sanitize=True):
        found = op(*given)[0]
        gradients = torch.autograd.grad((found * found).sum(), given)
    wanted = reference(*given)[0]
    torch.testing.assert_close(found, wanted)
    for got, want in zip(gradients, torch.autograd.grad((wanted * wanted).sum(), given), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.simulator
def test_check_op_finds_no_fault_in_it(cell: Any) -> None:
    checks = ("values", "gradients", "gradcheck", "strides", "empties", "fakes", "compile_static", "sanitizer")
    assert check_op(cell_operator(cell), [tuple(inputs("cpu", torch.float32))], checks=checks)


@pytest.mark.parametrize("device", DEVICES)
def test_an_extension_with_pointers_and_its_gradient(axpby: Any, device: str) -> None:
    def gradient(grad_out: Any, x: Any, y: Any, a: float, b: float) -> Any:
        nothing = torch.zeros_like(grad_out)
        return axpby.axpby(grad_out, a, nothing, 0.0), axpby.axpby(grad_out, b, nothing, 0.0)

    schema = "of_axpby::with_gradient(Tensor x, Tensor y, float a, float b) -> Tensor out"
    op = Operator(schema, lambda x, y, a, b: axpby.axpby(x, a, y, b), backward=gradient)
    x, y = (torch.randn(7, 50, device=device).t().requires_grad_() for _ in range(2))
    with cupyops.simulate(sanitize=True):
        out = op(x, y, 2.0, -3.0)
        torch.testing.assert_close(out, 2 * x - 3 * y)
        grad_x, grad_y = torch.autograd.grad(out.sum(), (x, y))
        assert (grad_x == 2).all()
        assert (grad_y == -3).all()
        with pytest.raises(ValueError, match="axpby: x.shape == y.shape does not hold"):
            op(x, y[:3], 1.0, 1.0)
        with pytest.raises(ValueError, match=r"axpby: x.dtype == torch.float32 does not hold"):
            op(x.double(), y, 1.0, 1.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_template_arguments_and_a_grid_of_few_blocks(axpby: Any, device: str, dtype: torch.dtype) -> None:
    """The launch of each branch gives its own number, and the grid is cut off at 1024 blocks: the loop takes the rest."""
    n = 1024 * 128 + 77
    x = torch.arange(n, device=device).remainder(100).to(dtype)
    with cupyops.simulate():
        for twice, factor in ((False, 3), (True, 9)):
            out = torch.zeros_like(x)
            axpby.scale_into_op(x, out, 3.0, twice)
            assert torch.equal(out, (x.double() * factor).to(dtype))
        with pytest.raises(ValueError, match="scale_into: x.is_contiguous"):
            axpby.scale_into_op(x[::2], torch.zeros_like(x[::2]), 3.0, False)


def test_the_operators_are_declared_from_the_host_half(cell: Any, axpby: Any) -> None:
    assert axpby.axpby_op.schema == "of_axpby::axpby(Tensor x, Tensor y, float a, float b) -> Tensor out"
    assert axpby.scale_into_op.schema == "of_axpby::scale_into(Tensor x, Tensor(a!) out, float a, bool twice) -> ()"
    results = " -> (Tensor new_h, Tensor z, Tensor c, Tensor joined)"
    assert (
        cell.cell_forward_op.schema
        == f"of_gated_cell::cell_forward(Tensor x, Tensor weight, Tensor bias, Tensor h){results}"
    )
    assert cell.cell_backward_op.schema.endswith(" -> (Tensor, Tensor, Tensor, Tensor)")


def test_launch_policies_follow_the_launches(cell: Any, axpby: Any) -> None:
    assert repr(axpby.AXPBY_KERNEL.geometry) == repr(cupyops.Threads("numel", block=128))
    assert cell.FORWARD_KERNEL.geometry.per_call
    assert cell.FORWARD_KERNEL.geometry.threads == (64, 1, 1)
    assert (axpby.SCALE_KERNEL.name, axpby.SCALE_KERNEL_2.name) == ("scale_kernel<T, 2>", "scale_kernel<T, 1>")
    assert axpby.SCALE_KERNEL.dtypes == ("float16", "float32", "float64")


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_compiles_every_kernel(cell: Any, axpby: Any, arch: str) -> None:
    for module in (cell, axpby):
        for kernel in (value for name, value in vars(module).items() if "_KERNEL" in name):
            for types in kernel.type_choices():
                compile_text(kernel.final_text(types), kernel.name, arch, OPTIONS)
