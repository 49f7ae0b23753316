# ruff: noqa: E501 - declarations in one line each
"""The compiler compares the types of a kernel's parameters with what a launch passes."""

import secrets
import subprocess
import sys

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, MissingDependencyError, Module, Threads
from cupyops.compile import compiler
from cupyops.compile.compiler import binary_for
from cupyops.dtypes import DTYPES

COPY = """
extern "C" __global__ void k(const real* x, real* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }"""
REAL = """template <bool D> struct Real { using type = float; };
template <> struct Real<true> { using type = double; };
"""
WORD = """template <int N> struct Word { using type = float; };
template <> struct Word<8> { using type = double; };
"""
UP = "template <class T> struct Up { using type = float; };\n"
TYPES = {
    "constexpr name": (REAL + "constexpr bool DOUBLE = true; using real = Real<DOUBLE>::type;", "float64"),
    "enumerator": (WORD + "enum { EIGHT = 8 }; using real = Word<EIGHT>::type;", "float64"),
    "enum class": (
        "enum class Kind { F, D }; template <Kind K> struct R { using type = float; }; template <> struct R<Kind::D> { using type = double; }; constexpr Kind K = Kind::D; using real = R<K>::type;",
        "float64",
    ),
    "sizeof": (WORD + "using real = Word<sizeof(double)>::type;", "float64"),
    "one": (REAL + "using real = Real<1>::type;", "float64"),
    "hex": (WORD + "using real = Word<0x8>::type;", "float64"),
    "suffix": (WORD + "using real = Word<8u>::type;", "float64"),
    "sum": (WORD + "using real = Word<4+4>::type;", "float64"),
    "cast": (WORD + "using real = Word<int(8)>::type;", "float64"),
    "compare": (REAL + "using real = Real<(3>2)>::type;", "float64"),
    "not": (REAL + "constexpr bool D = false; using real = Real<!D>::type;", "float64"),
    "octal": (WORD + "using real = Word<010>::type;", "float64"),
    "char": (WORD + "using real = Word<'\\b'>::type;", "float64"),
    "unsigned": (
        UP + "template <> struct Up<unsigned int> { using type = double; }; using real = Up<unsigned>::type;",
        "float64",
    ),
    "typedef spec": (
        "typedef float F;\n" + UP + "template <> struct Up<F> { using type = double; }; using real = Up<float>::type;",
        "float64",
    ),
    "long": (UP + "template <> struct Up<long> { using type = double; }; using real = Up<long long>::type;", "float32"),
    "const": (
        UP + "template <> struct Up<const float> { using type = double; }; using real = Up<float>::type;",
        "float32",
    ),
    "partial false": (
        "template <bool B, class T, class V> struct C { using type = T; }; template <class T, class V> struct C<false, T, V> { using type = V; }; using real = C<false, float, double>::type;",
        "float64",
    ),
    "partial pointer": (
        UP + "template <class T> struct Up<T*> { using type = double; }; using real = Up<int*>::type;",
        "float64",
    ),
    "partial number": (
        "template <class T, int N> struct P { using type = float; }; template <int N> struct P<int, N> { using type = double; }; using real = P<int, 3>::type;",
        "float64",
    ),
    "inherited": ("struct A { using t = double; }; struct R : A {}; using real = R::t;", "float64"),
    "inherited template": (
        "template <class T> struct A { using t = T; }; template <class T> struct R : A<T> {}; using real = R<double>::t;",
        "float64",
    ),
    "nested": ("struct A { struct B { using t = double; }; using t = float; }; using real = A::B::t;", "float64"),
    "nested first": ("struct A { struct B { using t = double; }; using t = float; }; using real = A::t;", "float32"),
    "member template": (
        "struct A { template <class T> struct of { using t = T; }; }; using real = A::of<double>::t;",
        "float64",
    ),
    "variadic": (
        "template <class... T> struct L; template <class T, class... R> struct L<T, R...> { using t = T; }; using real = L<double, int>::t;",
        "float64",
    ),
    "conditional sizeof": (
        "#include <type_traits>\nusing real = std::conditional_t<(sizeof(int) > 2), double, float>;",
        "float64",
    ),
    "conditional": (
        "#include <type_traits>\nusing real = std::conditional<std::is_same<long, long long>::value, double, float>::type;",
        "float32",
    ),
    "decltype": ("__device__ double f(); using real = decltype(f());", "float64"),
    "decltype literal": ("using real = decltype(1.0f + 2.0);", "float64"),
    "alias default": ("template <class T = double> using Id = T; using real = Id<>;", "float64"),
    "default argument": (
        "template <bool B = true> struct R; template <> struct R<true> { using type = double; }; template <> struct R<false> { using type = float; }; using real = R<>::type;",
        "float64",
    ),
    "template template": (
        "template <class T> struct A { using t = T; }; template <template <class> class F> struct Ap { using t = typename F<double>::t; }; using real = Ap<A>::t;",
        "float64",
    ),
    "later in namespace": ("namespace a { using real = double; } using a::real;", "float64"),
    "namespaces alike": (
        "namespace a { struct R { using type = float; }; } namespace b { struct R { using type = double; }; } using real = a::R::type;",
        "float32",
    ),
    "alias in struct": (
        "using a = float; struct R { using a = double; using type = a; }; using real = R::type;",
        "float64",
    ),
    "macro": ("#define T double\n#define real T", "float64"),
    "condition on value": (
        "#define BITS (4 * 16)\n#if BITS >= 64\nusing real = double;\n#else\nusing real = float;\n#endif",
        "float64",
    ),
    "enum element": ("enum E : unsigned char { A }; using real = E;", "uint8"),
    "plain enum": ("enum E { A, B }; using real = E;", "int32"),
    "long word": ("using real = unsigned long;", "uint64"),
    "half": ("#include <cuda_fp16.h>\nusing real = half;", "float16"),
    "half member": (
        "#include <cuda_fp16.h>\ntemplate <int N> struct W { using type = float; }; template <> struct W<2> { using type = __half; }; using real = W<1+1>::type;",
        "float16",
    ),
    "bfloat16": ("#include <cuda_bf16.h>\nusing real = __nv_bfloat16;", "bfloat16"),
    "char word": ("using real = char;", "int8"),
    "volatile": ("using real = volatile float;", "float32"),
    "remove_const": ("#include <type_traits>\nusing real = std::remove_const_t<const double>;", "float64"),
    "constexpr if": (
        "constexpr int N = 3; template <int N> struct W { using type = float; }; template <> struct W<3> { using type = double; }; using real = W<N>::type;",
        "float64",
    ),
    "bool": ("using real = bool;", "bool"),
    "size_t": ("using real = size_t;", "uint64"),
}


@pytest.mark.sample(15)
@pytest.mark.parametrize("name", TYPES)
def test_an_array_of_another_type_is_refused_and_of_the_right_type_is_taken(name: str) -> None:
    before, right = TYPES[name]
    kernel = Kernel(before + COPY, "k", 32)
    assert [p.type for p in kernel.signature.parameters[:2]] == [right, right]
    compared(kernel)


def compared(kernel: Kernel, **types: str) -> None:
    """Compiles a kernel, and compares its parameters with the signature."""
    binary = binary_for(kernel.final_text(types), kernel.name, "sm_90")
    assert len(binary.types) == len(kernel.source.kernels())
    kernel.compare(binary.types, types)


def test_the_number_of_parameters_is_compared() -> None:
    kernel = Kernel(COPY.replace("real", "float"), "k", 32)
    with pytest.raises(
        CompileError, match="k.cu:2: k: the launch passes 3 arguments, and the compiler sees 2 parameters"
    ):
        kernel.compare(["void (*)(float const*, float*)"], {})


@pytest.mark.simulator
def test_a_specialization_that_a_constant_chooses() -> None:
    kernel = Kernel(REAL + "constexpr bool DOUBLE = true; using real = Real<DOUBLE>::type;" + COPY, "k", Threads("n"))
    x, y = np.arange(4.0), np.zeros(4)
    with cupyops.simulate():
        kernel(x, y, 4)
        with pytest.raises(TypeError, match="k: `x` must have dtype float64, got float32"):
            kernel(x.astype("f4"), y.astype("f4"), 4)
    assert y.tolist() == x.tolist()


def test_the_simulators_compiler_answers_as_nvrtc_does(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '#include "pytorch.cuh"\n'
        + REAL
        + "enum class Kind : char { A }; struct Pair { float a; int b[2]; float4 v; double* p; };\n"
        "template <class T> struct Box { T low; short high : 9; };\n"
        "template <class T, bool B> __global__ void k(const typename Real<B>::type* x, T y, Kind k, Pair p, const Pair* ps, "
        "Box<T>* boxes, float (*rows)[3], volatile T** addresses, const torch::PackedTensorAccessor32<T, 2> a) {}"
    )
    asked = Kernel(text, "k<float, true>").signature

    def missing() -> None:
        raise MissingDependencyError("no NVRTC")

    monkeypatch.setattr("cupyops.launch.asked.nvrtc", missing)
    assert Kernel(text, "k<float, true>").signature == asked
    monkeypatch.setattr("cupyops.simulator.host.candidates", lambda: iter(()))
    with pytest.raises(
        MissingDependencyError, match=r"k<float, true>: .* neither NVRTC \(no NVRTC\) nor a C\+\+ compiler"
    ):
        Kernel(text, "k<float, true>").signature  # noqa: B018 - raises


@pytest.mark.simulator
def test_the_simulators_compiler_answers_before_any_launch() -> None:
    script = """
import numpy, cupyops
from cupyops.compile import toolchain
from cupyops.launch import asked
def missing(): raise cupyops.MissingDependencyError("no NVRTC")
asked.nvrtc = missing
k = cupyops.Kernel("struct P { float* x; int n; }; __global__ void k(P p) { p.x[0] = p.n; }", "k")
x = numpy.zeros(1, "f4")
with cupyops.simulate():
    k[1]((x, 3))
assert x[0] == 3
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_header_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def folders(names: object) -> list[object]:
        raise MissingDependencyError("<curand_kernel.h> is not installed")

    monkeypatch.setattr(compiler, "folders_of", folders)
    text = f"// {secrets.token_hex(8)}\n#include <curand_kernel.h>\nstruct P {{ int n; }}; __global__ void k(P p, float* x) {{}}"
    with pytest.raises(MissingDependencyError, match="^<curand_kernel.h> is not installed$"):
        Kernel(text, "k").signature  # noqa: B018 - raises


@pytest.mark.parametrize(
    ("text", "name", "error", "words"),
    [
        (
            "template <class K> __global__ __launch_bounds__(K::threads) void k(float* x, typename K::P p) {}",
            "k",
            ValueError,
            "the template's parameter `K` has no argument: give it as part of its name",
        ),
        (
            "enum E { A }; template <class T, E e> __global__ void k(const T* x, E other) {}",
            "k<float, 4>",
            CompileError,
            "cannot determine which instance of function template",
        ),
        (
            "template <class...> struct Many {}; typedef Many<"
            + ", ".join(f"int[{i}]" for i in range(1, 300))
            + "> M; __global__ void k(M* m, float* x) {}",
            "k",
            CompileError,
            "are too long to be demangled",
        ),
    ],
)
def test_what_no_compiler_can_tell_is_refused_in_plain_words(text: str, name: str, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        Kernel(text, name).signature  # noqa: B018 - raises


@pytest.mark.parametrize(
    ("declared", "name", "count", "types"),
    [
        ("template <class T> ", "T", 2, ["T", "float32"]),
        ("template <class T, class I> ", "T", 3, ["T", "float32"]),
        ("", "scalar_t", 2, ["scalar_t", "float32"]),
    ],
)
def test_a_type_that_the_arrays_decide_is_asked_for_with_two_dtypes(
    monkeypatch: pytest.MonkeyPatch, declared: str, name: str, count: int, types: list[str]
) -> None:
    compiled: list[str] = []
    real = compiler.compile_text
    monkeypatch.setattr(
        compiler, "compile_text", lambda *given, **more: compiled.append(given[1]) or real(*given, **more)
    )
    other = ", I* z" if "I>" in declared else ""
    text = f"// {secrets.token_hex(4)}\n" + (
        f'#include "pytorch.cuh"\nstruct S {{ float a; }};\n{declared}'
        f"__global__ void k(const torch::PackedTensorAccessor32<{name}, 2> x, at::acc_type<float, true>* y, S* s{other}) {{}}"
    )
    x, y, s, *_ = Kernel(text, "k").signature.parameters
    assert [x.type, y.type] == types
    assert s.element is not None
    assert s.element.record.names == ("a",)
    assert len(compiled) == count


def test_a_constant_pointer_to_an_instance_of_the_template() -> None:
    text = "template <class R> struct O { R a; }; template <class R> __global__ void k(const O<R>* const o, O<R>* q, R* y) {}"
    o, q, y = Kernel(text, "k").signature.parameters
    assert (o.type, q.type, y.type) == ("O<R>", "O<R>", "R")


@pytest.mark.simulator
def test_a_simulated_kernel_is_compared_with_its_signature() -> None:
    """A macro declares the type in a namespace, where the text seems to declare none."""
    plain = COPY.replace('extern "C"', "")
    text = f"#define DECLARE(name) typedef double name\nnamespace a {{ DECLARE(real); {plain} }}"
    kernel, x = Kernel(text, "k", Threads("n"), dtypes=("float32",)), np.zeros(4, "f4")
    with (
        cupyops.simulate(),
        pytest.raises(CompileError, match=r"`x`: the launch passes an array of float32, .* `double const\*`"),
    ):
        kernel(x, x.copy(), 4)


def test_an_answer_holds_for_its_headers_constants_and_options_alone() -> None:
    text = f"// {secrets.token_hex(8)}\n" + '#include "real.cuh"\n' + COPY
    chosen = "template <int M> struct Of { using type = float; }; template <> struct Of<2> { using type = double; };\n"
    for header, given, dtype in (
        (f"{chosen}using real = Of<1>::type;", {}, "float32"),
        (f"{chosen}using real = Of<2>::type;", {}, "float64"),
        (f"{chosen}using real = Of<N>::type;", {"constants": {"N": 1}}, "float32"),
        (f"{chosen}using real = Of<N>::type;", {"constants": {"N": 2}}, "float64"),
        (f"{chosen}using real = Of<N>::type;", {"options": ("-DN=1",)}, "float32"),
        (f"{chosen}using real = Of<N>::type;", {"options": ("-DN=2",)}, "float64"),
    ):
        kernel = Kernel(text, "k", 1, headers={"real.cuh": header}, **given)  # type: ignore[arg-type]
        assert kernel.signature.parameters[0].type == dtype


def test_a_declaration_compiles_nothing_and_a_warm_cache_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"// {secrets.token_hex(8)}\ntypedef float real;\n" + COPY.replace("typedef", "").strip()
    compiled: list[str] = []
    real = compiler.compile_text
    monkeypatch.setattr(
        compiler, "compile_text", lambda *given, **more: compiled.append(given[1]) or real(*given, **more)
    )
    kernel = Kernel(
        text.replace("typedef float", "struct S { using of = float; }; using").replace(
            "using real", "using real = S::of"
        ),
        "k",
    )
    assert compiled == []
    assert kernel.signature.parameters[0].type == "float32"
    assert compiled == ["k"]
    again = Kernel(kernel.text, "k")
    assert again.signature == kernel.signature
    assert compiled == ["k"]


@pytest.mark.parametrize(
    ("declared", "read"),
    [
        ("float* x, int n", "double* x, int n"),
        ("float* x, int n", "float* x, float n"),
        ("float* x, float n", "float* x, int n"),
        ("float* x, long long n", "float* x, double n"),
        ("float4* x, int n", "int4* x, int n"),
        ("float* x, float4 n", "float* x, int4 n"),
        ("void* x, int n", "float* x, int n"),
        ("unsigned* x, int n", "int* x, int n"),
        ("bool* x, int n", "unsigned char* x, int n"),
        ("__half* x, int n", "short* x, int n"),
        ("__half* x, int n", "__nv_bfloat16* x, int n"),
        ("float** x, int n", "float* x, int n"),
    ],
)
def test_a_parameter_of_another_kind_does_not_compile(declared: str, read: str) -> None:
    head = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n__global__ void k({}) {{}}"
    kernel = Kernel(head.format(declared), "k", 1)
    text = kernel.final_text({}).replace(f"void k({declared})", f"void k({read})")
    types = binary_for(text, "k", "sm_90").types
    with pytest.raises(
        CompileError, match=r"k.cu:3: k: `\w`: the launch passes an? .*, and the compiler says that it is `"
    ):
        kernel.compare(types, {})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("__global__ void k(const float* __restrict__ x, volatile int* y, long z, unsigned char c, char* d) {}", "k"),
        ("namespace a { namespace { __global__ void k(float* x, long long** y) {} } }", "k"),
        ("template <class... Ts> __global__ void k(float* y, Ts*... xs) {}", "k<int, double>"),
        (
            "template <class T, int N> __global__ void k(T* x, T v) {}\ntemplate <> __global__ void k<float, 2>(float* x, float v) {}",
            "k<float, 2>",
        ),
        ("__global__ void k(float* x) {}\n__global__ void k(int* x) {}", "k(int*)"),
        ('#define float4 Mine\n#define T int\nstruct Mine { int a; };\nextern "C" __global__ void k(T* x) {}', "k"),
        ("typedef float vec3[3];\n__global__ void k(const vec3* x, vec3* y) {}", "k"),
        ("__global__ void k(float2* x, uchar4* y, dim3 z, float4 v) {}", "k"),
    ],
)
def test_declarations_that_are_taken(text: str, name: str) -> None:
    kernel = Kernel(text, name, 32)
    compared(kernel)


def test_the_kernels_of_a_module_have_one_text() -> None:
    module = Module("__global__ void a(float* x) {}\n__global__ void b(int* y, double z) {}")
    texts = {module.kernel(name).final_text({}) for name in ("a", "b")}
    assert len(texts) == 1
    types = binary_for(texts.pop(), "a", "sm_90").types
    assert types == ("void (*)(float*)", "void (*)(int*, double)")
    for name in ("a", "b"):
        module.kernel(name).compare(types, {})
    with pytest.raises(CompileError, match="b: `z`: the launch passes a float64, .* `float`"):
        module.kernel("b").compare(("void (*)(float*)", "void (*)(int*, float)"), {})


def test_dtypes_of_the_table_have_kinds() -> None:
    for dtype in DTYPES:
        kernel = Kernel("__global__ void k(scalar_t* x) {}", "k", 1, dtypes=dtype)
        compared(kernel, scalar_t=dtype)


@pytest.mark.simulator
def test_an_output_whose_elements_share_memory_is_refused() -> None:
    kernel = Kernel(
        "__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }", "k", Threads("n")
    )
    base = np.zeros(9, "f4")
    views = [((6,), (0,)), ((3, 3), (4, 4)), ((3, 3), (8, 4))]
    with cupyops.simulate():
        for shape, strides in views:
            with pytest.raises(ValueError, match="`y` must have memory of its own for each element"):
                kernel(np.lib.stride_tricks.as_strided(base, shape, strides), 6)
        kernel(base[::2], 1)
        kernel(base.reshape(3, 3).T, 9)
        kernel(np.lib.stride_tricks.as_strided(base, (1, 3), (0, 4)), 3)
    assert base.tolist() == [1] * 9


@pytest.mark.simulator
def test_a_pointer_with_the_default_null_may_be_left_out() -> None:
    text = "__global__ void k(float* y, int n, const float* w = nullptr) { if (threadIdx.x < n) y[threadIdx.x] = w ? w[0] : 2.f; }"
    kernel, y = Kernel(text, "k", Threads("n")), np.zeros(2, "f4")
    with cupyops.simulate():
        for given, right in (((), 2), ((None,), 2), ((np.full(1, 3, "f4"),), 3)):
            kernel(y, 2, *given)
            assert y.tolist() == [right, right]
        with pytest.raises(TypeError, match="missing `n`"):
            kernel(y)


@pytest.mark.simulator
@pytest.mark.parametrize("name", ["self", "threads", "args", "kwargs", "kernel", "declared"])
def test_a_parameter_with_a_name_of_the_launch(name: str) -> None:
    text = f"__global__ void k(int* y, int {name}) {{ y[0] = {name}; }}"
    y = np.zeros(1, "i4")
    with cupyops.simulate():
        Kernel(text, "k")[1](y, **{name: 3})
    assert y.tolist() == [3]


@pytest.mark.parametrize(
    "words", ["// k(p, n) sets ones", 'void run(float* p) { k<<<1, 64>>>(p, 3); printf("k() done"); }']
)
def test_a_kernel_of_a_header_that_comments_and_strings_name(words: str) -> None:
    header = "__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }"
    kernel = Kernel(f'#include "k.cuh"\n{words}\n', "k", Threads("n"), headers={"k.cuh": header})
    assert kernel.signature.names == ("x", "n")


@pytest.mark.parametrize("name", ["FP32_", "_FP32_", "_fp32"])
@pytest.mark.parametrize("undefined", [False, True])
def test_a_macro_with_an_underscore_that_nothing_defines_chooses_a_type(name: str, undefined: bool) -> None:
    text = f"#ifdef {name}\nusing real = float;\n#else\nusing real = double;\n#endif\n{COPY}"
    options = (f"-U{name}",) if undefined else ()
    assert Kernel(text, "k", options=options).signature.parameters[0].type == "float64"
    assert Kernel(text, "k", options=(f"-D{name}",)).signature.parameters[0].type == "float32"


@pytest.mark.parametrize(
    "hidden", ["\u200b", "\ufeff", "\u00a0", "\u00ad", "\u202e", "\u2066", "\ufe0f", "\x07", "\\\n"]
)
def test_a_shape_comment_with_an_invisible_character_or_a_continued_line(hidden: str) -> None:
    for comment in (f"// {hidden}(n)", f"//{hidden} (n)", f"// ({hidden}n)"):
        text = f"__global__ void k(float* y, {comment}\n int n) {{}}"
        assert Kernel(text, "k", Threads("n")).signature.parameters[0].shape == ("n",)
