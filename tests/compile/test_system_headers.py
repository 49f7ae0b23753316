"""The list of system headers: NVRTC and the simulator find the listed ones, and refuse all others by name."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, Threads
from cupyops.compile import system_headers
from cupyops.compile.cpp_library import STD, names_in
from cupyops.compile.header_list import HEADERS
from cupyops.compile.standard import _MATH, INTEGERS, C
from cupyops.compile.system_headers import header, twin
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.simulator.simulated import twins

LIST = "(const float* x /* (n) */, float* y /* (n) */, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }"
KERNEL = f"__global__ void k{LIST}"
CALLING = KERNEL.replace("{", "{ f();", 1)
ROWS = [row for row in HEADERS if not row.host]
# Names for the patterns of a row: headers that the simulator has, and others.
EXAMPLES = {
    "sm_*_functions.h": ("sm_60_atomic_functions.h",),
    "sm_*_intrinsics.h": ("sm_30_intrinsics.h",),
    "cuda_pipeline*.h": ("cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_pipeline_helpers.h"),
    "cuda_awbarrier*.h": ("cuda_awbarrier.h",),
    "texture_*.h": ("texture_types.h",),
    "surface_*.h": ("surface_types.h",),
    "cooperative_groups/*.h": (
        *(f"cooperative_groups/{name}.h" for name in ("reduce", "scan", "memcpy_async", "details/info")),
    ),
    "cuda/*": (
        *("cuda/barrier", "cuda/pipeline", "cuda/atomic", "cuda/functional", "cuda/latch", "cuda/std/span"),
        *(f"cuda/std/{n}" for n in ("array", "atomic", "bit", "cmath", "complex", "cstddef", "cstdint", "functional")),
        *(f"cuda/std/{n}" for n in ("limits", "tuple", "type_traits", "utility")),
    ),
    "cub/block/*.cuh": (
        *(f"cub/block/block_{n}.cuh" for n in ("reduce", "scan", "load", "store", "exchange", "discontinuity")),
        *("cub/block/block_radix_sort.cuh", "cub/block/block_histogram.cuh"),
    ),
    "cub/warp/*.cuh": ("cub/warp/warp_reduce.cuh", "cub/warp/warp_scan.cuh", "cub/warp/warp_load.cuh"),
    "cub/thread/*.cuh": ("cub/thread/thread_load.cuh",),
    "curand_*.h": ("curand_philox4x32_x.h",),
}
NAMES = [(row, name) for row in ROWS for of in row.names for name in EXAMPLES.get(of, (of,))]
# The headers of the patterns that the simulator does not have.
REFUSED = [
    *("cuda_pipeline_helpers.h", "cuda_awbarrier.h", "texture_types.h", "surface_types.h"),
    *("cooperative_groups/details/info.h", "cuda/latch", "cuda/std/span", "cub/block/block_histogram.cuh"),
    *("cub/warp/warp_load.cuh", "cub/thread/thread_load.cuh", "curand_philox4x32_x.h"),
]


def names_of(folder: str) -> list[str]:
    """The headers of the rows that need a folder, or none."""
    return [name for row, name in NAMES if (row.folders or ("",))[-1] == folder]


def final(text: str, simulated: bool = False, **given: object) -> str:
    kernel = Kernel(text, "k", Threads("n"), **given)  # type: ignore[arg-type]
    # Without the comparison of the parameters' types, which has names of its own.
    text = kernel.final_text({}, twins() if simulated else None).partition('#line 1 "cupyops/types"')[0]
    return text.partition('\n#line 1 "cupyops/parameters"')[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("folder", ["", "cuda", "cccl", "crt", "curand"])
def test_nvrtc_finds_every_header_of_the_list(folder: str, architecture: str) -> None:
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import OPTIONS, compile_text

    uses = "__device__ void f() { __shared__ cub::BlockReduce<int, 32>::TempStorage t; }\n" if folder == "cccl" else ""
    text = "".join(f"#include <{name}>\n" for name in names_of(folder)) + uses + KERNEL
    try:
        compile_text(final(text), "k", architecture, OPTIONS)
    except MissingDependencyError as lacking:
        pytest.skip(str(lacking))


@pytest.mark.simulator
def test_the_simulator_finds_every_header_that_has_a_twin() -> None:
    names = [name for _, name in NAMES if twin(name) is not None]
    assert {name for _, name in NAMES}.difference(names) == {*REFUSED}
    kernel = Kernel("".join(f"#include <{name}>\n" for name in names) + KERNEL, "k", Threads("n"))
    import torch

    x, y = torch.ones(3), torch.zeros(3)
    with cupyops.simulate():
        kernel(x, y, 3)
    assert y.tolist() == [1, 1, 1]


@pytest.mark.simulator
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", REFUSED)
def test_a_header_without_a_twin_is_refused_in_the_simulator_by_name(name: str) -> None:
    """The compiler's words would be of a file that is not found, or of a thousand errors within it."""
    kernel = Kernel(f"\n#include <{name}>\n{KERNEL}", "k", Threads("n"))
    told = rf"k\.cu:2: .*the simulator has no header <{re.escape(name)}>"
    with cupyops.simulate(), pytest.raises(CompileError, match=told):
        kernel(np.ones(3, np.float32), np.zeros(3, np.float32), 3)
    unread = kernel.text.replace("#include", "#if 0\n#include").replace(">\n", ">\n#endif\n", 1)
    assert "#error" not in final(unread, simulated=True)


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("include", "code", "words"),
    [
        (
            "<torch/extension.h>",
            "at::Tensor* p;",
            "it is of the host half of a PyTorch extension, which a Kernel does not need",
        ),
        (
            "<cub/device/device_reduce.cuh>",
            "cub::DeviceReduce::Sum();",
            "it calls the GPU from the host, and NVRTC compiles kernels alone",
        ),
        ("<thrust/device_vector.h>", "thrust::device_vector<int>* p;", "it calls the GPU from the host"),
    ],
)
def test_a_header_that_the_device_code_uses_in_vain_is_named_with_the_compilers_error(
    include: str, code: str, words: str
) -> None:
    text = f"#include {include}\n__device__ void f() {{ {code} }}\n{CALLING}"
    told = rf"k\.cu:2: error: [\s\S]*left out: #include {include}: {words}"
    x = np.ones(3, np.float32)
    with cupyops.simulate(), pytest.raises(CompileError, match=told):
        Kernel(text, "k", Threads("n"))(x, x.copy(), 3)
    for dead in ("#ifndef __CUDACC__", "#if 0", "#ifdef HOST"):
        assert "k" in final(f"{dead}\n#include {include}\n#endif\n{KERNEL}", True)


def test_a_header_of_the_same_name_that_is_given_comes_first(tmp_path: Path) -> None:
    assert "int own;" in final(f'#include "helper_cuda.h"\n{KERNEL}', headers={"helper_cuda.h": "__device__ int own;"})
    (tmp_path / "mine.h").write_text("__device__ inline int mine() { return 1; }")
    used = KERNEL.replace("= x[threadIdx.x]", "= mine() * x[threadIdx.x]")
    assert "int mine()" in final(f"#include <mine.h>\n{used}", options=(f"-I{tmp_path}",))


def test_a_header_of_a_library_has_the_headers_of_the_host(tmp_path: Path) -> None:
    """NVRTC has none of them; without CUDA's C++ library in their place, the header of the library ends the compilation."""
    (tmp_path / "glm").mkdir()
    (tmp_path / "glm" / "glm.hpp").write_text(
        '#include <stdlib.h>\n#include <cuda.h>\nstatic_assert(CUDA_VERSION >= 12000, "");\n'
        "#include <cassert>\n#include <cmath>\n#include <limits>\n#include <type_traits>\nnamespace glm {\n"
        "template <typename T> __device__ std::enable_if_t<std::is_floating_point<T>::value, T> bounded(T v) {\n"
        " return std::fmin(std::abs(v), std::numeric_limits<T>::max()); }\n}\n"
    )
    text = f"#include <glm/glm.hpp>\n{KERNEL.replace('= x[threadIdx.x]', '= glm::bounded(x[threadIdx.x])')}"
    assert "bounded" in text
    options = (f"-I{tmp_path}",)
    x = np.ones(3, np.float32)
    with cupyops.simulate(), pytest.raises(CompileError, match=r"k\.cu:1: fatal error: '?glm/glm\.hpp"):
        Kernel(text, "k", Threads("n"), options=options)(x, x.copy(), 3)
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import OPTIONS, compile_text

    assert compile_text(final(text, options=options), "k", "sm_90", (*OPTIONS, *options)).resources


def test_quotes_find_a_system_header() -> None:
    for simulated in (False, True):
        assert "#include <cuda_fp16.h>" in final(f'#include "cuda_fp16.h"\n{KERNEL}', simulated)


@pytest.mark.parametrize(
    ("folder", "name", "packages"),
    [
        ("cccl", "cooperative_groups.h", ("nvidia-cuda-cccl-cu12", "nvidia-cuda-cccl>=13,<14")),
        ("curand", "curand_kernel.h", ("nvidia-curand-cu12", "nvidia-curand>=10.4")),
        ("crt", "mma.h", ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt>=13,<14")),
    ],
)
@pytest.mark.parametrize("major", [12, 13])
def test_who_lacks_a_header_is_told_the_package(
    folder: str, name: str, packages: tuple[str, str], major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_headers, "_places", lambda of: [] if of == folder else [Path("/there")])
    monkeypatch.setattr(system_headers, "cuda_headers", lambda: Path("/there"))
    monkeypatch.setattr(system_headers, "nvrtc_version", lambda: (major, 0))
    package = packages[major - 12]
    bare = package.partition(">")[0]
    words = f"<{name}> is in the package {bare}, which is not installed. Install it with: pip install {shlex.quote(package)}"
    with pytest.raises(MissingDependencyError, match=f"^{re.escape(words)}$"):
        system_headers.folders_of([name])


def test_the_kernels_of_this_project_get_no_line_of_the_list() -> None:
    """Their code has run on a GPU as it is."""
    text = f'extern "C" {KERNEL}'
    assert final(text).startswith("// Written by cupyops: types and constants of this compilation.\ntemplate <int N>")
    assert header("cuda_fp16.h") is not None


# The names of the C and C++ libraries


def everything() -> str:
    """A text that uses each name of the list, and checks the numbers while it is compiled."""
    traits = {name for name, of in names_in(STD).imported.items() if of.endswith("/type_traits>")}
    lines = [f"static_assert(sizeof({name}) > 0, {name!r});".replace("'", '"') for name in INTEGERS]
    wide = {name for name in names_in(C).macros if name not in ("INFINITY", "NAN", "HUGE_VAL", "HUGE_VALF")}
    lines += [f"static_assert({name} == {name}, {name!r});".replace("'", '"') for name in sorted(wide)]
    lines += [
        'static_assert(INT_MAX == 2147483647 && INT_MIN == -INT_MAX - 1 && UINT_MAX == 4294967295u, "");',
        'static_assert(LLONG_MAX == 9223372036854775807LL && INT64_MIN == LLONG_MIN && SIZE_MAX == UINT64_MAX, "");',
        'static_assert(FLT_MAX == 0x1.fffffep127f && FLT_MIN == 0x1p-126f && FLT_EPSILON == 0x1p-23f, "");',
        'static_assert(DBL_MAX == 0x1.fffffffffffffp1023 && DBL_MIN == 0x1p-1022 && DBL_EPSILON == 0x1p-52, "");',
        'static_assert(M_PI == 0x1.921fb54442d18p1 && M_E == 0x1.5bf0a8b145769p1 && M_SQRT2 == 0x1.6a09e667f3bcdp0, "");',
        'static_assert(sizeof(int64_t) == 8 && sizeof(uint8_t) == 1 && int8_t(-1) < 0 && uint16_t(-1) == 65535, "");',
        "constexpr float infinity = INFINITY, nothing = NAN; constexpr double huge = HUGE_VAL; constexpr float hugef = HUGE_VALF;",
        'static_assert(infinity > FLT_MAX && nothing != nothing && huge > DBL_MAX && hugef == infinity, "");',
        *(f"using std::{name};" for name in sorted(traits)),
        "__device__ double all(double x, int* i) {",
        "float f = 1; double d = 1; (void)std::frexp(x, i); (void)std::modf(x, &d); (void)std::remquo(x, d, i); std::swap(f, f);",
        "x += std::max(1.0, x) + std::min(x, 2.0) + std::clamp(x, 0.0, 1.0) + std::numeric_limits<float>::epsilon();",
    ]
    two = {"atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot", "nextafter", "pow", "remainder"}
    special = {"frexp", "modf", "remquo", "fma", "ldexp", "scalbn", "scalbln"}
    lines += [f"x += std::{name}(x, 0.5);" for name in sorted(two)] + ["x += std::fma(x, x, x);"]
    lines += [f"x += std::{name}(x, 2);" for name in ("ldexp", "scalbn", "scalbln")]
    lines += [f"x += std::{name}(x);" for name in sorted(_MATH - two - special)]
    lines += ["return std::abs(x) + std::sqrt(f);", "}"]
    return "\n".join(lines).replace("using std::", "using ::std::") + f"\n{KERNEL}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_has_every_name_of_the_list(architecture: str) -> None:
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import OPTIONS, compile_text, warnings_in

    log = compile_text(final(everything()), "k", architecture, OPTIONS).log
    assert [line for line in warnings_in(log) if "never referenced" not in line] == []


@pytest.mark.simulator
def test_the_simulator_has_every_name_of_the_list() -> None:
    import torch

    x, y = torch.ones(3), torch.zeros(3)
    with cupyops.simulate():
        Kernel(everything(), "k", Threads("n"))(x, y, 3)
    assert y.tolist() == [1, 1, 1]


@pytest.mark.simulator
def test_a_name_of_std_that_nvrtc_lacks_is_refused_by_the_compiler() -> None:
    text = f"__device__ void f() {{\n  float x[3]; std::sort(x, x + 3); }}\n{CALLING}"
    x = np.ones(3, np.float32)
    told = r"k\.cu:2: error: [\s\S]*sort"
    with cupyops.simulate(), pytest.raises(CompileError, match=told):
        Kernel(text, "k", Threads("n"))(x, x.copy(), 3)
    # A function that no kernel calls is left out.
    assert "sort" not in final(text.replace("f();", ""))


def test_a_name_that_the_text_defines_itself_is_left_alone() -> None:
    text = f"#define M_PI 3.0f\ntypedef long long int64_t;\n__device__ int64_t f() {{ return M_PI; }}\n{KERNEL}"
    assert final(text).count("M_PI") == 2
    assert final(text).count("int64_t") == 2


@pytest.mark.parametrize(("version", "wheel"), [((12, 9), "curand"), ((13, 0), "cu13")])
def test_the_headers_of_nvrtcs_cuda_version_are_taken(
    version: tuple[int, int], wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cu13", "curand"):
        folder = tmp_path / "nvidia" / name / "include"
        folder.mkdir(parents=True)
        (folder / "curand_kernel.h").write_text("")
    monkeypatch.setattr(system_headers.sys, "path", [str(tmp_path)])
    monkeypatch.setattr(system_headers, "nvrtc_version", lambda: version)
    assert system_headers._places.__wrapped__("curand") == [tmp_path / "nvidia" / wheel / "include"]


def test_a_toolkit_of_another_cuda_version_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_headers.sys, "path", [])
    monkeypatch.setattr(system_headers, "nvrtc_version", lambda: (12, 9))
    for variable, version in (("CUDA_PATH", 13000), ("CUDA_HOME", 12060)):
        folder = tmp_path / variable / "include"
        folder.mkdir(parents=True)
        (folder / "curand_kernel.h").write_text("")
        (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {version}\n")
        monkeypatch.setenv(variable, str(tmp_path / variable))
    assert system_headers._places.__wrapped__("curand") == [tmp_path / "CUDA_HOME" / "include"]
