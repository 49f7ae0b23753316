"""A text for nvcc without its host code: what a GPU compiles stays, at its place, and the rest goes."""

import re
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.compile.host_code import host_code
from cupyops.compile.unread import without_unread

KERNEL = "__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("int main(int argc, char** argv) { if (argc) { return 1; } return 0; }", "main"),
        ("static inline float f(float v = 1) { return v; }", "f"),
        ("void f(int n, float* x);", "f"),
        ("__host__ void f() {}", "f"),
        ("template <typename T, int N = (1 << 3)> void launch(T* x) { k<<<1, N>>>(x, 3); }", "launch"),
        ("template void launch<float, 3>(float*);", "launch"),
        ("std::vector<int> operator+(A a, B b) { return {}; }", "operator+"),
        ("A::A(int n) : a(n), b{n} { init(); }", "A"),
        ("auto f() -> int { return 1; }", "f"),
        ("std::vector<float> values = {1, 2};", "values"),
        ("cublasHandle_t handle;", "handle"),
        ("static int calls = 0;", "calls"),
        ("const char* names[] = {0, 0};", "names"),
        ("const std::string name = f();", "name"),
        ("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(0, &f); }", "PYBIND11_MODULE"),
        ("using namespace std;", ""),
        ("using Row = std::vector<float>;", ""),
        ("struct Rows { std::vector<float> values; };", ""),
        ("#define LAUNCH(T) void launch_##T(T* x) { k<<<1, 1>>>(x, 1); }\nLAUNCH(float)\n", ""),
        ("#define MAKE(T) template __global__ void k<T>(T*, int);\nMAKE(float);\nMAKE(int)\n", ""),
    ],
)
@pytest.mark.parametrize("around", ["{}", "namespace a { namespace { {} } }", 'extern "C" { {} }'])
def test_host_code_stays(code: str, name: str, around: str) -> None:
    text = "/* ( */\n" + around.replace("{}", f"{KERNEL}\n{code}\n{KERNEL}")
    found = host_code(text)
    assert found.names == tuple([name] if name else [])
    declaration = code.splitlines()[-1] if code[0] == "#" else code
    assert declaration not in found.text
    assert found.text.count(KERNEL) == 2
    assert [len(line) for line in found.text.split("\n")] == [len(line) for line in text.split("\n")]


@pytest.mark.parametrize(
    "code",
    [
        "__device__ float f(float v) { return v; }",
        "template <typename T> __host__ __device__ inline T f(T v) { return v; }",
        "constexpr int three() { return 3; }",
        "#define FUNCTION __device__ __forceinline__\nFUNCTION float f(float v) { return v; }",
        "#define DEFINE(name) __device__ float name(float v) { return v; }\nDEFINE(f)\n",
        "const int N = 3;",
        "static const float* const NOTHING = nullptr;",
        "constexpr float TABLE[] = {1, 2};",
        "__constant__ float table[3];",
        "__device__ int counter = 0;",
        "extern __shared__ float room[];",
        "struct Pair { float a, b; Pair() = default; __device__ float sum() const { return a + b; } constexpr int n() { return 2; } };",
        "typedef struct __align__(8) { float a, b; } Pair;",
        "enum class Mode : int { A, B };",
        "template <typename T> struct Traits { static const int N = 1; };",
        "template <> struct Traits<float> { using type = int; };",
        "union Both { float f; int i; };",
        "namespace cg = cooperative_groups;",
        "using namespace cooperative_groups;",
        "using std::max;",
        "static_assert(sizeof(int) == 4, 0);",
        "auto square = [] __device__(float v) { return v * v; };",
        "template <typename T> constexpr int SIZE = sizeof(T);",
    ],
)
def test_device_code_goes(code: str) -> None:
    text = f"{code}\n{KERNEL}"
    assert host_code(text)[:2] == (text, ())


def test_the_bodies_of_member_functions_of_the_host_stay() -> None:
    text = "struct A { A(int n) : n(n) { f(); } int g() const { return f(); } __device__ int h() { return n; } private: int n = 1; };"
    bare = "struct A { A(int n) ; int g() const ; __device__ int h() { return n; } private: int n = 1; };"
    found = host_code(f"{text}\n{KERNEL}")
    assert found.names == ()
    assert " ".join(found.text.split()) == " ".join(f"{bare} {KERNEL}".split())


@pytest.mark.parametrize("option", ["-default-device", "--device-as-default-execution-space"])
def test_the_option_that_makes_host_code_device_code_is_forgotten(option: str) -> None:
    text = "float f(float v) { return v; }\n" + KERNEL
    assert "float f" in Kernel(text, "k", Threads("n"), options=(option,)).final_text({})
    assert "float f" not in Kernel(text, "k", Threads("n")).final_text({})


def test_directives_go_with_the_host_code_around_them() -> None:
    text = f"int main() {{\n#define N 3\n#ifdef DEBUG\n f();\n#endif\n}}\n{KERNEL}"
    found = host_code(text).text
    assert "main" not in found
    assert "f();" not in found
    assert [line for line in found.splitlines() if line.startswith("#")] == ["#define N 3", "#ifdef DEBUG", "#endif"]


PROTOTYPE = "#define API(n) __attribute__((noinline))\nAPI(3) void fail(const char* file, const char* words, ...);\n"
CHECK = "#define FAIL(...) REPORT(__FILE__, __VA_ARGS__)\n#define REPORT(...) fail(__VA_ARGS__)\n"
CHECKED = "constexpr int positive(int n) { if (n < 0) { FAIL(words, n); } return n; }\n"


def test_a_prototype_that_a_constexpr_function_calls_stays() -> None:
    found = host_code(f"{PROTOTYPE}void other();\n{CHECK}{CHECKED}{KERNEL}")
    assert found.names == ("other",)
    assert "void fail(" in found.text
    assert "fail(const" not in host_code(f"{PROTOTYPE}{CHECK}{KERNEL}").text
    assert host_code(PROTOTYPE, f"{CHECK}{CHECKED}").names == ()
    assert "fail" in host_code(f"cudaStream_t fail(int);\n{CHECK}{CHECKED}{KERNEL}").names


def test_the_macros_of_other_texts_are_not_known() -> None:
    text = f"HD float f(float v) {{ return v; }}\n{KERNEL}"
    assert host_code(text, "#define HD __host__ __device__\n").names == ()
    assert host_code(text).names == ("f",)


@pytest.mark.parametrize("code", ["int main() {\n#ifdef A\nif (a) {\n#endif\n}", "} int main() {}", "int f("])
def test_a_text_whose_braces_do_not_match_is_changed(code: str) -> None:
    text = f"{KERNEL}\n{code}"
    assert host_code(text).text == text


@pytest.mark.parametrize(
    "code",
    [
        "int main() {\n#ifdef A\nif (a) {\n#else\nif (b) {\n#endif\n} }",
        "int main() {\n#ifdef A\nif (a) {\n#elif B\nif (b && (\n#ifdef C\n c)) {\n#else\n d)) {\n#endif\n#endif\n} }",
    ],
)
def test_braces_that_match_in_the_first_branches_count(code: str) -> None:
    found = host_code(f"{KERNEL}\n{code}\n{KERNEL}")
    assert found.names == ("main",)
    assert found.text.count(KERNEL) == 2
    assert not re.search(r"if \(|main", found.text.replace(KERNEL, ""))


@pytest.mark.parametrize(
    "code", ["REGISTER(k, float)", "BIND_ALL(torch::kFloat, float)", "#define make(T) void f_##T();\nmake(float)"]
)
def test_a_macro_call_without_a_semicolon_is_a_declaration(code: str) -> None:
    text = f"namespace a {{\n{KERNEL}\n{code}\n}}\nint main() {{ return 0; }}\n{code}"
    found = host_code(text)
    assert "main" in found.names
    assert code.splitlines()[-1] not in found.text
    assert KERNEL in found.text


def test_an_alias_of_a_type_that_is_left_out_is_left_out() -> None:
    text = (
        "template <typename T> using F = void (*)(T*, cudaStream_t);\ntypedef F<float> G;\ntypedef float H;\n"
        f"class Net {{ std::vector<int> v; }};\nclass Loss : public Net {{ Net* net; }};\nstruct Kept {{ float a; }};\n{KERNEL}"
    )
    found = host_code(text).text
    assert "typedef float H;" in found
    assert "struct Kept" in found
    assert not re.search(r"\bG\b|Loss|Net", found)


FUNCTORS = """
struct Sum { thrust::host_vector<int>* p; __device__ int operator()(thrust::device_ptr<int> t) { return helper(); } };
__device__ int helper() { std::vector<int> v; return v[0]; }
template <typename T> __device__ T twice(T v) { return 2 * v; }
"""


def test_declarations_of_host_types_that_no_kernel_reads_are_left_out() -> None:
    text = f"{FUNCTORS}{KERNEL}"
    found = without_unread({"": text}, ["k"])[""]
    assert "Sum" not in found
    assert "helper" not in found
    assert "twice" in found
    assert len(found) == len(text)


@pytest.mark.parametrize(
    ("use", "kept"), [("helper()", ("helper",)), ("CALL", ("helper",)), ("Sum()(1)", ("helper", "struct Sum"))]
)
def test_declarations_of_host_types_that_a_kernel_reads_stay(use: str, kept: tuple[str, ...]) -> None:
    header = f"#define CALL other()\n__device__ int other() {{ return helper(); }}\n{FUNCTORS}"
    kernel = f"__global__ void k(int* y) {{ *y = {use}; }}"
    found = without_unread({"": kernel, "a.h": header}, ["k"])["a.h"]
    assert [name for name in ("helper", "struct Sum") if f"{name}" in found.replace("return helper", "")] == list(kept)


def test_functions_and_classes_of_headers_that_no_kernel_reads_are_left_out() -> None:
    header = """
namespace u { __device__ int used() { return 1; } __device__ int unused() { return broken; } }
using u::used; using u::gone;
struct Unused { Missing m; }; struct Used { int a; __device__ Used(); __device__ ~Used(); };
__device__ Used::Used() {} __device__ Used::~Used() {}
enum Kind { FIRST = 3 }; constexpr int A = 1, B = 2; __device__ int table[2]; __device__ int begin(Used&);
"""
    text = "__device__ int own() { return 1; }\n__global__ void k(int* y) { Used u; *y = used() + B + FIRST; }"
    found = without_unread({"": text, "a.h": header}, ["k"])
    assert found[""] == text  # the author sees the errors of a text of one's own
    assert not re.search(r"unused|Unused|Missing|gone", found["a.h"])
    for name in (
        "int used()",
        "using u::used;",
        "struct Used",
        "Used::Used() {}",
        "~Used() {}",
        "FIRST",
        "A = 1",
        "table",
        "begin",
    ):
        assert name in found["a.h"]
    assert len(found["a.h"]) == len(header)


def test_a_macro_of_a_macro_that_a_condition_defines_marks_device_code() -> None:
    text = (
        "#ifdef __CUDACC__\n#define BOTH __host__ __device__\n#else\n#define BOTH\n#endif\n#define INLINE BOTH inline\n"
        f"template <typename T> INLINE T mix(T a, T b) {{ return a + b; }}\nint host() {{ return 1; }}\n{KERNEL}"
    )
    found = host_code(text)
    assert "INLINE T mix" in found.text
    assert found.names == ("host",)


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
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("y[0] = tex1Dfetch(from, 0);", "`from` is a texture reference, which CUDA 12 removed: declare a parameter cudaTextureObject_t"),
        ("surf1Dwrite(1, to, 0);", "`to` is a surface reference, which CUDA 12 removed: declare a parameter cudaSurfaceObject_t"),
        ("y[0] = _ROWS_ + 1;", "`_ROWS_` is undefined: give the text or the header that declares it, or, if"),
        ("y[0] = environment(n);", "`environment` is undefined: give the text or the header that declares it"),
        ("cudaFree(y);", "`cudaFree` is of the CUDA runtime, which device code does not have here: call it from Python"),
        ("y[0] = nodes->first;", "the text declares no type `Node`, so the arrays of a call decide it: give the text that declares it"),
    ],
)  # fmt: skip
def test_the_error_says_what_a_text_lacks(code: str, words: str) -> None:
    text = "texture<float, 1> from;\nsurface<void, 1> to;\n__global__ void k(float* y, const Node* nodes, int n) {"
    with cupyops.simulate(), pytest.raises(CompileError, match=re.escape(words)):
        Kernel(f"{text} {code} }}", "k", Threads("n"))(np.zeros(3, np.float32), np.zeros(3, np.float32), 3)


def test_an_error_of_nvrtc_says_what_to_do() -> None:
    pytest.importorskip("cupy")
    text = "struct Z { float r; Z(float a) : r(a) {} __device__ float twice() { return 2 * r; } };\n"
    for body, words in (
        ("y[0] = Z(1).twice();", "has no body for the GPU: declare the function, and each member function, __device__"),
        ("bool none[0]; y[0] = none[0];", "takes an array of no elements, and NVRTC does not"),
        (
            "y[0] = __shfl_down(y[0], 1);",
            "shuffles and votes without a mask are of GPUs before sm_70: call __shfl_down_sync",
        ),
        ("y[0] = __any(y[0] > 0);", "shuffles and votes without a mask are of GPUs before sm_70"),
    ):
        kernel = Kernel(f"{text}__global__ void k(float* y, int n) {{ {body} }}", "k", Threads("n"))
        with pytest.raises(CompileError) as caught:
            compile_text(kernel.final_text({}), "k", "sm_80", OPTIONS)
        assert words in str(kernel.source.located(caught.value))


def test_the_error_names_the_header_that_has_the_kernel() -> None:
    header = "template <typename T> __global__ void scale(T* y, int n) {}"
    with pytest.raises(ValueError, match="the header scale.cuh, which it does not include, has it: include the header"):
        Kernel("__global__ void k(float* y, int n) {}", "scale<float>", headers={"scale.cuh": header})


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


@pytest.mark.simulator
def test_the_error_names_the_macro_of_a_build_whose_condition_removes_a_declaration() -> None:
    header = (
        "#ifdef WITH_GPU\n__device__ float scaled(float v) { return 2 * v; }\ntypedef unsigned char byte;\n#endif\n"
    )
    text = '#include "scaled.h"\n__global__ void k(float* y, int n) { y[0] = scaled(1); }\n__global__ void of_bytes(byte* y, byte n) {}'
    told = "unless the build of the project defines WITH_GPU: give it as options=\\('-DWITH_GPU',\\)"
    with cupyops.simulate(), pytest.raises(CompileError, match=f"the declaration of `scaled`, {told}"):
        Kernel(text, "k", Threads("n"), headers={"scaled.h": header})(np.zeros(3, np.float32), 3)
    with pytest.raises(CompileError, match=f"the declaration of `byte`, {told}"):
        Kernel(text, "of_bytes", 1, headers={"scaled.h": header}).signature  # noqa: B018 - raises
    with cupyops.simulate():
        y = np.zeros(3, np.float32)
        Kernel(text, "k", Threads("n"), headers={"scaled.h": header}, options=("-DWITH_GPU",))(y, 3)
    assert y[0] == 2


def test_an_include_guard_of_another_header_is_no_macro_of_a_missing_header() -> None:
    text = (
        '#include "cblas.hpp"\n#ifndef GFLAGS_GFLAGS_H_\n__device__ float scaled(float v) { return 2 * v; }\n#endif\n'
        "__global__ void k(float* y, int n) { y[0] = scaled(1); }"
    )
    with pytest.warns(UserWarning, match="no such header is known, so it is left out"):
        Kernel(text, "k", Threads("n")).final_text({})
    with pytest.raises(ValueError, match="a condition of the text reads CBLAS_H_, which the header may define"):
        Kernel(text.replace("GFLAGS_GFLAGS_H_", "CBLAS_H_"), "k", Threads("n")).final_text({})


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
def test_the_error_says_that_a_condition_removes_the_kernel() -> None:
    text = "#define FIRST 0\n#if FIRST\n__global__ void k(float* y, int n) {}\n#endif\n__global__ void other(float* y, int n) {}"
    told = re.escape("a condition of the text (#if) removes k: define its macros in constants= or as options -D")
    with cupyops.simulate(), pytest.raises(CompileError, match=told):
        Kernel(text, "k", Threads("n"))(np.zeros(3, np.float32), 3)


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
