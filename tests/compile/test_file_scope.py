"""The declarations of a text outside its kernels, found without a compiler."""

import numpy as np
import pytest

import autograd_bridge  # noqa: F401  declares the kernels
import cupyops
from cupyops import CompileError, Kernel
from cupyops.compile import file_scope
from cupyops.compile.cuda_text import Code
from cupyops.compile.file_scope import DeviceVariable, variables
from cupyops.launch.kernel import all_kernels

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
    assert found["points"] == DeviceVariable("points", "points", "float2", False, ("N", "2"), constant=True)
    assert found["other"] == DeviceVariable("other", "other", "float2", False, (), constant=True)
    assert found["where"] == DeviceVariable("where", "where", "unsigned long long int", True, ("3",))
    assert found["a::b::letter"].symbol == "_ZN1a1b6letterE"
    assert not variables("__global__ void k() {}")


def test_the_scopes_of_functions_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes as long as the scan, and nearly all device declarations of a text are functions."""
    places: list[int] = []
    monkeypatch.setattr(Code, "scope", lambda code, place: places.append(place) or ())
    text = "__device__ int f(int x) { return x; }\n__align__(8) __device__ __forceinline__ int g(int x) { return x; }\n"
    assert not variables(text)
    assert not places
    assert list(variables(text + "__device__ int twice;")) == ["twice"]
    assert places == [len(text)]


def test_the_final_text_of_a_kernel_without_variables_is_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a final text takes milliseconds for each kernel that is loaded."""
    kernels = {kernel.name: kernel for kernel in all_kernels()}
    texts = [kernel.final_text(next(iter(kernel.type_choices()))) for kernel in kernels.values()]
    assert len(texts) > 20
    monkeypatch.setattr(file_scope, "scan", lambda text: pytest.fail("a scan"))
    assert not any(map(variables, texts))


@pytest.mark.parametrize(
    "declaration",
    [
        "__device__ __align__(16) float found[4];",
        "__device__ alignas(16) float found;",
        "__device__ /* f( */ float found;",
        "__device__ float // f(\n found;",
        "__device__ float found = f(1);",
        "__device__ float found[(3)];",
        "__device__ float found = {f(1)};",
        "__device__\n#define F(x) x\n float found;",
    ],
)
def test_a_variable_is_no_function_for_a_parenthesis_nearby(declaration: str) -> None:
    text = f"__device__ float f(int x) {{ return x; }}\n{declaration}\n__device__ float g(int x) {{ return x; }}\n"
    assert list(variables(text)) == ["found"]


def test_the_symbols_are_those_of_the_compiler() -> None:
    from cupyops.compile.compiler import compile_text

    text = "namespace a { namespace b { __constant__ float letter; __device__ int mine; } } static __device__ int own; __device__ int top[2];"
    text += 'extern "C" __global__ void k(float* y) { y[0] = a::b::letter + a::b::mine + top[1] + own++; a::b::mine = 1; top[1] = 2; }'
    compiled = compile_text(text, "k", "compute_80", ()).code.decode()
    assert all(f" {v.symbol}" in compiled for v in variables(text).values()), compiled


@pytest.mark.simulator
def test_dynamic_parallelism_is_declined_with_the_line() -> None:
    text = 'extern "C" __global__ void k(float* y) {\n    k<<<1, 1>>>(y);\n}'
    with (
        cupyops.simulate(),
        pytest.raises(CompileError, match=r"k\.cu:2: error[\s\S]*device-side kernel launch"),
    ):
        Kernel(text, "k")[1](np.ones(1, np.float32))
