"""What a text declares outside its kernels, found without a compiler."""

import pytest

from cupyops import Kernel
from cupyops.compile.cuda_text import Code
from cupyops.compile.file_scope import DeviceVariable, launches_from_device, variables

TEXT = """
#pragma once
#ifndef GUARD
#define GUARD
__device__ int guarded;
#endif
#ifdef SOMETIMES
__device__ int sometimes;
#endif
// __device__ int comment;
const char* s = "__device__ int string;";
__constant__ __align__(16) float2 points[N][2] = {{1, 2}, {3, 4}}, other;
static __device__ unsigned long long int seed = (1ull << 40), *where[3];
extern "C" __device__ double linked;
extern __device__ float sized[4];
extern __device__ float unsized[];
namespace a { namespace b { __constant__ const char letter = ';'; static __managed__ int mine; } }
struct S { static __device__ int member; };
template <typename T> __device__ T shared_by_none;
__device__ int twice(int x);
__device__ inline int twice(int x) { __shared__ int inner; return 2 * x; }
__device__ int (*pointer)(int) = twice;
extern "C" __global__ void k(float* y) { y[0] = guarded; }
"""


def test_variables_of_namespaces_are_found_and_nothing_else() -> None:
    found = variables(TEXT)
    assert list(found) == [
        "guarded",
        "points",
        "other",
        "seed",
        "where",
        "linked",
        "sized",
        "a::b::letter",
    ]
    assert found["points"] == DeviceVariable("points", "points", "float2", False, ("N", "2"))
    assert found["other"] == DeviceVariable("other", "other", "float2", False, ())
    assert found["where"] == DeviceVariable("where", "where", "unsigned long long int", True, ("3",))
    assert found["a::b::letter"].symbol == "_ZN1a1b6letterE"
    assert not variables("__global__ void k() {}")


def test_the_scopes_of_functions_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes as long as the scan, and nearly all that a text declares for the device are functions."""
    places: list[int] = []
    monkeypatch.setattr(Code, "scope", lambda code, place: places.append(place) or ())
    text = "__device__ int f(int x) { return x; }\n__align__(8) __device__ __forceinline__ int g(int x) { return x; }\n"
    assert not variables(text)
    assert not places
    assert list(variables(text + "__device__ int twice;")) == ["twice"]
    assert places == [len(text)]


def test_the_symbols_are_those_of_the_compiler() -> None:
    from cupyops.compile.compiler import compile_text

    text = "namespace a { namespace b { __constant__ float letter; __device__ int mine; } } static __device__ int own; __device__ int top[2];"
    text += 'extern "C" __global__ void k(float* y) { y[0] = a::b::letter + a::b::mine + top[1] + own++; a::b::mine = 1; top[1] = 2; }'
    compiled = compile_text(text, "k", "compute_80", ()).code.decode()
    assert all(f" {v.symbol}" in compiled for v in variables(text).values()), compiled


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("__global__ void k() {\n  k<<<1, 1>>>();\n}", 2),
        ("__device__ void f() {\n\n  k<<<1, 1>>>();\n}\n__global__ void k() {}", 3),
        ("__global__ void k() { /* k<<<1, 1>>>() */ }", None),
        ("__global__ void k() {}\nvoid host() { k<<<1, 1>>>(); }", None),
        ("__device__ int x;\nvoid host() { k<<<1, 1>>>(); }", None),
    ],
)
def test_a_launch_from_device_code_is_told_from_one_of_the_host(body: str, line: int | None) -> None:
    assert launches_from_device(body) == line


def test_dynamic_parallelism_is_declined_with_the_line() -> None:
    text = 'extern "C" __global__ void k(float* y) {\n    k<<<1, 1>>>(y);\n}'
    with pytest.raises(
        ValueError, match=r"k: line 2 launches a kernel from device code \(<<<>>>\). Dynamic parallelism is not"
    ):
        Kernel(text, "k")
