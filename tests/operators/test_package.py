"""Packages of exported models. Without a GPU, plans of launches are made on CPU tensors, and a stub of the driver launches."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from cupyops import GridStride, Kernel, Threads
from cupyops.errors import ExportError
from cupyops.torch import Operator, optimize, package
from cupyops.torch.core.layouts import on_fakes
from cupyops.torch.serving import bodies
from cupyops.torch.serving.launches import Launches

from .test_dynamic_batch import MODELS, _inputs, _shapes

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""
FIXED = {
    "add2 of a row",
    "linear_backward",
    "linear_gelu_backward",
    "LLTMLayers",
    "lltm",
    "swiglu of halves",
    "geglu tanh",
}


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are packaged by the bodies, as tensors on a GPU are."""
    monkeypatch.setattr(bodies, "_steps_of", lambda op, *_: lambda args: on_fakes(op._held, args))


@pytest.fixture
def launches() -> Iterator[Launches]:
    made = Launches((90,))
    yield made
    made.close()


def operator(name: str, body: Callable[..., Any], arguments: str = "Tensor x") -> Operator:
    fake = lambda x, *_: torch.empty_like(x)  # noqa: E731  # else the export itself would bind the batch where the body does
    return Operator(f"packaged::{name}({arguments}) -> Tensor y", body, fake=fake)


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def exported(function: Callable[..., Any], *args: Tensor, dynamic: bool = True) -> ExportedProgram:
    shapes: Any = (tuple({0: Dim("batch")} for _ in args),) if dynamic else None
    return torch.export.export(Calls(function), args, dynamic_shapes=shapes)


def planned(program: ExportedProgram, launches: Launches) -> list[torch.fx.Node]:
    """The nodes of the launches of a program."""
    module = program.module(check_guards=False)
    bodies.replace_operators(module, launches)  # type: ignore[arg-type]
    targets = [str(n.target) for n in module.graph.nodes]
    assert not [t for t in targets if t.startswith(("cupyops.", "packaged."))]
    return [n for n in module.graph.nodes if str(n.target).startswith("cupyops_launches.")]


def value(argument: Any, batch: int) -> Any:
    """An argument of a launch for a batch."""
    found = argument.meta["val"].node.expr if isinstance(argument, torch.fx.Node) else argument
    return int(found.subs(dict.fromkeys(found.free_symbols, batch))) if hasattr(found, "free_symbols") else found


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", MODELS)
def test_plans_of_all_operators_take_every_batch(name: str, launches: Launches) -> None:
    model = MODELS[name]
    args = _inputs(model, 4, torch.float32)
    with torch.no_grad():
        program = torch.export.export(model.module.eval(), args, dynamic_shapes=_shapes(model, args))
    if name in FIXED:
        with pytest.raises(ExportError, match=r"package: cupyops::\w+ cannot be packaged: .*fixed sizes"):
            planned(program, launches)
        return
    found = planned(program, launches)
    assert bool(found) == (name not in ("Linear", "Linear of four dimensions", "linear"))  # products of the library


def test_a_launch_is_an_expression_of_the_batch(launches: Launches) -> None:
    shared = Kernel(SCALE.replace("scale(", "shared("), "shared", Threads("n", block=64), shared=lambda n: 4 * n)
    strided = Kernel(SCALE.replace("scale(", "strided("), "strided", GridStride("n"))
    by_call = Kernel(SCALE.replace("scale(", "by_call("), "by_call")

    def body(x: Tensor, factor: float) -> Tensor:
        y, n = torch.empty_like(x), x.numel()
        shared(x, y, factor, n)
        strided(y, y, 1.0, n)
        by_call[((n + 31) // 32, 2), 32, n * 8](y, y, 1.0, n)
        return y

    op = operator("three", body, "Tensor x, float factor")
    found = planned(exported(lambda x: op(x, 2.5), torch.randn(4, 100)), launches)
    assert [n.args[2] for n in found] == [2.5, 1.0, 1.0]
    for batch, at_once in ((4, 2), (9, 4), (10**6, 390625)):
        n = 100 * batch
        strided_blocks = value(found[1].args[4], batch)
        assert [value(a, batch) for a in found[0].args[3:]] == [n, -(-n // 64), 1, 1, 4 * n]
        assert strided_blocks <= at_once
        assert [value(a, batch) for a in found[2].args[3:]] == [n, -(-n // 32), 2, 1, 8 * n]
    assert not launches.conditions


def test_a_kernel_writes_no_argument_of_the_operator(launches: Launches) -> None:
    """The norm passes x for the sum that it does not write. A write would copy x."""
    from cupyops.torch.ops.layer_norm import layer_norm

    (node,) = planned(exported(lambda x: layer_norm(x, (256,)), torch.randn(4, 256)), launches)
    schema = node.target._schema  # type: ignore[union-attr]
    written = [node.args[i] for i, a in enumerate(schema.arguments) if a.alias_info is not None]
    assert len(written) == 2  # y and the statistics
    assert node.args[0] not in written


def test_arguments_of_every_kind(launches: Launches) -> None:
    text = """
    struct Ends { int first; double last; };
    extern "C" __global__ void kinds(
        const half_t* x, half_t* y, const float* none, __half h, __nv_bfloat16 b, bool yes, unsigned long long large, Int64s<2> two, Ends ends) {}
    """
    kernel = Kernel(text, "kinds", Threads("large"), nullable=True)

    def body(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        kernel(x, y, None, 1.5, -2.0, True, 2**63 + x.shape[1], (x.shape[0], 7), (3, 0.5))
        return y

    op = operator("kinds", body)
    (node,) = planned(exported(op, torch.randn(4, 8).half()), launches)
    _x, _y, none, h, b, yes, large, first, second, *_grid = node.args
    assert (none, h, b, yes, second) == (None, 0x3E00, 0xC000, True, 7)
    assert large == 8 - 2**63  # its bits as a signed number
    assert value(first, 5) == 5


REFUSED: dict[str, tuple[Callable[[Kernel, Tensor, Tensor], object], str]] = {
    "value": (lambda k, x, y: k(x, y, float(x.sum()), x.numel()), "its body cannot be traced"),
    "size": (lambda k, x, y: k(x, y, 2.0, int(x.shape[0])), "its body fixes a dynamic size: s.* = 4.*fixed sizes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_plan_holds_is_refused(name: str, launches: Launches) -> None:
    step, why = REFUSED[name]
    kernel = Kernel(SCALE, "scale", Threads("n"))

    def body(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        step(kernel, x, y)
        return y

    op = operator(name, body)
    with pytest.raises(ExportError, match=f"package: packaged::{name} cannot be packaged: {why}"):
        planned(exported(op, torch.randn(4, 100)), launches)


def test_a_kernel_of_another_architecture_is_refused() -> None:
    launches = Launches((80, 90))
    kernel = Kernel(SCALE, "scale", Threads("n"), since=90)

    def body(x: Tensor) -> Tensor:
        kernel(x, y := torch.empty_like(x), 2.0, x.numel())
        return y

    op = operator("newer", body)
    with pytest.raises(ExportError, match="packaged::newer cannot be packaged: scale<> needs sm_90.* sm_80, too"):
        planned(exported(op, torch.randn(4)), launches)
    launches.close()


def test_a_variable_that_python_has_set_is_refused(launches: Launches) -> None:
    kernel = Kernel("__device__ float by = 1;" + SCALE.replace("factor * x", "by * x"), "scale", Threads("n"))
    kernel.storage.given["by"] = 3.0

    def body(x: Tensor) -> Tensor:
        kernel(x, y := torch.empty_like(x), 2.0, x.numel())
        return y

    op = operator("variable", body)
    with pytest.raises(ExportError, match="Python has set the variable `by`"):
        planned(exported(op, torch.randn(4)), launches)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    program = exported(lambda x: x + 1, torch.randn(4))
    with pytest.raises(TypeError, match="package: `exported` must be an ExportedProgram.*Linear"):
        package(nn.Linear(1, 1), tmp_path / "m.pt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"package: `path` must end in \.pt2"):
        package(program, tmp_path / "m.so")


DRIVER = """
#include <cstdio>
#include <cstring>
extern "C" {
int cuCtxGetDevice(int* gpu) { *gpu = 0; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuModuleLoadData(void** module, const void* code) { *module = (void*)code; return memcmp(code, "\\177ELF", 4); }
int cuModuleGetFunction(void** function, void*, const char* name) { *function = (void*)name; return 0; }
int cuFuncSetAttribute(void* function, int attribute, int bytes) { printf("%d %d\\n", attribute, bytes); return 0; }
int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR"; return 0; }
int cuLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**) { return 1; }
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned block, unsigned, unsigned, unsigned shared, void*,
                   void** given, void**) {
  printf("%s %u %u %u %u %u\\n", (const char*)function, x, y, z, block, shared);
  const int n = *(int*)given[3];
  for (int i = 0; i < n; ++i) (*(float**)given[1])[i] = *(float*)given[2] * (*(float**)given[0])[i];
  return fflush(stdout);
}
}
"""
SERVE = """
import sys
import torch
sys.modules["cupyops"] = None
run = torch._inductor.aoti_load_package(sys.argv[1])
for batch in (1, 2, 7, 8):
    x = torch.randn(batch, 100)
    assert torch.equal(run(x), 6 * x + 1), batch
try:
    run(torch.randn(9, 100))
except RuntimeError:
    print("refused")
"""


STATIC = """#!/bin/sh
for word in "$@"; do [ "$word" = -shared ] && exec g++ "$@" -static-libstdc++; done
exec g++ "$@"
"""


def test_a_package_launches_without_cupyops(tmp_path: Path) -> None:
    """The C++ of a package, with a driver that computes on the CPU what the kernel of the test does.

    The compiler links its C++ library statically, as one without the shared library's link does. Python could not load the package
    if its library were not PyTorch's.
    """
    kernel = Kernel(SCALE, "scale", Threads("n"), shared="2 * n")

    def body(x: Tensor) -> Tensor:
        y, z = torch.empty_like(x), torch.empty_like(x)
        kernel(x, y, 2.0, x.numel())
        if x.shape[0] <= 8:  # a choice by a dynamic size
            kernel(y + 0, z, 3.0, x.numel())
        return z

    op = operator("twice", body)
    compiler = tmp_path / "static"
    compiler.write_text(STATIC)
    compiler.chmod(0o700)
    # g++ would take two seconds more with optimisations.
    quickly = {"aot_inductor.compile_wrapper_opt_level": "O0", "cpp.cxx": (None, str(compiler))}
    program = exported(lambda x: op(x) + 1, torch.randn(4, 100))
    path = package(program, tmp_path / "m.pt2", architectures=(80, 90), options=quickly)
    (tmp_path / "driver.cc").write_text(DRIVER)
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", "-w", str(tmp_path / "driver.cc"), "-o", str(driver)], check=True)
    (tmp_path / "serve.py").write_text(textwrap.dedent(SERVE))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "serve.py"), path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[:3] == ["8 200", "scale 1 1 1 256 200", "scale 1 1 1 256 200"]
    assert lines[3:6] == ["8 400", "scale 1 1 1 256 400", "scale 1 1 1 256 400"]
    assert lines[-3:-1] == ["scale 4 1 1 256 1600", "refused"]


def test_no_graph_of_another_process_is_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the names of launches belong to other kernels. Nor is one of this process in another's."""

    def compiled(*_: Any, options: dict[str, Any]) -> Any:
        raise KeyboardInterrupt(options["fx_graph_cache"])

    monkeypatch.setattr(torch._inductor, "aot_compile", compiled)
    with pytest.raises(KeyboardInterrupt, match="False"):
        package(exported(lambda x: x + 1, torch.randn(4, 100)), tmp_path / "m.pt2", architectures=(90,))


@pytest.mark.thorough
def test_on_a_cpu_a_package_runs_the_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    from autograd_bridge import LinearGELU

    model = LinearGELU(8, 32).requires_grad_(False)
    program = torch.export.export(model, (torch.randn(4, 8),), dynamic_shapes=({0: Dim("batch")},))
    run = torch._inductor.aoti_load_package(package(program, tmp_path / "m.pt2"))
    for batch in (1, 4, 7):
        x = torch.randn(batch, 8)
        torch.testing.assert_close(run(x), model(x))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_of_an_optimized_model_has_the_operators(strict: bool) -> None:
    """Without Dynamo, an export runs the model on fake tensors."""
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU())
    optimize(model)
    program = torch.export.export(model, (torch.randn(4, 8),), dynamic_shapes=({0: Dim("batch")},), strict=strict)
    found = {str(n.target).removesuffix(".default") for n in program.graph.nodes if n.op == "call_function"}
    assert {"cupyops.layer_norm", "cupyops.linear_gelu"} <= found


@pytest.mark.thorough
def test_the_program_of_the_page_runs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/shipping.md shows a program in C++, here on a CPU."""
    monkeypatch.undo()
    page = (Path(__file__).parents[2] / "docs" / "shipping.md").read_text(encoding="utf-8")
    (tmp_path / "main.cpp").write_text(page.partition("```cpp\n")[2].partition("```")[0])
    found = Path(torch.__file__).parent
    includes = [f"-I{found}/include", f"-I{found}/include/torch/csrc/api/include"]
    libraries = [f"-L{found}/lib", f"-Wl,-rpath,{found}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    made = str(tmp_path / "main")
    command = ["g++", "-std=c++20", str(tmp_path / "main.cpp"), "-o", made, *includes, *libraries]
    subprocess.run(command, check=True)
    model = nn.Sequential(nn.Linear(784, 12), nn.GELU(), nn.Linear(12, 10)).requires_grad_(False)
    optimize(model)
    program = torch.export.export(model, (torch.randn(4, 784),), dynamic_shapes=({0: Dim("batch")},))
    path = package(program, tmp_path / "m.pt2")
    done = subprocess.run([made, path, "cpu"], capture_output=True, text=True, check=True)
    images = [torch.arange(b * 784.0).mul(0.01).sin().view(b, 784) for b in (1, 4, 64)]
    wanted = [model(x).double().sum().item() for x in images]
    assert [float(line) for line in done.stdout.split()] == pytest.approx(wanted, rel=1e-4, abs=1e-4)
