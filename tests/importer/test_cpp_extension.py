"""load_inline and load in the place of PyTorch's, and the command that runs programs with them."""

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.cpp_extension as theirs
from torch.utils.cpp_extension import load_inline as imported_before

from cupyops import cpp_extension
from cupyops.__main__ import main
from cupyops.cpp_extension import _flags, load, load_inline, replaced, simulated
from cupyops.importer.binding import Module
from cupyops.importer.casters import host
from cupyops.importer.errors import NotTranslated

ONE = torch.ones(1)
SCALE = """
__global__ void scale_kernel(const float* x, float* y, float k, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = k * x[i];
}
torch::Tensor scale(torch::Tensor x, double k) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    auto y = torch::empty_like(x);
    int n = x.numel();
    scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), k, n);
    return y;
}
"""


# The arguments of a load, with a program builder that translates nothing


@host("twice", "at::Tensor", ("x", "at::Tensor"))
def twice(x: Any) -> Any:
    return 2 * x


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records the arguments of the program builder, and returns a program."""
    answer = types.SimpleNamespace(functions={"twice": twice}, bound={}, source="", untranslated=[])
    seen: dict[str, Any] = {"answer": answer}

    def program(name: str, sources: Any, **given: Any) -> Any:
        seen.update(name=name, sources=sources, **given)
        return answer

    monkeypatch.setattr(cpp_extension, "program", program)
    monkeypatch.setattr(theirs, "CUDA_HOME", None)
    return seen


@pytest.mark.parametrize(
    ("given", "options", "folders", "ignored"),
    [
        (["-O3", "-DX=1", "-D", "Y", "-UZ"], ["-DX=1", "-DY", "-UZ"], [], ["-O3"]),
        (["", "-O3 -DX='a b'"], ["-DX=a b"], [], ["-O3"]),
        (["--define-macro=X=1", "--undefine-macro", "Z"], ["-DX=1", "-UZ"], [], []),
        (["-I", "a", "-Ib", "--include-path=c", "-isystem", "d"], [], ["a", "b", "c", "d"], []),
        (["--use_fast_math"], ["--use_fast_math"], [], []),
        (["-use_fast_math", "-ftz=true", "--fmad", "false"], ["--use_fast_math", "--ftz=true", "--fmad=false"], [], []),
        (["-std=c++20", "--std", "c++17", "-std=gnu++17"], ["-std=c++20", "-std=c++17"], [], ["-std=gnu++17"]),
        (["--maxrregcount=32", "-maxrregcount", "64"], ["--maxrregcount=32", "--maxrregcount=64"], [], []),
        (["-gencode", "arch=compute_80,code=sm_80", "-arch=sm_80"], [], [], ["-gencode arch=compute_80,code=sm_80", "-arch=sm_80"]),
        (["-Xcompiler", "-fPIC", "--expt-relaxed-constexpr", "-DX"], ["-DX"], [], ["-Xcompiler -fPIC", "--expt-relaxed-constexpr"]),
    ],
)  # fmt: skip
def test_flags(given: list[str], options: list[str], folders: list[str], ignored: list[str]) -> None:
    assert _flags(given) == (options, [Path(f) for f in folders], ignored)


def test_a_flag_without_its_value_is_refused() -> None:
    with pytest.raises(ValueError, match="-D has no value"):
        _flags(["-O3", "-D"])


def test_the_builder_gets_texts_functions_options_and_folders(asked: dict[str, Any], capsys: Any) -> None:
    cpp = ["a", "b"]
    load_inline("m", cpp, "c", functions="twice", extra_cflags=["-O3"], extra_cuda_cflags=["-DX=1"], extra_include_paths=["inc"],
                extra_ldflags=["-lcublas", ""], verbose=True)  # fmt: skip
    assert asked["sources"] == [("m.cpp", "a\nb"), ("m.cu", "c")]
    assert cpp == ["a", "b"]
    assert asked["functions"] == ["twice"]
    assert asked["options"] == ["-DX=1", "-DTORCH_EXTENSION_NAME=m"]
    assert asked["include"] == [Path("inc")]
    assert capsys.readouterr().err == "m: flags without an effect: -O3 -lcublas\n"


@pytest.mark.parametrize(
    ("functions", "doc"), [("twice", "twice"), (["twice"], "twice"), ({"twice": "two times"}, "two times")]
)
def test_functions_are_those_of_the_module(asked: dict[str, Any], functions: Any, doc: str) -> None:
    module = load_inline(name="m", cpp_sources="", functions=functions)
    assert isinstance(module, types.ModuleType)
    assert module.__name__ == module.twice.__module__ == "m"
    assert module.twice(ONE) == 2
    assert module.twice.__doc__ == f"twice(arg0: torch.Tensor) -> torch.Tensor\n\n{doc}\n"
    with pytest.raises(TypeError, match=r"twice\(\): incompatible"):
        module.twice(1)


def test_what_is_not_defined_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="Error building extension 'm': .*'absent'"):
        load_inline("m", "", functions=["absent"])
    with pytest.raises(ImportError, match="PyInit_m"):
        load_inline("m", "")
    with pytest.raises(ValueError, match="list or dict"):
        load_inline("m", "", functions=3)  # type: ignore[arg-type]
    assert load_inline("m", "", is_python_module=False) is None


def test_what_pybind11_binds_is_in_the_module(asked: dict[str, Any]) -> None:
    m = Module("m").def_("t", twice, "doc")
    m.attr("VERSION").assign(3)
    m.def_submodule("inner").def_("t", twice)
    asked["answer"].bound = m.members
    module = load_inline("m", "")
    assert (module.t(ONE), module.VERSION, module.inner.t(ONE)) == (2, 3, 2)
    assert isinstance(module.inner, types.ModuleType)


def test_load_reads_files_and_cpp_comes_first(asked: dict[str, Any], tmp_path: Path) -> None:
    for name in ("k.cu", "a.cpp"):
        (tmp_path / name).write_text(f"// {name}", encoding="utf-8")
    asked["answer"].bound = {"t": twice}
    load("m", [str(tmp_path / "k.cu"), tmp_path / "a.cpp"])
    assert [(Path(n).name, text) for n, text in asked["sources"]] == [("a.cpp", "// a.cpp"), ("k.cu", "// k.cu")]
    assert asked["include"] == [tmp_path]
    assert asked["functions"] is None


def test_pytorchs_builder_takes_what_has_no_translation(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theirs, "is_ninja_available", lambda: True)
    built: list[dict[str, Any]] = []

    def build(**given: Any) -> str:
        built.append(given)
        return "built"

    monkeypatch.setattr(cpp_extension, "_BUILDERS", (None, build))
    asked["answer"].untranslated = [("twice", "m.cu:3", "goto"), ("other", "m.cu:9", "asm")]
    asked["answer"].functions["other"] = twice
    assert load_inline("m", "", functions=["twice"]).twice(ONE) == 2, "without nvcc, the function raises where it does"
    monkeypatch.setattr(theirs, "CUDA_HOME", "/cuda")
    with pytest.warns(RuntimeWarning, match="m: PyTorch's builder compiles these sources: m.cu:3: goto$") as caught:
        assert load_inline("m", ["text"], functions=["twice"], verbose=False) == "built"
    assert caught[0].filename == __file__
    assert (built[0]["name"], built[0]["cpp_sources"], built[0]["functions"]) == ("m", ["text"], ["twice"])
    asked["answer"].untranslated = [("other", "m.cu:9", "asm")]
    assert load_inline("m", "", functions=["twice"]).twice(ONE) == 2, "only functions that are bound count"
    monkeypatch.setattr(cpp_extension, "fallback", False)
    asked["answer"].untranslated = [("twice", "m.cu:3", "goto")]
    assert load_inline("m", "", functions=["twice"]).twice(ONE) == 2
    with pytest.raises(NotTranslated, match="SYCL"):
        load_inline("m", "", sycl_sources="x")


# The replacement, and programs


def test_replaced_holds_for_the_block() -> None:
    before = theirs.load_inline, theirs.load
    with replaced():
        from torch.utils.cpp_extension import load_inline as imported

        assert imported is theirs.load_inline is imported_before is load_inline
        assert theirs.load is load
    assert (theirs.load_inline, theirs.load) == before
    assert imported_before is before[0]


@pytest.mark.simulator
def test_programs_for_a_gpu_stay_on_the_cpu_in_a_simulation() -> None:
    with simulated():
        x = torch.ones(2, device="cuda").cuda()
        y = torch.nn.Linear(2, 2).cuda().to("cuda:0")(x.to(torch.device("cuda"), torch.float64).float())
        torch.cuda.synchronize()
        numbered = [
            x.to(0),
            x.to(device=1, dtype=torch.float16),
            torch.zeros(2, device=0),
            torch.nn.Linear(2, 2).to(0).weight,
        ]
        assert x.sum(0) == x.new_full((1,), 0).to(0) + 2, "other numbers are no devices"
    assert {t.device.type for t in (x, y, *numbered)} == {"cpu"}


SCRIPT = """
import json, sys
from torch.utils.cpp_extension import load_inline
import beside
with open(sys.argv[1], "w") as file:
    json.dump([__name__, sys.argv, beside.VALUE, load_inline.__module__], file)
if "--fail" in sys.argv:
    sys.exit(3)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "beside.py").write_text("VALUE = 5", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "beside", raising=False)

    def run(*arguments: str) -> Any:
        main(["run", str(tmp_path / "script.py"), str(tmp_path / "out"), *arguments])
        return json.loads((tmp_path / "out").read_text())

    return run


def test_the_command_runs_a_program_as_python_does(script: Callable[..., Any], tmp_path: Path) -> None:
    before = sys.argv[:], sys.path[:]
    name, argv, beside, module = script("--simulate", "-x")
    assert (name, beside, module) == ("__main__", 5, "cupyops.cpp_extension")
    assert argv == [str(tmp_path / "script.py"), str(tmp_path / "out"), "--simulate", "-x"]
    assert (sys.argv, sys.path) == before
    with pytest.raises(SystemExit) as caught:
        script("--fail")
    assert caught.value.code == 3
    assert (sys.argv, sys.path) == before


def test_the_command_names_a_file_that_is_not_there(capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "absent.py"])
    assert caught.value.code == 2
    assert "absent.py: no such file" in capsys.readouterr().err


# Whole programs


@pytest.mark.simulator
def test_a_cuda_source_with_declarations_in_cpp() -> None:
    module = load_inline("scaling", "torch::Tensor scale(torch::Tensor x, double k);", SCALE, functions=["scale"])
    with simulated():
        assert module.scale(torch.arange(3.0), 2).tolist() == [0, 2, 4]
        with pytest.raises(TypeError, match=r"scale\(\): incompatible"):
            module.scale(torch.arange(3.0), "a")


@pytest.mark.simulator
def test_a_pybind11_module_with_names_and_defaults() -> None:
    source = '#include <torch/extension.h>\n' + SCALE + """
    PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
        m.doc() = "scales";
        m.def("scale", &scale, "k times x", py::arg("x"), py::arg("k") = 3.0);
        m.def("scale", [](torch::Tensor x) { return scale(x, 10); });
    }"""  # fmt: skip
    module = load_inline("scaling_module", "", [source])
    with simulated():
        assert module.scale(k=2, x=ONE) == 2
        assert module.scale(ONE) == 3, "the first overload with its default"
    assert module.__doc__ == "scales"


@pytest.mark.simulator
def test_a_library_registers_operators(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text(
        '#include "scale.h"\nTORCH_LIBRARY(TORCH_EXTENSION_NAME, m) { m.def("scale(Tensor x, float k) -> Tensor"); }',
        encoding="utf-8",
    )
    (tmp_path / "scale.h").write_text("#pragma once\n#include <torch/library.h>\n", encoding="utf-8")
    (tmp_path / "op.cu").write_text(
        '#include "scale.h"\n'
        + SCALE
        + '\nTORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CUDA, m) { m.impl("scale", &scale); }',
        encoding="utf-8",
    )
    paths = [str(tmp_path / name) for name in ("op.cpp", "op.cu")]
    assert load("cupyops_test_load", paths, is_python_module=False) is None
    with simulated():
        assert torch.ops.cupyops_test_load.scale(ONE, 4.0) == 4


@pytest.mark.parametrize("sources", [b"int f();", 3, ["int f();", b"int g();"]])
def test_a_source_that_is_no_text_is_refused_by_its_argument(sources: Any) -> None:
    with pytest.raises(TypeError, match="load_inline: `cuda_sources` must be a string, or a list of strings"):
        load_inline("wrong", "", sources, functions=["f"])
