"""The files that from_extension writes: modules that run with gradients, and messages for files that it cannot read."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cupyops
from cupyops import Extension, MissingDependencyError, from_extension
from cupyops.__main__ import main
from cupyops.compile.compiler import binary_for
from cupyops.importer.launches import Kernels
from cupyops.torch import Operator, check_op
from tests.launch.devices import DEVICES

HERE = Path(__file__).parent
HEAD = "#include <torch/extension.h>\n#include <vector>\n"
FINE = (
    "__global__ void fine(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }\n"
)


def module_of(extension: Extension, folder: Path, name: str) -> Any:
    """The starting file of an extension as a module."""
    path = extension.write(folder / f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(text: str, namespace: str = "of_text") -> Extension:
    return from_extension(HEAD + text, namespace=namespace)


@pytest.fixture(scope="module", name="cell")
def cell_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    extension = from_extension(HERE / "gated_cell.cu", namespace="of_gated_cell")
    return module_of(extension, tmp_path_factory.mktemp("cell"), "of_gated_cell")


@pytest.fixture(scope="module", name="axpby")
def axpby_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    extension = from_extension(HERE / "axpby.cu", namespace="of_axpby")
    return module_of(extension, tmp_path_factory.mktemp("axpby"), "of_axpby")


def reference(x: Any, weight: Any, bias: Any, h: Any) -> Any:
    joined = torch.cat([h, x], 1)
    g = torch.addmm(bias, joined, weight.t()).reshape(h.shape[0], 2, h.shape[1])
    z, c = torch.sigmoid(g[:, 0]), torch.tanh(g[:, 1])
    return h + z * (c - h), z, c, joined


def inputs(device: str, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, weight, bias, h = torch.randn(5, 3), torch.randn(14, 10) / 3, torch.randn(14), torch.randn(5, 7)
    return [t.to(device, dtype).requires_grad_() for t in (x, weight, bias, h)]


# The starting files run


@pytest.mark.parametrize("device", DEVICES)
def test_an_extension_with_its_gradient(cell: Any, device: str) -> None:
    given = inputs(device)
    with cupyops.simulate(sanitize=True):
        found = cell.forward_op(*given)[0]
        gradients = torch.autograd.grad((found * found).sum(), given)
    wanted = reference(*given)[0]
    torch.testing.assert_close(found, wanted)
    for got, want in zip(gradients, torch.autograd.grad((wanted * wanted).sum(), given), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.thorough
@pytest.mark.simulator
def test_check_op_finds_no_fault_in_it(cell: Any) -> None:
    schema = cell.forward_op.schema.replace("::forward", "::checked")
    parts = {"backward": cell.forward_gradient, "reference": reference, "autocast": "float32"}
    op = Operator(schema, lambda *given: tuple(cell.cell_forward(*given)), **parts)
    checks = ("values", "gradients", "gradcheck", "strides", "empties", "fakes", "compile_static")
    assert check_op(op, [tuple(inputs("cpu", torch.float32))], checks=checks, dtypes=("float32", "float64"))


@pytest.mark.parametrize("device", DEVICES)
def test_an_extension_with_pointers(axpby: Any, device: str) -> None:
    x, y = (torch.randn(7, 50, device=device).t() for _ in range(2))
    with cupyops.simulate(sanitize=True):
        torch.testing.assert_close(axpby.axpby_op(x, y, 2.0, -3.0), 2 * x - 3 * y)
        compiled = torch.compile(lambda x, y: axpby.axpby_op(x, y, 2.0, 0.1) + 1, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, y), 2 * x + 0.1 * y + 1)
        with pytest.raises(RuntimeError, match="shapes"):
            axpby.axpby_op(x, y[:3], 1.0, 1.0)
        with pytest.raises(RuntimeError, match="at::kFloat"):
            axpby.axpby_op(x.double(), y, 1.0, 1.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_operator_that_writes_to_its_argument(axpby: Any, device: str, dtype: torch.dtype) -> None:
    x = torch.arange(200, device=device).remainder(100).to(dtype)
    with cupyops.simulate():
        for twice, factor in ((False, 3), (True, 9)):
            out = torch.zeros_like(x)
            axpby.scale_into_op(x, out, 3.0, twice)
            assert torch.equal(out, (x.double() * factor).to(dtype))


def test_the_operators_are_declared_by_the_types_of_cpp(cell: Any, axpby: Any) -> None:
    assert axpby.axpby_op.schema == "of_axpby::axpby(Tensor x, Tensor y, float a, float b) -> Tensor out"
    assert axpby.scale_into_op.schema == "of_axpby::scale_into(Tensor x, Tensor(a!) out, float a, bool twice) -> ()"
    results = " -> (Tensor new_h, Tensor z, Tensor c, Tensor joined)"
    assert cell.forward_op.schema == f"of_gated_cell::forward(Tensor x, Tensor weight, Tensor bias, Tensor h){results}"
    assert cell.backward_op.schema.endswith(" -> (Tensor, Tensor, Tensor, Tensor)")


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_compiles_every_kernel(cell: Any, axpby: Any, arch: str) -> None:
    names = (
        ("cell::forward_kernel<float>", "cell::backward_kernel<double, long>"),
        ("axpby_kernel", "scale_kernel<float, 2>"),
    )
    for module, kernels in zip((cell, axpby), names, strict=True):
        assert isinstance(module.kernels, Kernels)
        for name in kernels:
            kernel = module.kernels[name].kernel((64,), 0)
            binary_for(kernel.final_text({}), kernel.name, arch)


# What a function is

KERNEL = "__global__ void k(const float* x, float* y, int n) { y[threadIdx.x] = x[threadIdx.x]; }\n"
LAUNCH = "k<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), 3);"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            f"at::Tensor f(at::Tensor x) {{ auto y = at::empty_like(x); {LAUNCH} return y; }}",
            '"t::f(Tensor x) -> Tensor y", f)',
        ),
        (f"void f(at::Tensor x, at::Tensor y) {{ {LAUNCH} }}", '"t::f(Tensor x, Tensor(a!) y) -> ()", f)'),
        (
            f"void f(at::Tensor x, at::Tensor a) {{ auto y = a.view({{-1}}); {LAUNCH} }}",
            '"t::f(Tensor x, Tensor(a!) a) -> ()", f)',
        ),
        ("void f(at::Tensor x, int64_t n) { x.mul_(n); }", '"t::f(Tensor(a!) x, int n) -> ()", f)'),
        ("void f(at::Tensor x) { x[0] += 1; }", '"t::f(Tensor(a!) x) -> ()", f)'),
        ("void g(at::Tensor a) { a.zero_(); } void f(at::Tensor x) { g(x); }", '"t::f(Tensor(a!) x) -> ()", f)'),
        (
            "at::Tensor f(float a, at::Tensor x, c10::optional<at::Tensor> b) { return x * a; }",
            '"t::f(Tensor x, Tensor? b, float a) -> Tensor", lambda x, b, a: f(float32(a), x, b))',
        ),
        (
            "at::Tensor f(at::Tensor x, std::vector<int64_t> k) { return x.sum(k); }",
            '"t::f(Tensor x, int[] k) -> Tensor", lambda x, k: f(x, std.vector(int64, k)))',
        ),
        (
            "std::tuple<at::Tensor, at::Tensor> f(at::Tensor x) { auto a = x + 1; return {a, x * 2}; }",
            '"t::f(Tensor x) -> (Tensor, Tensor)", f)',
        ),
        (
            "at::Tensor f(at::Tensor x) { return x; }",
            "# f is a function and no operator: it may return x, which is an argument",
        ),
        (
            "at::Tensor f(at::Tensor x) { return x.t(); }",
            "# f is a function and no operator: it may return x, which is an",
        ),
        (
            f"at::Tensor f(at::Tensor x, at::Tensor y) {{ {LAUNCH} return x + y; }}",
            "# f is a function and no operator: it returns tensors, and also writes to y.",
        ),
        (
            "int f(at::Tensor x) { return 3; }",
            "# f is a function and no operator: it returns int32, which is not a tensor.",
        ),
        (
            "at::Tensor f(std::vector<at::Tensor> x) { return x[0] + 1; }",
            "# f is a function and no operator: no operator takes x.",
        ),
        ("at::Tensor f(int n) { return at::zeros({n}); }", "# f is a function and no operator: it has no tensor."),
        ("void f(at::Tensor x) {}", "# f is a function and no operator: it returns nothing, and writes to none of its"),
        (
            "at::Tensor f(at::Tensor x) { return none(x); }",
            "# f is a function and no operator: it has no whole translation (t.cu:",
        ),
    ],
)
def test_a_function_becomes_an_operator_or_a_comment(code: str, line: str) -> None:
    binding = '\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }'
    starter = from_extension(HEAD + KERNEL + code + binding, namespace="t").starter
    compile(starter, "t.py", "exec")
    assert line in starter


def test_what_a_module_binds(tmp_path: Path) -> None:
    """Lambdas become functions, defaults are those of py::arg, and names are those of the module."""
    text = """
    at::Tensor hidden(at::Tensor x) { return x + 1; }
    at::Tensor added(at::Tensor x, double a) { return hidden(x) + a; }
    PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
        m.def("add", &added, py::arg("x"), py::arg("a") = 2.0);
        m.def("twice", [](at::Tensor x) { return x * 2; });
        m.def("over", &hidden); m.def("over", &added);
        m.attr("N") = 3;
    }
    """
    extension = read(f"{FINE}{text}", "of_bound")
    module = module_of(extension, tmp_path, "of_bound")
    x = torch.arange(3.0)
    assert torch.equal(module.add_op(x), x + 3)
    assert torch.equal(module.twice_op(x), x * 2)
    assert not hasattr(module, "hidden_op")
    for name in ("over", "N"):
        assert f"# {name} of the module is left out" in extension.starter


def test_a_backward_is_the_gradient_if_the_names_match(tmp_path: Path) -> None:
    text = """
    at::Tensor square(at::Tensor x, double a) { auto y = a * x * x; return y; }
    at::Tensor square_backward(at::Tensor grad_y, at::Tensor x, double a) { return 2 * a * x * grad_y; }
    std::vector<at::Tensor> mul_fwd(at::Tensor a, at::Tensor b) { auto y = a * b; return {y}; }
    std::vector<at::Tensor> mul_bwd(at::Tensor grad, at::Tensor a, at::Tensor b) {
        auto grad_a = grad * b, grad_b = grad * a; return {grad_b, grad_a};
    }
    at::Tensor other(at::Tensor x) { auto y = x + 1; return y; }
    at::Tensor other_grad(at::Tensor grad_y, at::Tensor saved) { return grad_y * saved; }
    """
    extension = read(f"{FINE}{text}", "of_pairs")
    module = module_of(extension, tmp_path, "of_pairs")
    x, y = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.autograd.gradcheck(lambda x: module.square_op(x, 3.0), (x,))
    torch.autograd.gradcheck(module.mul_fwd_op, (x, y))
    told = (
        "# other_grad_op is not the gradient of other_op: no input and no result of other has the name of its parameter"
    )
    assert told in extension.starter


# The device code


def test_kernels_and_what_they_use_are_kept_and_nothing_else() -> None:
    extension = from_extension(HERE / "gated_cell.cu")
    words = set(re.findall(r"\w+", extension.text))
    assert {"forward_kernel", "backward_kernel", "sigmoid", "mix", "CELL_INLINE", "CELL_HOST_DEVICE"} <= words
    assert not {"PYBIND11_MODULE", "Tensor", "Gates", "Rows", "cell_forward", "line"} & words
    assert (extension.refused, extension.missing, extension.untranslated) == ({}, (), ())
    assert [(k.name, k.template, [p.name for p in k.parameters]) for k in extension.kernels] == [
        ("cell::forward_kernel", "typename scalar_t", ["g", "h", "z", "c", "new_h"]),
        ("cell::backward_kernel", "typename scalar_t, typename index_t", ["grad", "h", "z", "c", "grad_g", "grad_h"]),
    ]
    assert extension.kernels[1].launches == ("cell::backward_kernel<scalar_t, int64_t><<<blocks, threads>>>",)
    assert "const scalar_t* g, 3 dimensions" in str(extension)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("float* y) { cudaStream_t stream; y[0] = 1;", "`cudaStream_t` at of_text.cu:3 is a stream or an event"),
        ("float* y) { fine<<<1, 1>>>(y, y, 1);", "`<<<` at of_text.cu:3 is a launch from device code"),
        ("torch::Tensor x, float* y) { y[0] = 1;", "torch::Tensor"),
        ("float* y) { std::vector<float> v; y[0] = v[0];", "`std::vector` at of_text.cu:3 is of the host's library"),
        ("float*** y) { y[0][0][0] = 1;", "pass arrays as T*, numbers by value"),
    ],
)
def test_a_kernel_without_translation_is_refused_by_name_and_the_others_stay(code: str, words: str) -> None:
    odd = f"__global__ void odd({code} }}\n"
    extension = read(odd + FINE)
    assert [k.name for k in extension.kernels] == ["fine"]
    assert words in extension.refused["odd"]
    assert "# odd is left out: " in extension.starter
    with pytest.raises(ValueError, match=r"must name a file with a kernel that NVRTC can have, got of_text.cu: odd: "):
        read(odd.replace("fine<<<", "odd<<<"))


@pytest.mark.parametrize(
    ("body", "const"),
    [
        ("if (x[i] == 3 && x[i + 1] != x[i]) y[i] = fmaxf(x[i], 0);", True),
        ("x[i] += 1; y[i] = 0;", False),
        ("atomicAdd(&x[i], 1.f); y[i] = 0;", False),
        ("float* p = x; p[0] = 1; y[i] = x[i];", False),
    ],
)
def test_a_parameter_that_is_only_read_becomes_const(body: str, const: bool) -> None:
    extension = read(f"__global__ void f(float* x, float* y, int i) {{ {body} }}")
    assert [p.const for p in extension.kernels[0].parameters] == [const, False, True]


def test_included_files_are_found_in_folders_and_the_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "loops.cuh").write_text("#pragma once\n#define EACH(i, n) for (int i = 0; i < n; ++i)\n")
    text = '#include "loops.cuh"\n#include "loops.cuh"\n__global__ void f(float* y, int n) { EACH(i, n) y[i] = i; }'
    (tmp_path / "ext.cu").write_text(HEAD + text)
    extension = from_extension(tmp_path / "ext.cu")
    assert extension.missing == ("loops.cuh",)
    assert "# loops.cuh was not found: give its folder" in extension.starter
    assert "loops.cuh was not found" in str(extension)
    found = from_extension(tmp_path / "ext.cu", include=[tmp_path / "inner"])
    assert found.missing == ()
    assert found.text.count("#define EACH(i, n)") == 1
    with pytest.raises(ValueError, match="from_extension: `include` must name folders, got .*nowhere"):
        from_extension(tmp_path / "ext.cu", include=[tmp_path / "nowhere"])


# Files and texts that cannot be read


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    host = tmp_path / "host.cu"
    host.write_text(f'{HEAD}#include "kernels.cuh"\ntorch::Tensor f(torch::Tensor x) {{ return x; }}\n')
    wanted = r"must name a file with a __global__ function, got .*host.cu; it includes kernels.cuh, which was not"
    with pytest.raises(ValueError, match=wanted):
        from_extension(host)
    with pytest.raises(FileNotFoundError, match="none.cu"):
        from_extension(tmp_path / "none.cu")
    with pytest.raises(IsADirectoryError):
        from_extension(tmp_path)
    (tmp_path / "latin.cu").write_bytes(b"// \xe9\n__global__ void f(float* x) {}")
    with pytest.raises(ValueError, match=r"from_extension: `path` must name files of UTF-8, got .*latin.cu"):
        from_extension(tmp_path / "latin.cu")
    with pytest.raises(TypeError, match="from_extension: `path` must be the path of a .cu file, got int"):
        from_extension(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="from_extension: `include` must be a list of folders, got '/tmp'"):
        from_extension(host, include="/tmp")
    with pytest.raises(ValueError, match="from_extension: `namespace` must be an identifier, got 'a b'"):
        from_extension(HERE / "axpby.cu", namespace="a b")
    with pytest.raises(ValueError, match="from_extension: `namespace` must be given for a text"):
        from_extension(HEAD + FINE)


def test_without_libclang_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupyops.importer import tree

    tree.clang.cache_clear()
    monkeypatch.setitem(sys.modules, "clang", None)
    with pytest.raises(MissingDependencyError, match="pip install 'libclang>=18'"):
        from_extension(HERE / "axpby.cu")


@pytest.mark.sample(3)
@pytest.mark.parametrize("cut", [900, 1500, 2500, 3700, 4500])
def test_a_file_that_ends_anywhere_is_read_or_refused(cut: int) -> None:
    """A file that is cut off has brackets without a partner. No such file ends in another error, or in none at all."""
    text = (HERE / "gated_cell.cu").read_text()[:cut]
    refused = ""
    try:
        compile(from_extension(text, include=[HERE], namespace="cut").starter, "cut.py", "exec")
    except ValueError as problem:
        refused = str(problem)
    assert not refused or refused.startswith("from_extension: `path` must name a file with a ")


# The command


def test_nothing_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "axpby.py"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        from_extension(HERE / "axpby.cu").write(path)
    with pytest.raises(SystemExit, match="2"):
        main(["new", "--from-extension", str(HERE / "axpby.cu"), "--into", str(tmp_path)])
    assert path.read_text() == "mine"


def test_the_command_writes_the_starting_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine", "--from-extension", str(HERE / "axpby.cu"), "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "axpby_kernel\n    int32 numel\n    const float32* x\n" in said
    assert f"{tmp_path / 'mine.py'}: 2 kernels, the host half in Python, and operators." in said
    assert '"mine::axpby(Tensor x, Tensor y, float a, float b) -> Tensor out"' in (tmp_path / "mine.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from-extension", "none.cu"], "none.cu: No such file or directory"),
        (["class", "--from-extension", str(HERE / "axpby.cu")], "new: `NAME` must be an identifier and no keyword"),
        (["--from-extension", str(HERE / "gated_cell.h")], "must name a file with a __global__ function"),
        ([], "the following arguments are required: NAME"),
    ],
)
def test_the_command_refuses_in_one_line(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["new", *arguments, "--into", str(tmp_path)])
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
