"""A text for nvcc without its host code: device code stays on its lines, and the rest is removed."""

import re
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.compile import device_half
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.errors import MissingDependencyError
from cupyops.importer import slice as slices
from cupyops.importer import tree
from cupyops.launch import kernel_source

KERNEL = "__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }"


@pytest.mark.parametrize(
    "code",
    [
        "int main(int argc, char** argv) { if (argc) { return 1; } return 0; }",
        "static inline float f(float v = 1) { return v; }",
        "__host__ void f() {}",
        "template <typename T, int N = (1 << 3)> void launch(T* x) { k<<<1, N>>>(x, 3); }",
        "std::vector<int> operator+(A a, B b) { return {}; }",
        "A::A(int n) : a(n), b{n} { init(); }",
        "std::vector<float> values = {1, 2};",
        "cublasHandle_t handle; void f() {}",
        "const std::string name = f();",
        "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(0, &f); }",
        "using Row = std::vector<float>;",
        "struct Rows { std::vector<float> values; };",
        "#define LAUNCH(T) void launch_##T(T* x) { k<<<1, 1>>>(x, 1); }\nLAUNCH(float)\n",
    ],
)
def test_host_code_does_not_compile(code: str) -> None:
    text = f'/* ( */\n{KERNEL}\n{code}\nnamespace a {{ namespace {{ {code} }} }}\nextern "C" {{\n{code}\n}}'
    found = Kernel(text, "k", Threads("n")).final_text({})
    declaration = code.splitlines()[-1]
    assert declaration not in found
    assert found.partition('#line 1 "k.cu"\n')[2].splitlines()[1] == KERNEL


@pytest.mark.parametrize("option", ["-default-device", "--device-as-default-execution-space"])
def test_the_option_that_makes_host_code_device_code_is_forgotten(option: str) -> None:
    text = "float f(float v) { return v; }\n" + KERNEL
    assert "float f" in Kernel(text, "k", Threads("n"), options=(option,)).final_text({})
    assert "float f" not in Kernel(text, "k", Threads("n")).final_text({})


@pytest.mark.parametrize(
    "text",
    [
        f"template <typename T> struct Pair {{ T a, b; T sum() const {{ return a + b; }} }};\nusing Both = Pair<int>;\n{KERNEL}",
        f"#define HD __host__ __device__\nnamespace a {{ template <int N> HD int f() {{ return N; }} HD int g() {{ return f<1>(); }} }}\n{KERNEL}",
        f"#include <cuda_fp16.h>\nconstexpr int three() {{ return 3; }}\n__constant__ float table[] = {{1, 2}};\n{KERNEL}",
        'extern "C" __global__ void k(const scalar_t* x, acc_t* y, int n) { for (int i = 0; i < n; i++) { y[i] = x[i]; } }',
    ],
)
def test_a_text_without_a_host_half_needs_no_clang(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_source, "device_half", None)
    assert text in Kernel(text, "k", Threads("n"), dtypes=("float32",)).final_text({"scalar_t": "float32"})


@pytest.fixture
def without_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingDependencyError("no libclang")

    monkeypatch.setattr(device_half.Program, "read", lambda stored: None)
    monkeypatch.setattr(tree, "clang", missing)
    monkeypatch.setattr(device_half, "_device_half", device_half._device_half.__wrapped__)


NO_CLANG = (
    re.escape("\nthe text seems to have a host half: pip install 'libclang>=18' (or leave the host functions out)")
    + "$"
)


@pytest.mark.simulator
@pytest.mark.usefixtures("without_clang")
def test_without_clang_the_compiler_reads_the_whole_text_and_its_error_says_so() -> None:
    text = f"int twice(int v) {{ return 2 * v; }}\n{KERNEL}"
    assert text in Kernel(text, "k", Threads("n")).final_text({})
    y = np.zeros(3, np.float32)
    with cupyops.simulate():
        Kernel(text, "k", Threads("n"))(y, 3)
        assert y.tolist() == [1, 1, 1]
        with pytest.raises(CompileError, match=NO_CLANG):
            Kernel(f"#include <string>\nRows f(Rows rows) {{ return rows; }}\n{KERNEL}", "k", Threads("n"))(y, 3)
        with pytest.raises(CompileError, match=NO_CLANG):
            Kernel(f"#include <vector>\nstd::vector<int> f() {{ return {{}}; }}\n{KERNEL}", "k", Threads("n"))(y, 3)


def test_the_device_half_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"int on_disk(int v) {{ return v; }}\n{KERNEL}"
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    found = Kernel(text, "k", Threads("n")).final_text({})
    assert "on_disk" not in found
    device_half._device_half.cache_clear()
    monkeypatch.setattr(slices, "parse", None)
    slices._parsed.cache_clear()
    assert Kernel(text, "k", Threads("n")).final_text({}) == found


def test_a_condition_whose_code_no_kernel_reads_says_nothing_of_an_unknown_header() -> None:
    text = f'#include "none.h"\n#ifdef FAST\n__device__ float f(float v) {{ return v; }}\nextern "C" {{ void g(); }}\n#endif\n{KERNEL}'
    with pytest.warns(UserWarning, match="is left out"):
        Kernel(text, "k", Threads("n")).final_text({})


CALLS = (
    "float f(float v) { return v; }\n__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = f(1); }"
)
WORDS = re.escape("`f` is host code, which is left out: declare what a kernel uses __device__")


@pytest.mark.simulator
def test_a_call_of_host_code_is_told_in_the_compilers_words_alone() -> None:
    with cupyops.simulate(), pytest.raises(CompileError, match=WORDS):
        Kernel(CALLS, "k", Threads("n"))(np.zeros(3, np.float32), 3)


def test_a_call_of_host_code_is_told_for_a_gpu_too() -> None:
    pytest.importorskip("cupy")
    kernel = Kernel(CALLS, "k", Threads("n"))
    with pytest.raises(CompileError) as caught:
        compile_text(kernel.final_text({}), "k", "sm_80", OPTIONS)
    assert re.search(WORDS, str(kernel.source.located(caught.value)))


@pytest.mark.simulator
def test_an_error_in_a_header_with_the_kernel_has_the_lines_of_its_files() -> None:
    header = "#pragma once\n__global__ void k(float* y, int n) {\n    y[0] = undeclared;\n}"
    kernel = Kernel(
        '\n#include "k.cuh"\n\n__device__ float wrong() { return unknown; }\n',
        "k",
        Threads("n"),
        filename="own.cu",
        headers={"k.cuh": header},
    )
    with cupyops.simulate(), pytest.raises(CompileError) as caught:
        kernel(np.zeros(3, np.float32), 3)
    assert "k.cuh:3: " in str(caught.value)
    assert "own.cu:4: " in str(caught.value)


def test_all_macros_that_a_missing_header_may_define_are_named() -> None:
    text = (
        '#include "config.hpp"\n#ifdef WIDE\n__device__ float a(float v) { return 2 * v; }\n#endif\n'
        "#ifdef SHIFTED\n__device__ float b(float v) { return v + 1; }\n#endif\n__global__ void k(float* y, int n) { y[0] = a(b(1)); }"
    )
    told = re.escape("decide the condition by options=('-DWIDE',) or ('-UWIDE',); so with SHIFTED")
    with pytest.raises(ValueError, match=told):
        Kernel(text, "k", Threads("n")).final_text({})


def test_a_mark_of_the_order_of_bytes_is_no_code(tmp_path: Path) -> None:
    text = "\ufeff__global__ void k(float* y, int n) { y[0] = 1; }"
    (tmp_path / "k.cu").write_text(text, encoding="utf-8")
    for given in (text, tmp_path / "k.cu"):
        assert "\ufeff" not in Kernel(given, "k", Threads("n")).final_text({})


@pytest.mark.simulator
def test_a_kernel_that_a_condition_removes_is_an_error() -> None:
    text = "#define FIRST 0\n#if FIRST\n__global__ void k(float* y, int n) {}\n#endif\n__global__ void other(float* y, int n) {}"
    with cupyops.simulate(), pytest.raises(CompileError, match="k"):
        Kernel(text, "k", Threads("n"))(np.zeros(3, np.float32), 3)


def test_a_value_of_a_macro_is_not_chosen_for_a_kernel() -> None:
    kernel = "__global__ void k(float* y, int n) { y[0] = %d; }"
    text = f"#if MODE == 1\n{kernel % 1}\n#elif MODE == 2\n{kernel % 2}\n#endif\n"
    assert Kernel(text, "k", Threads("n")).options == ()
    assert Kernel(text.replace("MODE == 1", "defined(USE_CUDA)"), "k", Threads("n")).options == ("-DUSE_CUDA",)


MEMBERS = """
struct Range { int first, last; Range(int n) : first(0), last(n) {} int size() const { return last - first; }
    __device__ int twice() const { return 2 * last; } };
const char* name = "range";
__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }
"""


def test_members_without_an_annotation_do_not_compile() -> None:
    pytest.importorskip("cupy")
    kernel = Kernel(MEMBERS, "k", Threads("n"))
    assert compile_text(kernel.final_text({}), "k", "sm_80", OPTIONS).resources


@pytest.mark.parametrize(("name", "constants"), [("add<float, 2>", {}), ("add", {"TERM": 2})])
def test_an_argument_of_a_template_is_no_macro_in_the_device_half(name: str, constants: dict[str, int]) -> None:
    text = """
    #include <vector>
    template <typename T, int TERM> __global__ void add(const T* x, T* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] + TERM; }
    std::vector<int> host(int n) { return {n}; }
    """
    kernel = Kernel(text, name, 32, constants=constants)
    final = kernel.final_text(next(iter(kernel.type_choices())))
    assert "int TERM> __global__ void add" in final
    assert "vector<int> host" not in final
