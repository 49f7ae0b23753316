"""Programs of several sources: shared and private names."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("clang.cindex")

import cupyops
from cupyops import cpp_extension
from cupyops.cpp_extension import load, load_inline
from cupyops.importer.errors import NotTranslated


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "fallback", False)


TORCH = "#include <torch/extension.h>\n"
BOUND = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'


def loaded(folder: Path, **files: str) -> Any:
    """Returns the module of files; the name ``a_cu`` is a file ``a.cu``."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return load("several", [folder / n.replace("_", ".") for n in files if not n.endswith("_h")])


def computed(module: Any, *x: float) -> list[float]:
    with cupyops.simulate():
        return list(module.f(torch.tensor(x, dtype=torch.float32)).tolist())


SCALED = """torch::Tensor f(torch::Tensor x) {
  auto y = torch::empty_like(x);
  Params p{y.data_ptr<float>(), x.data_ptr<float>(), (int)x.numel()};
  Launcher run = chosen<float>();
  run(p);
  return y;
}
"""


def test_a_header_without_a_guard_that_two_sources_include_is_one_header(tmp_path: Path) -> None:
    header = """#include <cuda_runtime.h>
struct Params { float* y; const float* x; int n; };
typedef void (*Launcher)(const Params&);
template <class T> Launcher chosen();
"""
    kernel = """#include "p.h"
template <class T> __global__ void scale(Params p) { if (threadIdx.x < p.n) p.y[threadIdx.x] = T(3) * p.x[threadIdx.x]; }
template <class T> void run(const Params& p) { scale<T><<<1, 32>>>(p); }
template <class T> Launcher chosen() { return run<T>; }
template Launcher chosen<float>();
"""
    module = loaded(tmp_path, p_h=header, a_cpp=f'{TORCH}#include "p.h"\n{SCALED}{BOUND}', b_cu=kernel)
    assert computed(module, 1, 2) == [3, 6]


def test_a_header_that_macros_of_the_sources_change_is_read_for_each(tmp_path: Path) -> None:
    header = "static int factor() { return FACTOR; }\n"
    first = f'{TORCH}#define FACTOR 2\n#include "p.h"\nint other();\n'
    first += f"torch::Tensor f(torch::Tensor x) {{ return x * factor() + other(); }}\n{BOUND}"
    module = loaded(
        tmp_path, p_h=header, a_cpp=first, b_cu='#define FACTOR 5\n#include "p.h"\nint other() { return factor(); }\n'
    )
    assert computed(module, 1, 2) == [7, 9]


LAUNCHED = "k<<<1, 32>>>(y.data_ptr<float>(), x.data_ptr<float>(), (int)x.numel());"
ONE = "if (threadIdx.x < n) y[threadIdx.x]"


@pytest.mark.parametrize("types", ["", "template <class T> "])
def test_kernels_of_one_name_are_told_by_their_parameters(types: str) -> None:
    number = "T" if types else "float"
    text = f"""{TORCH}
{types}__global__ void k({number}* __restrict__ y, const {number} *x, const int n) {{ {ONE} = 2 * x[threadIdx.x]; }}
{types}__global__ void k({number}* y, int n) {{ {ONE} += 1; }}
torch::Tensor f(torch::Tensor x) {{
  auto y = torch::empty_like(x);
  {LAUNCHED}
  k<<<1, 32>>>(y.data_ptr<float>(), (int)x.numel());
  return y;
}}"""
    assert computed(load_inline("program", "", text, functions=["f"]), 1, 2) == [3, 5]


def test_each_source_has_its_own_functions_for_its_kernels(tmp_path: Path) -> None:
    def source(name: str, factor: int) -> str:
        return f"""{TORCH}
static __device__ float scaled(float x) {{ return {factor} * x; }}
__global__ void k{name}(float* y, const float* x, int n) {{ {ONE} = scaled(x[threadIdx.x]); }}
torch::Tensor {name}(torch::Tensor x) {{ auto y = torch::empty_like(x); {LAUNCHED.replace("k<", f"k{name}<")} return y; }}
"""

    main = f"{TORCH}torch::Tensor a(torch::Tensor); torch::Tensor b(torch::Tensor);\n"
    main += f"torch::Tensor f(torch::Tensor x) {{ return a(x) + b(x); }}\n{BOUND}"
    module = loaded(tmp_path, m_cpp=main, a_cu=source("a", 2), b_cu=source("b", 10))
    assert computed(module, 1, 2) == [12, 24]


def test_a_kernel_that_two_sources_keep_to_themselves_is_refused(tmp_path: Path) -> None:
    def source(name: str, factor: int) -> str:
        return f"""{TORCH}
static __global__ void k(float* y, const float* x, int n) {{ {ONE} = {factor} * x[threadIdx.x]; }}
torch::Tensor {name}(torch::Tensor x) {{ auto y = torch::empty_like(x); {LAUNCHED} return y; }}
"""

    main = f"{TORCH}torch::Tensor a(torch::Tensor); torch::Tensor b(torch::Tensor);\n"
    main += f"torch::Tensor f(torch::Tensor x) {{ return a(x) + b(x); }}\n{BOUND}"
    module = loaded(tmp_path, m_cpp=main, a_cu=source("a", 2), b_cu=source("b", 10))
    with pytest.raises(NotTranslated, match="kernel `k`, which two sources have"):
        computed(module, 1, 2)


def test_each_source_has_its_own_variables_of_the_device(tmp_path: Path) -> None:
    def source(name: str, first: int) -> str:
        return f"""{TORCH}
__constant__ float w[2] = {{{first}.f, 1.f}};
__global__ void k{name}(float* y, const float* x, int n) {{ {ONE} = w[0] * x[threadIdx.x] + w[1]; }}
void set_{name}(float value) {{ cudaMemcpyToSymbol(w, &value, sizeof(float), sizeof(float)); }}
torch::Tensor {name}(torch::Tensor x) {{ auto y = torch::empty_like(x); {LAUNCHED.replace("k<", f"k{name}<")} return y; }}
"""

    main = f"{TORCH}torch::Tensor a(torch::Tensor); torch::Tensor b(torch::Tensor); void set_a(float);\n"
    main += f"torch::Tensor f(torch::Tensor x) {{ set_a(0.5f); return a(x) + b(x); }}\n{BOUND}"
    apart = source("b", 10).replace(source("b", 10).splitlines()[4], "")  # only one source copies to its variable
    module = loaded(tmp_path, m_cpp=main, a_cu=source("a", 2), b_cu=apart)
    assert computed(module, 1, 2) == [13.5, 25.5]
    main = f"void set_b(float);\n{main.replace('set_a(0.5f);', 'set_a(0.5f); set_b(2.f);')}"
    both = loaded(tmp_path, m_cpp=main, a_cu=source("a", 2), b_cu=source("b", 10))
    with pytest.raises(NotTranslated, match="variable `w`, which two sources have"):
        computed(both, 1, 2)


def test_the_headers_of_pytorch_may_be_included_by_a_header_of_the_host(tmp_path: Path) -> None:
    kernel = """#include "p.h"
__global__ void k(torch::PackedTensorAccessor32<float, 1> y) { y[threadIdx.x] *= 2; }
torch::Tensor f(torch::Tensor x) { k<<<1, x.size(0)>>>(x.packed_accessor32<float, 1>()); return x; }
"""
    module = loaded(
        tmp_path, p_h=f"{TORCH}torch::Tensor f(torch::Tensor);\n", a_cpp=f'#include "p.h"\n{BOUND}', b_cu=kernel
    )
    assert computed(module, 1, 2) == [2, 4]


def test_a_constant_parameter_makes_no_other_function(tmp_path: Path) -> None:
    header = "#include <torch/extension.h>\nint counted(int n);\ntorch::Tensor f(torch::Tensor x);\n"
    counting = '#include "p.h"\nstatic int own() { return 100; }\n'
    counting += "int counted(const int n) { static int count = 0; return (count += n) + own(); }\n"
    main = '#include "p.h"\nstatic int own() { return 1; }\n'
    main += f"torch::Tensor f(torch::Tensor x) {{ counted(1); return x + counted(2) + own(); }}\n{BOUND}"
    assert computed(loaded(tmp_path, p_h=header, a_cpp=main, b_cpp=counting), 1, 2) == [105, 106]
    one = f"{header}torch::Tensor f(torch::Tensor x) {{ counted(1); return x + counted(2) + again(); }}\n".replace(
        "int counted(int n);", "int counted(int n); int again();"
    )
    one += f"int counted(const int n) {{ static int count = 0; return count += n; }}\nint again() {{ return counted(10); }}\n{BOUND}"
    assert computed(loaded(tmp_path, c_cpp=one), 1) == [17]


def test_a_source_of_the_host_has_no_device_functions(tmp_path: Path) -> None:
    point = "struct Point { float x; __device__ Point(float v) : x(v) {} __device__ float twice() const { return 2 * x; } };\n"
    host = f"""{TORCH}{point}inline float min(float a, float b) {{ return a < b ? a - 100 : b - 100; }}
#ifdef __CUDACC__
#error "nvcc"
#endif
torch::Tensor g(torch::Tensor);
torch::Tensor f(torch::Tensor x) {{ return g(x) + Point(3).twice() + min(1.f, 2.f); }}
{BOUND}"""
    device = f"""{TORCH}{point}static __device__ float min(Point a, Point b) {{ return a.x < b.x ? a.twice() : b.twice(); }}
__global__ void k(float* y, const float* x, int n) {{ {ONE} = min(Point(x[threadIdx.x]), Point(5)); }}
torch::Tensor g(torch::Tensor x) {{ auto y = torch::empty_like(x); {LAUNCHED} return y; }}
"""
    assert computed(loaded(tmp_path, a_cpp=host, b_cu=device), 1, 7) == [2 + 6 - 99, 10 + 6 - 99]


def test_macros_of_a_source_leave_those_of_before(tmp_path: Path) -> None:
    first = "#ifndef M_PI\n#define M_PI 3.0\n#endif\n#undef TWO\n#define TWO 20\n"
    first += f"{TORCH}double g();\ntorch::Tensor f(torch::Tensor x) {{ return x * TWO + g(); }}\n{BOUND}"
    (tmp_path / "a.cpp").write_text(first)
    (tmp_path / "b.cpp").write_text("#include <cmath>\ndouble g() { return TWO + (M_PI > 3.1); }\n")
    module = load("several", [tmp_path / "a.cpp", tmp_path / "b.cpp"], extra_cflags=["-DTWO=2"])
    assert computed(module, 1) == [23]
