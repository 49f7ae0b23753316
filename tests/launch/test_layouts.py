"""The layouts of structs that a text tells."""

import ctypes
import re
from typing import Any

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.launch.layouts import struct_layouts


def record(text: str, name: str = "S", **defines: str) -> Any:
    kernel = f"{text}\n__global__ void k(const {name}* s, int n) {{}}"
    found = struct_layouts("k", None, kernel, {}, defines)
    return found[name].record if name in found else None


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
        ("typedef struct { float a; } __align__(8) S;", [0], 8),
        ("typedef struct Tag { half a; const volatile int b; } S;", [0, 4], 8),
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
        ("class B { double a; char b; }; struct S : public B { char c; };", [0, 8, 9], 16),
        ("#ifdef M\nstruct S { int a; };\n#else\nstruct S { double a, b; };\n#endif", [0], 4),
        ("struct S { int a;\n#if M == 2\n float* b;\n#else\n char b;\n#endif\n char c; };", [0, 8, 16], 24),
        # By the Itanium C++ ABI: members lie in the padding behind a base that is no POD, and not behind a POD.
        ("struct B { double a; char b; }; struct S : public B { char c; };", [0, 8, 16], 24),
        ("struct B { double a; char b; B(); }; struct S : B { char c; };", [0, 8, 9], 16),
        ("struct A { double a; }; struct B : A { char b; }; struct S : B { char c; };", [0, 8, 9], 16),
        ("struct E { void* operator new(size_t n); }; struct S : E { char a; int b; };", [0, 4], 8),
        ("class M {}; class A : public M { int* a; }; struct S : public M { A b; char c; };", [8, 16], 24),
        ("struct S {};", [], 1),
        ("struct B {}; struct S : B {};", [], 1),
        ("template <class T> struct B { T b; }; struct S : B<short> { char a; };", [0, 2], 4),
        ("struct S { char c; int (*f)(int); };", [0, 8], 16),
        ("struct S { int a; struct { char b; } c; union { int d; char e; }; };", [0, 4, 8, 8], 12),
    ],
)
def test_the_members_of_a_struct(text: str, offsets: list[int], size: int) -> None:
    found = record(text, M="2")
    assert ([found.fields[name][1] for name in found.names], found.itemsize) == (offsets, size)


@pytest.mark.parametrize(
    "text",
    [
        "struct S { int a : 3; };",
        "struct S { float& a; };",
        "struct S { Other a; };",
        "struct S { float a[n]; };",
        "struct B { int b; }; struct S : virtual B { int a; };",
        "struct S { virtual void f(); };",
        "struct B { int b; }; struct S : B { int a; virtual void f(); };",
        "struct B { int a; }; struct S : B { int a; };",
        "struct S : Unknown { int a; };",
        "struct B { int b; }; class S : B { int a; };",
        "struct B { int b; }; struct S : private B { int a; };",
        "template <typename T> struct S { T a; };",
        "#if __CUDA_ARCH__ > 800\nstruct S { int a; };\n#else\nstruct S { int a; float a; };\n#endif",
    ],
)
def test_a_struct_of_which_a_text_tells_no_layout(text: str) -> None:
    assert record(text) is None


ALIASES = {
    "typedef lib::Matrix<float, 4, 1> Point;": "lib::Matrix<float, 4, 1>",
    "namespace lib { using Point = Absent<2>; }\nusing lib::Point;": "Absent<2>",
}


@pytest.mark.parametrize("before", ALIASES)
def test_a_pointer_to_a_class_of_an_absent_header_under_an_alias(before: str) -> None:
    kernel = Kernel(f"{before}\n__global__ void k(const Point* x, float* y, int n) {{}}", "k", Threads("n"))
    assert kernel.signature.parameters[0].untyped
    words = re.escape(f"parameter `x` has type '{ALIASES[before]}', for which no Python value can be passed")
    with pytest.raises(TypeError, match=words):
        Kernel(f"{before}\n__global__ void k(Point x, float* y, int n) {{}}", "k", Threads("n"))


@pytest.mark.simulator
def test_a_layout_that_the_compiler_does_not_have_is_refused() -> None:
    text = "#pragma pack(push, 1)\nstruct S { char a; float b; };\n#pragma pack(pop)\n__global__ void k(const S* s, float* y, int n) {}"
    kernel = Kernel(text, "k", Threads("n"))
    with cupyops.simulate(), pytest.raises(CompileError, match="the struct S of the text has another layout"):
        kernel(np.zeros((1, 8), np.uint8), np.zeros(1, np.float32), 1)


@pytest.mark.simulator
def test_private_data_of_a_class_by_value() -> None:
    text = (
        "class Inner { short a, b[2] = {1, 2}; protected: float* c; public: __device__ int last() const { return b[1]; } };\n"
        "class Box { Inner inner; double scale; public: char by; __device__ double get() const { return scale + inner.last(); } };\n"
        "__global__ void k(Box box, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = box.get() * box.by; }"
    )
    kernel, y = Kernel(text, "k", Threads("n")), np.zeros(3, np.float32)
    assert "CUPYOPS_OFFSET_OF(Box, by)" in kernel.final_text({})
    assert "scale)" not in kernel.final_text({}).partition("cupyops/structs")[2]
    with cupyops.simulate():
        kernel(((4, (5, 6), 0), 1.5, 2), y, 3)
        assert y.tolist() == [15.0] * 3
    wrong = Kernel(
        text, "k", Threads("n"), structs={"Box": np.dtype([("inner", "V16"), ("scale", "f8"), ("by", "i2")])}
    )
    with (
        cupyops.simulate(),
        pytest.raises(CompileError, match="(?s)the struct Box of the text has another layout.*by .*<-"),
    ):
        wrong(np.zeros(1, wrong.source.structs["Box"].record)[0], y, 3)


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
