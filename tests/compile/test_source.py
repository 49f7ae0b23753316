"""From an author's text to the text for NVRTC: types, constants, headers, and line numbers."""

import gc
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import cupyops
import kernels_cu
from cupyops import Kernel, Threads
from cupyops.compile.project_headers import read
from cupyops.compile.pytorch_names import foreign, with_pytorch
from cupyops.compile.source import assemble
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError

ACC = {"float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}


def prelude(text: str) -> str:
    return text.partition("#line")[0]


def error_of(text: str) -> str:
    """Returns the error of compiling this final text."""
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import compile_text

    with pytest.raises(CompileError) as caught:
        compile_text(text, "k<float32>", "sm_80", ())
    return str(caught.value)


# Prelude


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_of_each_dtype(dtype: str) -> None:
    text = prelude(assemble("", "k.cu", {"scalar_t": dtype}, {}))
    c_type = DTYPES[dtype].c_type
    assert f"typedef {c_type} scalar_t;" in text
    assert f"typedef {ACC.get(dtype, c_type)} acc_t;" in text
    assert ("#include <cuda_fp16.h>" in text) == (dtype == "float16")
    assert ("#include <cuda_bf16.h>" in text) == (dtype == "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_c_types_have_the_size_and_sign_that_arrays_have(dtype: str) -> None:
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import compile_text

    entry = DTYPES[dtype]
    signed = dtype != "bool" and not dtype.startswith("uint")
    text = (
        f"static_assert(sizeof(scalar_t) == {entry.itemsize}, "
        '"");'
        f'static_assert((float(scalar_t(-1)) < 0) == {str(signed).lower()}, "");'
        f'static_assert(sizeof(acc_t) == {DTYPES[entry.acc].itemsize}, "");'
    )
    if dtype in ("float16", "bfloat16"):
        text = text.partition('"");')[0] + '"");'  # their conversions are not constant expressions
    compile_text(assemble(text, "k.cu", {"scalar_t": dtype}, {}), "k", "compute_80", ())


def test_acc_t_follows_scalar_t_and_no_other_type() -> None:
    text = prelude(assemble("", "k.cu", {"index_t": "int32", "scalar_t": "bfloat16", "other_t": "float64"}, {}))
    assert re.findall(r"typedef .*;", text) == [
        "typedef int index_t;",
        "typedef __nv_bfloat16 scalar_t;",
        "typedef double other_t;",
        "typedef float acc_t;",
    ]
    assert "acc_t" not in prelude(assemble("", "k.cu", {"index_t": "int32"}, {}))


def test_constants_are_macros_before_the_text() -> None:
    text = assemble("int a[N];", "k.cu", {}, {"N": 3, "NEGATIVE": -1})
    assert text.index("#define N 3\n") < text.index("int a[N];")
    assert "#define NEGATIVE -1\n" in text


# Headers


def test_a_header_is_spliced_where_it_is_first_included_and_nowhere_else() -> None:
    headers = {
        "a.cuh": '#ifndef A\n#define A\n#include "b.cuh"\nint a;\n#endif\n',
        "b.cuh": "#pragma once\nint b;\n",
    }
    text = assemble(
        'int before;\n#include "a.cuh"\n#include "b.cuh"\n#include "a.cuh"\nint behind;', "k.cu", {}, {}, headers
    )
    code = [line for line in text.partition('#line 1 "k.cu"')[2].split("\n") if line.strip() and line[0] != "#"]
    assert code == ["int before;", "int b;", "int a;", "int behind;"]
    assert "pragma" not in text


def test_headers_of_similar_names_have_guards_of_their_own() -> None:
    """A header in code of which the compiler decides is included again after that code, and has a guard."""
    names = ("a-b.h", "a_b.h", "a/b.h")
    headers = {name: f"#pragma once\nint v{i};\n" for i, name in enumerate(names)}
    includes = "".join(f'#include "{name}"\n' for name in names)
    text = assemble(f"#if __CUDA_ARCH__ < 500\n{includes}#endif\n{includes}", "k.cu", {}, {}, headers)
    assert len(set(re.findall(r"#ifndef (CUPYOPS_ONCE_\w+)", text))) == 3
    assert [text.count(f"int v{i};") for i in range(3)] == [2, 2, 2]


def test_headers_that_include_each_other_end() -> None:
    headers = {"a.cuh": '#include "b.cuh"\nint a;', "b.cuh": '#include "a.cuh"\nint b;'}
    text = assemble('#include "a.cuh"', "k.cu", {}, {}, headers)
    assert (text.count("int a;"), text.count("int b;")) == (1, 1)


def test_shipped_headers_are_known_and_can_be_replaced() -> None:
    text = '#include "scalar.cuh"\n'
    assert kernels_cu.headers()["scalar.cuh"].splitlines()[0] in assemble(text, "k.cu", {}, {})
    mine = assemble(text, "k.cu", {}, {}, {"scalar.cuh": "int mine;"})
    assert "int mine;" in mine
    assert "struct Scalar" not in mine


def test_an_unknown_header_is_left_out_with_a_warning() -> None:
    """A kernel may need nothing of it."""
    text, headers = '#include "mine.cuh"\nint k;', {"mine.cuh": 'int a;\n#include "none.cuh"\nint b;'}
    with pytest.warns(
        UserWarning,
        match=r'^mine.cuh: #include "none.cuh": no such header is known, so it is left out; did you mean .mine.cuh.\?; if',
    ):
        found = assemble(text, "k.cu", {}, {}, headers)
    assert "include" not in found
    assert '#line 3 "mine.cuh"\nint b;' in found


def test_the_compiler_decides_whether_an_unknown_header_is_included() -> None:
    text = '#if __CUDA_ARCH__ < 500\n#include "none.h"\n#endif\nint k;'
    assert text in assemble(text, "k.cu", {}, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "#ifdef FAST\n__global__ void k() {}\n#endif",
            "and a condition of the text reads FAST, which the header may define; give its text as",
        ),
        (
            "#ifdef FAST\n__device__ int f();\n#else\n__device__ int f();\n#endif\n__global__ void k() { f(); }",
            "and a condition of the text reads FAST, which",
        ),
        (
            "#if defined(__CUDACC__) && WIDTH > 2\n#elif OTHER\n__global__ void k() {}\n#endif",
            "and a condition of the text reads WIDTH, which",
        ),
        (
            "#define WIDTH 1\n#if WIDTH > 2\n#elif OTHER\n#define USED 1\n#endif\nint a = USED;",
            "and a condition of the text reads OTHER, which",
        ),
    ],
)
def test_an_unknown_header_that_may_define_a_macro_of_a_condition_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=rf'^k.cu: #include "none.h": no such header is known, {re.escape(words)}'):
        assemble(f'#include "none.h"\n{text}', "k.cu", {}, {})


def test_a_condition_that_a_text_decides_says_nothing_of_an_unknown_header() -> None:
    conditions = (
        "#ifndef K_CU\n#define K_CU\n#endif\n#if 0\n#ifdef FAST\n#endif\n#endif\n#if __CUDA_ARCH__ >= 800\n#endif\n"
        "#if defined(_MSC_VER) && FAST > 2\n#endif\n"
    )
    with pytest.warns(UserWarning, match="is left out"):
        assemble(f'#include "none.h"\n{conditions}#ifdef _MSC_VER\n#endif', "k.cu", {}, {})


@pytest.mark.parametrize(
    "condition",
    [
        "#ifdef FAST\n#include <fast.h>\n#define FAST_WIDTH 2\n#endif",
        "#ifdef USE_ROCM\nint a;\n#endif",
        "#if defined(WITH_HIP) || WITH_AMD\nint a;\n#endif",
    ],
)
def test_a_condition_on_which_no_code_depends_says_nothing_of_an_unknown_header(condition: str) -> None:
    with pytest.warns(UserWarning, match="is left out"):
        assemble(f'#include "none.h"\n{condition}', "k.cu", {}, {})


@pytest.mark.parametrize("option", ["-UFAST", "--undefine-macro=FAST", "-DFAST=0"])
def test_an_option_decides_a_condition_for_an_unknown_header(option: str) -> None:
    with pytest.warns(UserWarning, match="is left out"):
        assemble('#include "none.h"\n#if FAST\nint a;\n#endif', "k.cu", {}, {}, options=(option,))


@pytest.mark.parametrize(
    ("code", "header"),
    [
        ("curandState_t* state;", "curand_kernel.h"),
        ("curandStatePhilox4_32_10_t* state;", "curand_kernel.h"),
        ("using namespace nvcuda;", "mma.h"),
        ("typedef cub::WarpReduce<float> Sum;", "cub/warp/warp_reduce.cuh"),
        ("cg::thread_block* block;", "cooperative_groups.h"),
    ],
)
def test_a_header_of_cuda_whose_names_a_text_uses_is_included(code: str, header: str) -> None:
    """A header of the text's project may include it."""
    assert f"#include <{header}>" in assemble(code, "k.cu", {}, {})
    own = f"#include <{header}>\n{code}"
    assert assemble(own, "k.cu", {}, {}).count("#include <c") == own.count("#include <c")


def test_a_header_in_a_folder_cuda_of_a_project_is_none_of_cuda() -> None:
    with pytest.warns(UserWarning, match=r'#include "cuda/mine.h": no such header is known, so it is left out'):
        assert "mine.h" not in assemble('#include "cuda/mine.h"\nint k;', "k.cu", {}, {})
    assert "int mine;" in assemble('#include "cuda/mine.cuh"', "k.cu", {}, {}, {"cuda/mine.cuh": "int mine;"})


@pytest.mark.parametrize(("guard", "times"), [("", 4), ("#pragma once\n", 1)])
def test_a_header_without_a_guard_is_there_as_often_as_it_is_included(guard: str, times: int) -> None:
    text = "".join(f'namespace {name} {{\n#include "part.h"\n#include "part.h"\n}}\n' for name in "ab")
    found = assemble(text, "k.cu", {}, {}, {"part.h": f"{guard}inline int part() {{ return 1; }}"})
    assert found.count("int part()") == times


@pytest.mark.parametrize("simulated", [False, True])
def test_an_unknown_header_in_angle_brackets_is_left_out_with_a_warning(simulated: bool) -> None:
    with pytest.warns(UserWarning, match=r"^k.cu: #include <mine/none.h>: no such header is known, so it is left out"):
        found = assemble("#include <mine/none.h>\nint k;", "k.cu", {}, {}, simulated=simulated)
    assert "none.h" not in found


@pytest.mark.parametrize(
    "text",
    [
        '/*\n#include "none.cuh"\n*/',
        '// #include "none.cuh"',
        '// /* not opened\n#include <cuda_fp16.h>\nconst char* s = "/*";',
    ],
)
def test_what_only_looks_like_an_include_is_left_alone(text: str) -> None:
    assert text in assemble(text, "k.cu", {}, {})


@pytest.mark.parametrize("line", ['#include "a.cuh"', '  #  include   "a.cuh"  // why', '#include"a.cuh"\r'])
def test_spellings_of_an_include(line: str) -> None:
    assert "int a;" in assemble(f"int x;\n{line}\nint y;", "k.cu", {}, {}, {"a.cuh": "int a;"})


def test_system_headers_stay() -> None:
    assert "#include <cuda_fp16.h>" in assemble("#include <cuda_fp16.h>\n", "k.cu", {}, {})


# Lines


def test_an_error_below_includes_is_reported_at_the_authors_line() -> None:
    headers = {"outer.cuh": '#pragma once\n#include "inner.cuh"\n\nint outer;\n', "inner.cuh": "int inner;\n\n\n"}
    author = '#include "outer.cuh"\n#include "scalar.cuh"\n#include "outer.cuh"\n\nint good;\nint bad = nonsense;\n'
    message = error_of(assemble(author, "mine.cu", {"scalar_t": "float32"}, {"N": 1}, headers))
    assert 'mine.cu:6: error: identifier "nonsense" is undefined' in message
    assert "\n  int bad = nonsense;" in message


def test_an_error_right_behind_an_include_is_reported_at_its_line() -> None:
    message = error_of(assemble('#include "a.cuh"\nint bad = nonsense;', "mine.cu", {}, {}, {"a.cuh": "int a;"}))
    assert "mine.cu:2: error" in message
    assert "\n  int bad = nonsense;" in message


def test_an_error_in_a_header_is_reported_there() -> None:
    headers = {"outer.cuh": 'int ok;\n#include "inner.cuh"\nint bad = nonsense;\n', "inner.cuh": "int inner;\n"}
    message = error_of(assemble('#include "outer.cuh"\n', "mine.cu", {}, {}, headers))
    assert "outer.cuh:3: error" in message
    assert "\n  int bad = nonsense;" in message


@pytest.mark.parametrize(
    ("filename", "shown"),
    [
        ("my kernels (1).cu", "my kernels (1).cu"),
        ("C:\\Users\\new\\kernels.cu", "C:/Users/new/kernels.cu"),
        ('say "hi".cu', "say 'hi'.cu"),
    ],
)
def test_any_filename_can_be_reported(filename: str, shown: str) -> None:
    message = error_of(assemble("\nint bad = nonsense;", filename, {}, {}))
    assert f"{shown}:2: error" in message
    assert "\n  int bad = nonsense;" in message


def test_form_feeds_and_foreign_letters_do_not_shift_lines() -> None:
    message = error_of(assemble("// Φ(x)\x0c\u2028 and on\n\x0c\nint bad = nonsense;", "mine.cu", {}, {}))
    assert "\n  int bad = nonsense;" in message


def test_names_that_shared_headers_declare_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of all headers takes longer than the rest of a final text."""
    text = '#include "vector.cuh"\nextern "C" __global__ void k() {}'
    first = assemble(text, "k.cu", {"scalar_t": "float32"}, {"N": 3})
    assert "#undef N" in first, "a header declares N, and is compiled without the macro"
    monkeypatch.setattr("cupyops.compile.source._DECLARES", None)
    again = assemble(text, "k.cu", {"scalar_t": "float32"}, {"N": 4})
    assert again == first.replace("#define N 3", "#define N 4")


# Headers of a file, and of a folder


def test_the_headers_of_a_files_headers_are_read(tmp_path: Path) -> None:
    """A compiler looks beside the including file, then beside the text."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "k.cu").write_text('#include "parts/a.inl"\n#include <cub/cub.cuh>\n// #include "unread.h"\n')
    (tmp_path / "parts" / "a.inl").write_text('#include "b.h"\n#include "../top.h"\n#include "absent.h"\n')
    (tmp_path / "parts" / "b.h").write_text('#include "top.h"\nconstexpr int B = 1;\n')
    (tmp_path / "b.h").write_text("constexpr int B = 2;\n")
    (tmp_path / "top.h").write_text("constexpr int TOP = 3;\n")
    (tmp_path / "unread.h").write_text("")
    text, headers = read(tmp_path / "k.cu")
    assert sorted(headers) == ["../top.h", "b.h", "parts/a.inl"]
    assert headers["b.h"] == '#include "../top.h"\nconstexpr int B = 1;\n'  # a file keeps one name
    assert "parts/a.inl" in text


@pytest.mark.simulator
def test_a_header_of_a_folder_is_a_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "outer.h").write_text("__device__ inline float twice(float v) { return 2 * v; }\n")
    text = '#include "outer.h"\n__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = twice(y[threadIdx.x]); }'
    y = np.ones(3, np.float32)
    told = "left out: #include <outer.h>: give its text as headers={'outer.h': ...}, or its folder"
    with (
        cupyops.simulate(),
        pytest.raises(CompileError, match=re.escape(told)),
        pytest.warns(UserWarning, match="left out"),
    ):
        Kernel(text, "k", Threads("n"))(y, 3)
    gc.collect()  # tests of all kernels of the process would compile this one
    kernel = Kernel(text, "k", Threads("n"), options=(f"-I{tmp_path}",))
    assert "float twice" in kernel.final_text({})
    assert kernel.headers.keys() == {"outer.h"}
    (tmp_path / "outer.h").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"outer\.h: a header must be UTF-8 outside comments"):
        Kernel(text, "k", Threads("n"), options=(f"-I{tmp_path}",))
    (tmp_path / "outer.h").write_bytes(b"// \xff\n")
    assert Kernel(text, "k", Threads("n"), options=(f"-I{tmp_path}",)).headers == {"outer.h": "// \xff\n"}
    with cupyops.simulate():
        kernel(y, 3)
    assert y.tolist() == [2.0] * 3
    if importlib.util.find_spec("cupy"):
        from cupyops.compile.compiler import OPTIONS, compile_text

        compile_text(kernel.final_text({}), "k", "sm_80", (*OPTIONS, *kernel.options))


# Names of PyTorch's headers


def test_shuffles_of_pytorchs_halves_are_left_to_cuda() -> None:
    text = (
        "#include <ATen/ATen.h>\n__device__ __inline__ at::Half\n__shfl_up_sync(unsigned mask, const at::Half v, int by) {\n"
        " return __shfl_up_sync(mask, v.operator __half(), by); }\n__device__ at::Half mine(at::Half v) { return v; }\n"
    )
    found, _, floats = with_pytorch(text, {})
    assert "__shfl_up_sync" not in found
    assert "at::Half mine(at::Half v)" in found
    assert found.count("\n") == text.count("\n")
    assert floats == ["cuda_fp16.h"]


def test_a_name_within_a_namespace_of_pytorch_is_named_whole() -> None:
    bare = "at::native::fastAtomicAdd(p, i, n, v); at::cuda::detail::TensorInfo<float> a; at::Tensor b; c10::complex<float> c;"
    assert foreign(bare) == ["at::Tensor"]
