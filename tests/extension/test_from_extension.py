"""What from_extension makes of a file: the kernels and what they use, what it refuses by name, and what it says of bad files."""

import re
from pathlib import Path

import pytest

from cupyops import Extension, Kernel, from_extension
from cupyops.__main__ import main
from cupyops.compile.compiler import OPTIONS, compile_text

HERE = Path(__file__).parent

HEAD = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>
#include <vector>
"""
FINE = (
    "__global__ void fine(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }\n"
)


def read(folder: Path, text: str, **files: str) -> Extension:
    (folder / "ext.cu").write_text(HEAD + text)
    for name, content in files.items():
        (folder / f"{name}.h").write_text(content)
    return from_extension(folder / "ext.cu")


def test_kernels_and_what_they_use_are_kept_and_nothing_else() -> None:
    extension = from_extension(HERE / "gated_cell.cu")
    words = set(re.findall(r"\w+", extension.text))
    assert {"forward_kernel", "backward_kernel", "sigmoid", "mix", "CELL_INLINE", "CELL_HOST_DEVICE"} <= words
    host = {
        "torch_extension",
        "PYBIND11_MODULE",
        "Tensor",
        "CHECK_CONTIGUOUS",
        "Gates",
        "Rows",
        "vector",
        "cell_forward",
    }
    assert not host & words
    assert [d for d in extension.text.splitlines() if "include" in d] == ['#include "pytorch.cuh"']
    assert (extension.refused, extension.missing) == ({}, ())
    shown = [(k.name, k.template, [p.name for p in k.parameters]) for k in extension.kernels]
    assert shown == [
        ("cell::forward_kernel", "typename scalar_t", ["g", "h", "z", "c", "new_h"]),
        ("cell::backward_kernel", "typename scalar_t, typename index_t", ["grad", "h", "z", "c", "grad_g", "grad_h"]),
    ]
    assert extension.kernels[1].launches == ("cell::backward_kernel<scalar_t, int64_t><<<blocks, threads>>>",)
    assert "const scalar_t* g, 3 dimensions" in str(extension)


def test_what_a_kernel_uses_only_through_others(tmp_path: Path) -> None:
    text = """
    #define TWICE(x) ((x) + (x))
    #define UNUSED(x) TORCH_CHECK(x)
    #ifdef USE_ROCM
    #include "no_such_file.h"
    constexpr int WARP = 64;
    #else
    constexpr int WARP = 32;
    #endif
    #define LEAST 900
    #if __CUDA_ARCH__ >= LEAST
    #define WIDE 1
    #else
    #define WIDE 0
    #endif
    struct Pair { float a, b; __device__ float sum() const { return a + b; } };
    struct Unused { std::vector<int> v; };
    typedef Pair Two;
    enum Mode { PLUS, MINUS };
    template <Mode MODE> struct Sign { static constexpr int value = MODE == PLUS ? 1 : -1; };
    template <> struct Sign<MINUS> { static constexpr int value = -1; };
    __constant__ float factor = 2;
    static constexpr int square(int x) { return x * x; }
    int host_only(int x) { return x; }
    template <typename T> __device__ T plus(T a, T b);
    template <typename T> __device__ T plus(T a, T b) { return a + b; }
    // Adds.
    __global__ void uses(const float* x, float* y, int n) {
        Two p = {x[0], x[1]};
        y[0] = plus(TWICE(p.sum()), factor) * Sign<PLUS>::value + square(WARP) + WIDE;
    }
    template void host_template<float>(float);
    """
    extension = read(tmp_path, text)
    assert (extension.refused, extension.missing) == ({}, ())
    words = set(re.findall(r"\w+", extension.text))
    assert {
        "TWICE",
        "WARP",
        "WIDE",
        "LEAST",
        "Pair",
        "Two",
        "Mode",
        "PLUS",
        "Sign",
        "factor",
        "square",
        "plus",
        "32",
    } <= words
    assert "#define LEAST 900" in extension.text
    assert not {"UNUSED", "Unused", "USE_ROCM", "host_only", "host_template", "64", "no_such_file"} & words
    assert "// Adds.\n    __global__ void uses" in extension.text or "// Adds.\n__global__ void uses" in extension.text
    assert extension.text.count("__device__ T plus") == 2
    compile_text(Kernel(extension.text, "uses", 32).final_text({}), "uses", "sm_90", OPTIONS)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "at::PhiloxCudaState p, float* y) { y[0] = std::get<0>(at::cuda::philox::unpack(p));",
            "`PhiloxCudaState` at ext.cu:7 is PyTorch's state of random",
        ),
        ("float* y) { cudaStream_t stream; y[0] = 1;", "`cudaStream_t` at ext.cu:7 is a stream, an event or a call"),
        (
            "at::Half* y) { y[0] = static_cast<at::Half>(y[1]).operator __half();",
            "`.operator __half` at ext.cu:7 is a conversion",
        ),
        ("float* y) { fine<<<1, 1>>>(y, y, 1);", "`<<<` at ext.cu:7 is a launch from device code"),
        ("torch::Tensor x, float* y) { y[0] = 1;", "`torch::Tensor` at ext.cu:7 is a tensor of PyTorch"),
        ("float* y) { std::vector<float> v; y[0] = v[0];", "`std::vector` at ext.cu:7 is of the host's library"),
        ("float* y) { thrust::sort(y, y + 3);", "`thrust ::` at ext.cu:7 is a library that NVRTC does not have"),
        (
            "TensorListMetadata<2> list, float* y) { y[0] = 1;",
            "`TensorListMetadata` at ext.cu:7 is a structure of PyTorch's",
        ),
        ("Settings s, float* y) { y[0] = s.a;", "`s` is of the struct Settings, whose layout Python does not know"),
        ("float*** y) { y[0][0][0] = 1;", "pass arrays as T*, numbers by value"),
    ],
)
def test_a_kernel_without_translation_is_refused_by_name_and_the_others_stay(
    tmp_path: Path, code: str, words: str
) -> None:
    extension = read(tmp_path, f"struct Settings {{ float a; }};\n__global__ void odd({code} }}\n{FINE}")
    assert [k.name for k in extension.kernels] == ["fine"]
    assert list(extension.refused) == ["odd"]
    assert words.replace(" ::", "::") in extension.refused["odd"].replace(" ::", "::")
    assert "# odd is left out: " in extension.starter
    alone = tmp_path / "alone.cu"
    alone.write_text(f"{HEAD}struct Settings {{ float a; }};\n__global__ void odd({code} }}\n")
    with pytest.raises(ValueError, match=r"must name a file with a kernel that NVRTC can have, got .*alone.cu: odd: "):
        from_extension(alone)


def test_atomic_additions_of_16_bit_floats_stay(tmp_path: Path) -> None:
    code = (
        "__global__ void add(const at::Half* x, at::Half* y) { gpuAtomicAdd(y, x[threadIdx.x]); atomicAdd(y, x[0]); }"
    )
    extension = read(tmp_path, code)
    assert extension.text.startswith('#include <cuda_fp16.h>\n#include "pytorch.cuh"\n')
    compile_text(Kernel(extension.text, "add", 32).final_text({}), "add", "sm_80", OPTIONS)


READS = {
    "y[i] = x[i] + 1;": True,
    "if (x[i] == 3 && x[i + 1] != x[i]) y[i] = fmaxf(x[i], 0);": True,
    "for (int k = 0; k < 3; ++k) y[i] += x[k] * x[(k + int(x[0])) % 3];": True,
    "x[i] = 1; y[i] = x[i];": False,
    "x[i] += 1; y[i] = 0;": False,
    "x[i]++; y[i] = 0;": False,
    "--x[i]; y[i] = 0;": False,
    "atomicAdd(&x[i], 1.f); y[i] = 0;": False,
    "atomicAdd(&(x[i]), 1.f); y[i] = 0;": False,
    "if (i > 0 && (x[i] > 0)) y[i] = 0;": True,
    "atomicAdd(x + i, 1.f); y[i] = 0;": False,
    "float* p = x; p[0] = 1; y[i] = x[i];": False,
    "*x = 1; y[i] = x[i];": False,
    "y[i] = 0;": False,
    "put(x[i]); y[i] = 0;": False,
}


@pytest.mark.parametrize("body", READS)
def test_a_parameter_that_is_only_read_becomes_const(tmp_path: Path, body: str) -> None:
    put = "__device__ void put(float& x) { x = 1; }\n" if "put(" in body else ""
    extension = read(tmp_path, f"{put}__global__ void f(float* x, float* y, int i) {{ {body} }}")
    assert [p.const for p in extension.kernels[0].parameters] == [READS[body], False, True]
    compile_text(Kernel(extension.text, "f", 32).final_text({}), "f", "sm_90", OPTIONS)


def test_an_accessor_that_is_only_read_becomes_const(tmp_path: Path) -> None:
    accessor = "torch::PackedTensorAccessor32<float, 2>"
    for body, const in (
        ("y[0][0] = x[0][1] * x.size(0);", True),
        ("auto row = x[0]; row[1] = 2; y[0][0] = 1;", False),
        ("x[0][1] = 2; y[0][0] = 1;", False),
    ):
        extension = read(tmp_path, f"__global__ void f({accessor} x, {accessor} y) {{ {body} }}")
        assert [p.const for p in extension.kernels[0].parameters] == [const, False]
        compile_text(Kernel(extension.text, "f", 32).final_text({}), "f", "sm_90", OPTIONS)


def test_a_line_of_an_included_file_is_named_with_its_file(tmp_path: Path) -> None:
    extension = read(
        tmp_path,
        f'#include "part.h"\n{FINE}__global__ void odd(float* y) {{ y[0] = far(); }}',
        part="#pragma once\n\n__device__ float far() { std::string s; return 1; }\n",
    )
    assert extension.refused == {"odd": "`std::string` at part.h:3 is of the host's library"}


def test_included_files_are_found_in_folders_and_the_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "loops.cuh").write_text(
        '#pragma once\n#include "loops.cuh"\n#ifndef LOOPS\n#define LOOPS\n#define EACH(i, n) for (int i = 0; i < n; ++i)\n#endif\n'
    )
    text = '#include "loops.cuh"\n#include "loops.cuh"\n#include <other/loops.cuh>\n__global__ void f(float* y, int n) { EACH(i, n) y[i] = i; }'
    extension = read(tmp_path, text)
    assert extension.missing == ("loops.cuh",)
    assert "# loops.cuh was not found: give its folder" in extension.starter
    assert "loops.cuh was not found" in str(extension)
    found = from_extension(tmp_path / "ext.cu", include=[tmp_path / "inner"])
    assert found.missing == ()
    assert found.text.count("#define EACH(i, n)") == 1
    with pytest.raises(ValueError, match="from_extension: `include` must name folders, got .*nowhere"):
        from_extension(tmp_path / "ext.cu", include=[tmp_path / "nowhere"])


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    host = tmp_path / "host.cu"
    host.write_text(
        HEAD
        + '#include "kernels.cuh"\ntorch::Tensor f(torch::Tensor x) { return x; }\nconst char* s = "__global__ void no()";\n'
    )
    with pytest.raises(
        ValueError,
        match=r"must name a file with a __global__ function, got .*host.cu; it includes kernels.cuh, which was not",
    ):
        from_extension(host)
    with pytest.raises(FileNotFoundError, match="none.cu"):
        from_extension(tmp_path / "none.cu")
    with pytest.raises(IsADirectoryError):
        from_extension(tmp_path)
    (tmp_path / "latin.cu").write_bytes(b"// \xe9\n__global__ void f(float* x) {}")
    with pytest.raises(ValueError, match=r"from_extension: `path` must name files of UTF-8, got .*latin.cu"):
        from_extension(tmp_path / "latin.cu")
    with pytest.raises(TypeError, match="from_extension: `path` must be the path of a .cu file, got int"):
        from_extension(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="from_extension: `include` must be a list of folders, got '/tmp'"):
        from_extension(host, include="/tmp")
    with pytest.raises(ValueError, match="from_extension: `namespace` must be an identifier, got 'a b'"):
        from_extension(HERE / "axpby.cu", namespace="a b")


WHOLE = (HERE / "gated_cell.cu").read_text()
FIRST_KERNEL_ENDS = WHOLE.index("new_h) {") + len("new_h) {")


@pytest.mark.parametrize("cut", range(0, len(WHOLE), 370))
def test_a_file_that_ends_anywhere_is_read_or_refused(tmp_path: Path, cut: int) -> None:
    """A file that is cut off has brackets without a partner. No such file ends in another error, or in none at all."""
    path = tmp_path / "cut.cu"
    path.write_text(WHOLE[:cut])
    if cut >= FIRST_KERNEL_ENDS:
        compile(from_extension(path).starter, "cut.py", "exec")
    else:
        with pytest.raises(ValueError, match="from_extension: `path` must name a file with a "):
            from_extension(path)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "axpby.py"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        from_extension(HERE / "axpby.cu").write(path)
    with pytest.raises(SystemExit, match="2"):
        main(["new", "--from-extension", str(HERE / "axpby.cu"), "--into", str(tmp_path)])
    assert path.read_text() == "mine"


def test_the_command_writes_the_starting_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine", "--from-extension", str(HERE / "axpby.cu"), "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "axpby_kernel\n    int32 numel\n    const float32* x\n" in said
    assert f"{tmp_path / 'mine.py'}: 2 kernels, the host half in Python, and operators." in said
    assert '"mine::axpby(Tensor x, Tensor y, float a, float b) -> Tensor out"' in (tmp_path / "mine.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from-extension", "none.cu"], "none.cu: No such file or directory"),
        (
            ["class", "--from-extension", str(HERE / "axpby.cu")],
            "new: `NAME` must be an identifier and no keyword, got 'class'",
        ),
        (["--from-extension", str(HERE / "gated_cell.h")], "must name a file with a __global__ function"),
        ([], "the following arguments are required: NAME"),
    ],
)
def test_the_command_refuses_in_one_line(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["new", *arguments, "--into", str(tmp_path)])
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
