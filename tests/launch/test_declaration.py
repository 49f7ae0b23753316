"""A declaration must agree with the types that arrays decide, the sizes that are counted, and the rest of the text."""

import pytest
import torch

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.launch.signature import Signature


def checked(declaration: str, sizes: tuple[str, ...] = (), text: str = "", **constants: int) -> None:
    text += f'extern "C" __global__ void k({declaration}) {{}}'
    Signature.parse(text, "k").check(sizes, constants)


@pytest.mark.parametrize(
    ("declaration", "sizes", "words"),
    [
        ("float* x", ("n",), "`n` counts threads or elements, but the kernel has no integer parameter of this name"),
        ("float* x, // (M, N)\n int M, int n", (), r"`N` counts .*; did you mean 'n'\?|`N` counts"),
        ("float* x, float n", ("n",), "`n` counts .* no integer parameter of this name"),
        ("float* x, Int64s<2> n", ("n",), "`n` counts .* no integer parameter of this name"),
        ("float* n", ("n",), "`n` counts .* no integer parameter of this name"),
        ("float* x, int unit", ("unit",), "`unit` counts threads, and its name is reserved .* rename it to `unit_`"),
        ("float* x, int lambda", ("lambda",), "`lambda` counts threads, .* rename it to `lambda_`"),
    ],
)
def test_sizes_must_be_integer_parameters(declaration: str, sizes: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=f"^k: {words}"):
        checked(declaration, sizes)


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        (
            "float* x, index_t n",
            "no array of the call decides the type 'index_t' of `n`.* options=\\('-Dindex_t=...',\\)",
        ),
        ("float* x, acc_t a", "`a` is an acc_t, which follows scalar_t, and no array is of scalar_t"),
        ("acc_t* a, float* x", "`a` is an acc_t, which follows scalar_t"),
        ("float* x, Int64s<NDIM> s", "the length of `s`, NDIM, must be a number or one of the kernel's constants"),
    ],
)
def test_types_that_no_call_could_fit(declaration: str, words: str) -> None:
    with pytest.raises(TypeError, match=f"^k: {words}"):
        checked(declaration)


def test_types_that_fit() -> None:
    checked(
        "const scalar_t* x, acc_t* mean /* (1) */, index_t* i, acc_t a, Int64s<NDIM> s, int n",
        ("n",),
        NDIM=2,
    )
    checked("float* x, // (N, 3, WIDTH)\n int N", WIDTH=4)


RESOLVED = {
    "#define real float\n": "float32",
    "#define real\t\\\n float\n": "float32",
    "typedef float real;\n": "float32",
    "typedef unsigned  int word;\nusing real = word;\n": "uint32",
    'extern "C" { using real = double; }\n': "float64",
    "namespace { using real = float; }\n": "float32",
    "#ifdef HALF\n#define real half\n#else\n#define real float\n#endif\n": "float32",
    "#include <cuda_fp16.h>\n"
    "#define BITS 16\n#if BITS == 16 && !defined(WIDE)\nusing real = __half;\n#else\nusing real = float;\n#endif\n": "float16",
    "#ifndef GUARD_H\n#define GUARD_H\ntypedef float real;\n#endif\n": "float32",
    "#ifdef __CUDACC__\ntypedef float real;\n#else\ntypedef double real;\n#endif\n": "float32",
    "#define real half\n#undef real\n#define real double\n": "float64",
    "#if __CUDA_ARCH__ > 800\nusing real = double;\n#endif\n": "float64",
    "typedef float other, real, *third;\n": "float32",
    "template <class... T> struct A { using of = double; };\ntypedef A<int[1], int[2]>::of real;\n": "float64",
}
NO_MEANINGS = [
    "#if 0\n#define real float\n#endif\n",
    "// typedef float real;\n",
    "#define real_of(x) x\n#define real(x) x\n",
    "struct A { using real = float; }; __device__ void f() { typedef float real; }\n",
    "namespace a { using real = float; }\n",
    "template <typename real> __device__ real twice(real x) { return x + x; }\n",
]
REAL = 'extern "C" __global__ void k(const real* x, real* y, int n) { if (n) y[0] = x[0]; }'


def test_a_type_that_stands_for_an_unknown_one_is_shown_with_the_compilers_words() -> None:
    kernel = Kernel("using real = Opaque;\n" + REAL, "k", Threads("n"))
    with pytest.raises(
        CompileError, match=r'k.cu:1: error: identifier "Opaque" is undefined\n  using real = Opaque;\n +\^'
    ):
        kernel.signature  # noqa: B018 - raises


def test_a_type_that_a_macro_declares_is_compared_when_the_kernel_is_compiled() -> None:
    """The text seems to declare no such type, so that the arrays decide it."""
    text = f"#define DECLARE(name) typedef double name\nnamespace a {{ DECLARE(real); {REAL} }}"
    kernel = Kernel(text, "k", Threads("n"))
    with pytest.raises(
        CompileError, match=r"k.cu:2: k: `x`: the launch passes an array of float32, .* is `double const\*`"
    ):
        kernel.compare(
            compile_text(kernel.final_text({"real": "float32"}), "k", "sm_90", OPTIONS).types, {"real": "float32"}
        )


def test_a_type_that_depends_on_the_gpu_is_compared_when_the_kernel_is_compiled() -> None:
    text = "#if __CUDA_ARCH__ > 800\nusing real = double;\n#else\nusing real = float;\n#endif\n" + REAL
    kernel = Kernel(text, "k", Threads("n"))
    assert kernel.signature.parameters[0].type == "float64"
    old = compile_text(kernel.final_text({}), "k", "sm_80", OPTIONS)
    with pytest.raises(
        CompileError, match="`x`: the launch passes an array of float64, .* says that it is `float const\\*`"
    ):
        kernel.compare(old.types, {})


@pytest.mark.parametrize("where", ["text", "header", "header of a header"])
@pytest.mark.parametrize("meaning", RESOLVED)
def test_a_type_that_text_or_header_decides_is_read(meaning: str, where: str) -> None:
    headers = {
        "text": {},
        "header": {"a.cuh": meaning},
        "header of a header": {"a.cuh": '#include "b.cuh"\n', "b.cuh": meaning},
    }
    text = meaning if where == "text" else '#include "a.cuh"\n'
    found = Kernel(text + REAL, "k", Threads("n"), headers=headers[where]).signature
    assert [p.type for p in found.parameters[:2]] == [RESOLVED[meaning]] * 2


def test_what_stands_behind_the_kernel_does_not_count() -> None:
    assert Kernel(f"{REAL}\n#define n m\n", "k", Threads("n")).signature.names == ("x", "y", "n")


def test_macros_of_options_and_constants_decide() -> None:
    text = (
        "#ifdef WIDE\n#define real double\n#elif BITS == 16\n#define real __half\n#else\n#define real float\n#endif\n"
        + REAL
    )
    for options, constants, dtype in (
        ((), {}, "float32"),
        (("-DWIDE",), {}, "float64"),
        (("-DBITS=16",), {}, "float16"),
        (("--define-macro=BITS=8",), {}, "float32"),
        ((), {"BITS": 16}, "float16"),
    ):
        kernel = Kernel(text, "k", Threads("n"), options=options, constants=constants)
        assert kernel.signature.parameters[0].type == dtype
    restrict = 'extern "C" __global__ void k(TYPE* RESTRICT x, int n) {}'
    assert Kernel(restrict, "k", Threads("n"), options=("-DTYPE=float", "-DRESTRICT=__restrict__")).signature.names == (
        "x",
        "n",
    )


@pytest.mark.parametrize("text", NO_MEANINGS)
def test_another_of_that_name_is_no_matter(text: str) -> None:
    for headers in ({}, {"a.cuh": text}):
        Kernel(('#include "a.cuh"\n' if headers else text) + REAL, "k", Threads("n"), headers=headers)


def test_a_namespace_of_the_kernel_counts() -> None:
    found = Kernel(f"namespace a {{ using real = float; }} namespace a {{ {REAL} }}", "k", Threads("n"))
    assert found.signature.parameters[0].type == "float32"
    Kernel(f"namespace a {{ using real = float; }} namespace b {{ {REAL} }}", "k", Threads("n"))


@pytest.mark.parametrize(
    "filename", ["a\n#define X", "a\0b", "x" * 5000, ".", "..", "\ud800", 'a"b.cu', "a\\b.cu", "", "\u202e.cu"]
)
def test_a_file_name_that_a_directive_cannot_have_is_refused(filename: str) -> None:
    """It would be a line of its own in the source that is compiled."""
    with pytest.raises(ValueError, match="^k: `filename` must be the name of a file"):
        Kernel(REAL.replace("real", "float"), "k", Threads("n"), filename=filename)


@pytest.mark.parametrize(
    ("of", "dtype", "words"),
    [
        ("__nv_fp8_e4m3", "float8_e4m3fn", r"must have dtype uint8, got float8_e4m3fn: pass x.view\(torch.uint8\)"),
        ("scalar_t", "float8_e5m2", r"got float8_e5m2: pass x.view\(torch.uint8\)"),
        ("cuFloatComplex", "complex64", r"must have dtype float32, got complex64: pass torch.view_as_real\(x\)"),
        ("scalar_t", "complex128", r"got complex128: pass torch.view_as_real\(x\)"),
    ],
)
def test_a_dtype_that_no_kernel_has_is_refused_with_the_view_to_pass(of: str, dtype: str, words: str) -> None:
    head = "#include <cuda_fp8.h>\n#include <cuComplex.h>\n"
    kernel = Kernel(f"{head}__global__ void k(const {of}* x, int n) {{}}", "k", Threads("n"))
    with cupyops.simulate(), pytest.raises(TypeError, match=words):
        kernel(torch.zeros(1, dtype=getattr(torch, dtype)), 1)


def test_the_bytes_of_8_bit_floats_have_the_types_of_cudas_header() -> None:
    names = ("__nv_fp8_storage_t", "__nv_fp8x2_storage_t", "__nv_fp8x4_storage_t")
    declared = ", ".join(f"const {name}* x{i}" for i, name in enumerate(names))
    kernel = Kernel(f"#include <cuda_fp8.h>\n__global__ void k({declared}, int n) {{}}", "k", Threads("n"))
    assert [p.type for p in kernel.signature.parameters[:3]] == ["uint8", "uint16", "uint32"]
