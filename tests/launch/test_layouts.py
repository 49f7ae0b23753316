"""The layouts of structs that a text tells."""

import ctypes
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
        "struct S { int (*f)(int); };",
        "struct S { float a[n]; };",
        "struct S {};",
        "struct B { int b; }; struct S : B { int a; };",
        "template <typename T> struct S { T a; };",
    ],
)
def test_a_struct_of_which_a_text_tells_no_layout(text: str) -> None:
    assert record(text) is None


@pytest.mark.simulator
def test_a_layout_that_the_compiler_does_not_have_is_refused() -> None:
    text = "struct S { float a; virtual void f() {} };\n__global__ void k(const S* s, float* y, int n) {}"
    kernel = Kernel(text, "k", Threads("n"))
    with cupyops.simulate(), pytest.raises(CompileError, match="the struct S of the text has another layout"):
        kernel(np.zeros((1, 4), np.uint8), np.zeros(1, np.float32), 1)


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
