"""The layouts of structs, which the compiler reports."""

import ctypes
import secrets
from typing import Any

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.compile import compiler


def record(text: str, name: str = "S", **defines: int) -> Any:
    kernel = Kernel(f"{text}\n__global__ void k(const {name}* s, int n) {{}}", "k", 1, constants=defines)
    element = kernel.signature.parameters[0].element
    return None if element is None else element.record


class Mixed(ctypes.Structure):
    _fields_ = (
        ("a", ctypes.c_char),
        ("b", ctypes.c_double),
        ("c", ctypes.c_short * 3),
        ("d", ctypes.c_void_p),
        ("e", ctypes.c_bool),
        ("f", ctypes.c_ulonglong),
        ("g", ctypes.c_uint16 * 2 * 4),
    )


def test_a_layout_is_that_of_c() -> None:
    text = "struct S { char a; double b; short c[3]; float* __restrict__ d; bool e; unsigned long long int f; uint16_t g[4][2]; };"
    found = record(text)
    assert found.itemsize == ctypes.sizeof(Mixed)
    assert {name: found.fields[name][1] for name in found.names} == {
        name: getattr(Mixed, name).offset for name, _ in Mixed._fields_
    }
    assert found["g"].shape == (4, 2)


@pytest.mark.parametrize(
    ("text", "offsets", "size"),
    [
        ("struct S { int a, *b, c[2]; };", [0, 8, 16], 24),
        ("struct S { char a; float4 b; uchar3 c; };", [0, 16, 32], 48),
        ("struct __align__(16) S { float a; };", [0], 16),
        ("typedef struct __align__(8) { float a; } S;", [0], 8),
        ("#include <cuda_fp16.h>\ntypedef struct Tag { half a; const volatile int b; } S;", [0, 4], 8),
        ("#define N 3\ntypedef float real;\nstruct S { real a[N]; real b[M]; };", [0, 12], 20),
        ("enum E { A }; struct I { char a; E e; }; struct S { char b; I i[2]; };", [0, 4], 20),
        (
            "struct S { public: float a; S() : a(1) { a = 2; } void f(int n) const; static const int N = 3; int b = 4; };",
            [0, 4],
            8,
        ),
        ("struct S { float a = (1 + 1); float operator=(float); float operator()(int); };", [0], 4),
        ("class S { public: int a; S(int n); private: void f(); };", [0], 4),
        ("class alignas(16) S { public: int a; };", [0], 16),
        ('struct __attribute__((visibility("default"), aligned(16))) S { int a; };', [0], 16),
        ("#define API\nclass API S final { public: int a; };", [0], 4),
        ("class S { int a; public: double b; int get() { return a; } };", [0, 8], 16),
        ("#ifdef M\nstruct S { int a; };\n#else\nstruct S { double a, b; };\n#endif", [0], 4),
        ("struct S { int a;\n#if M == 2\n float* b;\n#else\n char b;\n#endif\n char c; };", [0, 8, 16], 24),
        # By the Itanium C++ ABI: members lie in the padding after a base that is not a POD, and not after a POD.
        ("struct B { double a; char b; }; struct S : public B { char c; };", [0, 8, 16], 24),
        ("struct B { double a; char b; B(); }; struct S : B { char c; };", [0, 8, 9], 16),
        ("struct A { double a; }; struct B : A { char b; }; struct S : B { char c; };", [0, 8, 9], 16),
        ("struct E { void* operator new(size_t n); }; struct S : E { char a; int b; };", [0, 4], 8),
        ("class E {}; class A : public E { int* a; }; struct S : public E { A b; char c; };", [8, 16], 24),
        ("struct S {};", [], 1),
        ("struct B {}; struct S : B {};", [], 1),
        ("template <class T> struct B { T b; }; struct S : B<short> { char a; };", [0, 2], 4),
        ("struct S { char c; int (*f)(int); };", [0, 8], 16),
        ("struct S { int a; struct { char b; } c; union { int d; char e; }; };", [0, 4, 8, 8], 12),
    ],
)
def test_the_members_of_a_struct(text: str, offsets: list[int], size: int) -> None:
    found = record(text, M=2)
    assert ([found.fields[name][1] for name in found.names], found.itemsize) == (offsets, size)


@pytest.mark.parametrize(
    "text",
    [
        "struct S { int a : 3; };",
        "struct S { float& a; };",
        "struct B { int b; }; struct S : virtual B { int a; };",
        "struct S { __device__ virtual void f(); };",
        "struct B { int a; }; struct S : B { int a; };",
        # Without private data, the last member would lie elsewhere.
        "class B { double a; char b; }; struct S : public B { char c; };",
    ],
)
def test_a_struct_without_a_layout(text: str) -> None:
    assert record(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("struct S { Other a; };", 'identifier "Other" is undefined'),
        ("struct S { float a[n]; };", 'identifier "n" is undefined'),
        ("struct S : Unknown { int a; };", "not a class or struct name"),
        ("template <typename T> struct S { T a; };", "argument list for class template"),
        ("typedef lib::Matrix<float, 4, 1> S;", "name followed by"),
    ],
)
def test_a_struct_that_is_no_type_is_shown_with_the_compilers_words(text: str, words: str) -> None:
    with pytest.raises(CompileError, match=f"k.cu:[12]: error: {words}"):
        record(text)


@pytest.mark.parametrize(
    ("text", "offsets", "size"),
    [
        ("struct B { int b; }; class S : B { int a; };", [0, 4], 8),
        ("struct B { int b; }; struct S : private B { int a; };", [0, 4], 8),
        ("#pragma pack(push, 1)\nstruct S { char a; float b; };\n#pragma pack(pop)", [0, 1], 5),
        ("struct S { int b; __device__ virtual void f() {} };", [8], 16),
        ("#if __CUDA_ARCH__ > 800\nstruct S { int a; };\n#else\nstruct S { int a; float b; };\n#endif", [0], 4),
        ("#define FIELD(name) float name\nstruct S { FIELD(a); FIELD(b)[2]; };", [0, 4], 12),
        ("template <int N> struct A { float a[N]; }; struct S : A<sizeof(double)> { int c; };", [0, 32], 36),
        (
            "template <class...> struct V; "
            "template <class T, class... R> struct V<T, R...> : V<R...> { T t; }; template <> struct V<> { int n; }; using S = V<double>;",
            [0, 8],
            16,
        ),
    ],
)
def test_layouts_that_the_compiler_alone_knows(text: str, offsets: list[int], size: int) -> None:
    found = record(text)
    assert ([found.fields[name][1] for name in found.names], found.itemsize) == (offsets, size)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("struct S { float* x; int n, loop, m; };\ntemplate <class T, int loop> __global__ void k(const S* s) {}", "loop"),
        ("#define index(i, j) ((i) * 4 + (j))\nstruct S { float* x; int index; };", "index"),
        ("#define k 3\n#undef k\nstruct S { float* x; int k, m; };", "k"),
        ("#ifdef _WIN32\n#define n 3\n#endif\nstruct S { float* x; int n, m; };", "n"),
        ("#include <float.h>\nstruct S { int n; __device__ float* end() { if (n == INT_MAX) return NULL; return 0; }\n"
         " __device__ float least() { if (n) return FLT_EPSILON; return M_PI; } };", "n"),
    ],
)  # fmt: skip
def test_members_with_names_of_macros_and_of_parameters_of_the_template(text: str, name: str) -> None:
    if "__global__" in text:
        element = Kernel(text, "k<float, 1>", 1).signature.parameters[0].element
        assert element is not None
        found = element.record
    else:
        found = record(text)
    assert name in found.names
    assert found.names[-1] in ("m", name)


def test_a_struct_of_many_members_among_many_words() -> None:
    members = " ".join(f"int a_rather_long_name_of_a_member_{i};" for i in range(60))
    others = " ".join(f"int of_another_{i};" for i in range(300))
    found = record(f"struct Other {{ {others} }}; struct S {{ {members} Other* other; }};")
    assert (len(found.names), found.itemsize) == (61, 248)


def test_structs_within_structs_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = compiler.compile_text
    monkeypatch.setattr(
        compiler, "compile_text", lambda *given, **more: compiled.append(given[1]) or real(*given, **more)
    )
    inner = "".join(f"int4 a{i}; struct {{ float2 b{i}, c{i}; }} d{i};" for i in range(5))
    found = record(f"// {secrets.token_hex(4)}\nstruct S {{ {inner} }};")
    assert found.fields["d4"][0].fields["c4"][0].names == ("x", "y")
    assert len(compiled) == 3


def test_a_struct_that_is_too_large_for_numpy_is_a_pointer_to_anything() -> None:
    text = "struct G { unsigned n; long long buffer[1 << 29]; };\n__global__ void k(G* g, int n) {}"
    assert Kernel(text, "k", 1).signature.parameters[0].untyped


@pytest.mark.simulator
def test_private_data_of_a_class_by_value() -> None:
    text = (
        "class Inner { short a, b[2] = {1, 2}; protected: float* c; public: __device__ int last() const { return b[1]; } };\n"
        "class Box { Inner inner; double scale; public: char by; __device__ double get() const { return scale + inner.last(); } };\n"
        "__global__ void k(Box box, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = box.get() * box.by; }"
    )
    kernel, y = Kernel(text, "k", Threads("n")), np.zeros(3, np.float32)
    with cupyops.simulate():
        kernel(((4, (5, 6), 0), 1.5, 2), y, 3)
        assert y.tolist() == [15.0] * 3


@pytest.mark.simulator
def test_a_tuple_is_a_struct_by_value() -> None:
    text = "struct S { int a; float2 b; };\n__global__ void k(S s, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = s.a + s.b.y; }"
    kernel, y = Kernel(text, "k", Threads("n")), np.zeros(3, np.float32)
    with cupyops.simulate():
        kernel((1, (2, 3.5)), y, 3)
        assert y.tolist() == [4.5] * 3
        for wrong in ((1,), (1, 2, 3, 4), 1, "a", (1, ("x", 3))):
            with pytest.raises(TypeError, match="`s` must be a S: one element of the dtype .*, a tuple of its fields"):
                kernel(wrong, y, 3)
