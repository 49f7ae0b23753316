"""A text for nvcc without its host code: what a GPU compiles stays, at its place, and the rest goes."""

import pytest

from cupyops.compile.host_code import host_code

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
        "struct Pair { float a, b; Pair() {} float sum() const { return a + b; } };",
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
    assert host_code(text) == (text, ())


def test_directives_go_with_the_host_code_around_them() -> None:
    text = f"int main() {{\n#define N 3\n#ifdef DEBUG\n f();\n#endif\n}}\n{KERNEL}"
    found = host_code(text).text
    assert "main" not in found and "f();" not in found
    assert [line for line in found.splitlines() if line.startswith("#")] == ["#define N 3", "#ifdef DEBUG", "#endif"]


def test_the_macros_of_other_texts_are_not_known() -> None:
    text = f"HD float f(float v) {{ return v; }}\n{KERNEL}"
    assert host_code(text, "#define HD __host__ __device__\n").names == ()
    assert host_code(text).names == ("f",)


@pytest.mark.parametrize(
    "code", ["int main() {\n#ifdef A\nif (a) {\n#else\nif (b) {\n#endif\n} }", "} int main() {}", "int f("]
)
def test_a_text_whose_braces_do_not_match_is_changed(code: str) -> None:
    text = f"{KERNEL}\n{code}"
    assert host_code(text).text == text
