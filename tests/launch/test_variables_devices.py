"""Device variables, modules and linked texts: the same assertions in the simulator and on a GPU."""

from typing import Any

import numpy as np
import pytest
import torch

import cupyops
from cupyops import CompileError, Kernel, LaunchError, MissingDependencyError, Module, Threads
from cupyops.compile import linking
from cupyops.compile.compiler import OPTIONS, compile_text, warnings_in
from tests.launch.devices import DEVICES, GPU, device_of  # noqa: F401 - the fixture `device`

# Device variables

VARIABLES = """
__constant__ float table[N][2];
__device__ int count = 7, spare[3];
namespace physics { namespace here { __device__ double gravity; } }
__device__ float4 corner[2];
extern "C" __global__ void use(float* y, int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    y[i] = table[i][1] + float(physics::here::gravity) + corner[1].z + spare[2];
    atomicAdd(&count, 1);
}"""


def variables_kernel() -> Kernel:
    return Kernel(VARIABLES, "use", Threads("n", block=64), constants={"N": 4})


def test_variables_are_set_and_read(device: str) -> None:
    use, y = variables_kernel(), torch.zeros(4, device=device)
    assert list(use.variables) == ["table", "count", "spare", "physics::here::gravity", "corner"]
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    use.variables["table"] = table
    use.variables["physics::here::gravity"] = 10
    use.variables["corner"] = torch.full((2, 4), 100.0)
    use.variables["spare"] = [0, 0, 1000]
    for call in (1, 2, 3):
        use(y, 4)
        assert y.tolist() == [1 + 1110.0, 3 + 1110, 5 + 1110, 7 + 1110]
        assert use.variables["count"] == 7 + 4 * call
    assert (use.variables["table"] == table).all()
    assert use.variables["table"].dtype == np.float32
    copy = use.variables["spare"]
    copy[:] = 5
    assert use.variables["spare"].tolist() == [0, 0, 1000]


def test_a_variable_of_a_name_of_an_array(device: str) -> None:
    text = (
        "typedef float pair_t[2];\n__device__ pair_t table[3];\n"
        "__global__ void k(const pair_t* x /* (n) */, float* y, int n) { const int i = threadIdx.x;\n"
        " if (i < n) { y[i] = table[i][1] + x[i][0]; table[i][0] = y[i]; } }"
    )
    kernel, y = Kernel(text, "k", Threads("n")), torch.zeros(3, device=device)
    kernel.variables["table"] = np.arange(6, dtype=np.float32).reshape(3, 2)
    kernel(torch.full((3, 2), 10.0, device=device), y, 3)
    assert y.tolist() == [11.0, 13.0, 15.0]
    assert kernel.variables["table"].tolist() == [[11.0, 1.0], [13.0, 3.0], [15.0, 5.0]]


def test_another_kernel_of_the_text_has_variables_of_its_own(device: str) -> None:
    first, second = variables_kernel(), variables_kernel()
    first.variables["count"] = 1
    assert (first.variables["count"], second.variables["count"]) == (1, 7)


TEMPLATES = """
namespace shared { __device__ int calls; }
namespace ops {
template <typename T, int N = 3> __global__ void __launch_bounds__(32) scale(T* y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] *= N;
    if (threadIdx.x == 0) shared::calls += 1;
}
}
__global__ void plain(int* y) { y[0] = shared::calls; }
extern "C" __global__ void linked(int* y) { y[0] = -shared::calls; }
"""


def test_instances_of_a_template_share_a_module_with_other_kernels(device: str) -> None:
    module = Module(TEMPLATES, kernels=["scale<float, 4>", "ops::scale<int>", "plain", "linked"])
    x, y = torch.ones(4, device=device), torch.ones(4, dtype=torch.int32, device=device)
    module.kernel("scale<float, 4>", Threads("n", block=32))(x, 4)
    module.kernel("scale<int>", Threads("n", block=32))(y, 4)
    assert (x.tolist(), y.tolist()) == ([4] * 4, [3] * 4)
    module.kernel("plain", 1)[1](y)
    assert y.tolist() == [2, 3, 3, 3]
    module.kernel("linked", 1)[1](y)
    assert y.tolist() == [-2, 3, 3, 3]
    assert module.variables["shared::calls"] == 2


def test_a_module_names_its_kernels_and_not_its_templates() -> None:
    assert Module(TEMPLATES).names == ("plain", "linked")
    with pytest.raises(ValueError, match=r"no __global__ function 'scale' in the module; it has plain, linked"):
        Module(TEMPLATES).kernel("scale")
    with pytest.raises(ValueError, match=r"no __global__ function that is no template; name the instances, kernels="):
        Module("template <class T> __global__ void scale(T* y) {}")


def test_wrong_values_change_nothing(device: str) -> None:
    use = variables_kernel()
    use.variables["spare"] = [1, 2, 3]
    for name, value, error, words in (
        ("spare", [1, 2], ValueError, r"use<N=4>.variables: `spare` must have shape \(3,\), got \(2,\)"),
        ("spare", [1, 2, 2**31], ValueError, "`spare` must fit int32"),
        ("spare", [1.0, 2, 3], TypeError, "`spare` must have dtype int32, got float64"),
        ("spare", np.zeros(3), TypeError, "`spare` must have dtype int32, got float64"),
        ("spare", "abc", TypeError, "`spare` must have dtype int32"),
        ("table", np.zeros((2, 4), "float32"), ValueError, r"`table` must have shape \(4, 2\), got \(2, 4\)"),
        ("tabel", 1, KeyError, "no __device__ or __constant__ variable 'tabel' .* did you mean 'table'"),
    ):
        with pytest.raises(error, match=words):
            use.variables[name] = value
    assert use.variables["spare"].tolist() == [1, 2, 3]


def test_a_value_given_before_is_set_in_code_that_is_loaded_later(device: str) -> None:
    text = """__constant__ scalar_t factor[2];
    extern "C" __global__ void k(scalar_t* y) { y[0] = factor[1]; }"""
    kernel = Kernel(text, "k", 1, dtypes=("float32", "float64"))
    kernel.variables["factor"] = [1, 2.5]
    for dtype in (torch.float32, torch.float64):
        y = torch.zeros(1, dtype=dtype, device=device)
        kernel[1](y)
        assert y.item() == 2.5
    with pytest.raises(
        ValueError, match="k: each choice of dtypes has variables of its own, and the kernel has run with 2"
    ):
        kernel.variables["factor"]


# Modules

MODULE = """
__device__ int total;
__device__ int seen[4];
extern "C" __global__ void __launch_bounds__(64) add(const int* x,  // (n)
    int n) {
    if (threadIdx.x < n) atomicAdd(&total, x[threadIdx.x]);
}
extern "C" __global__ void take(int* y) {
    __shared__ int s;
    if (threadIdx.x == 0) s = total, total = 0, y[0] = s, seen[threadIdx.x] += 1;
}"""


def test_the_kernels_of_a_module_share_variables_and_two_modules_do_not(device: str) -> None:
    first, second = Module(MODULE), Module(MODULE)
    x, y = torch.arange(10, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    add, take = first.kernel("add", Threads("n", block=64)), first.kernel("take", 1)
    first.variables["total"] = 100
    for expected in (145, 45):
        add(x, 10)
        take[1](y)
        assert (y.item(), first.variables["total"]) == (expected, 0)
    assert first.variables["seen"][0] == 2
    assert second.variables["seen"][0] == 0
    assert take.variables["seen"][0] == 2
    with pytest.raises(LaunchError, match="64 threads a block|was refused|OUT_OF_RESOURCES|INVALID_VALUE"):
        first.kernel("add", Threads("n", block=128))(x, 10)


# Linked texts

MAIN = """
extern __device__ float shaped(float x);
extern __constant__ float factor;
extern "C" __global__ void linked(const scalar_t* x,  // (n)
    scalar_t* y,  // (n)
    int n) {
    if (threadIdx.x < n) y[threadIdx.x] = scalar_t(shaped(float(x[threadIdx.x])) * factor);
}"""
OTHER = """
__constant__ float factor = 3;
static __device__ float helper(float x) { return x + OFFSET; }
__device__ float shaped(float x) { return helper(x) + sizeof(scalar_t); }
"""
THIRD = "static __device__ int helper(int x) { return x; }\n__device__ int unused(int x) { return helper(x); }\n"


def linked_kernel(**options: Any) -> Kernel:
    types = {"dtypes": ("float32", "float16"), "constants": {"OFFSET": 10}}
    return Kernel(MAIN, "linked", Threads("n", block=64), **{**types, "link": [OTHER, THIRD], **options})


def no_linker() -> str:
    try:
        linking._library()
    except MissingDependencyError as error:
        return str(error)
    return ""


NEEDS_LINKER = pytest.mark.skipif(bool(no_linker()), reason="needs nvJitLink of CuPy's CUDA version")


@pytest.mark.parametrize("options", [(), ("-dlto",)], ids=["rdc", "lto"])
@pytest.mark.parametrize("device", [DEVICES[0], pytest.param("cuda", marks=[GPU, NEEDS_LINKER])], indirect=True)
def test_linked_texts(device: str, options: tuple[str, ...]) -> None:
    linked = linked_kernel(options=options)
    for dtype in (torch.float32, torch.float16):
        x = torch.arange(5, device=device, dtype=dtype)
        y = torch.empty_like(x)
        linked(x, y, 5)
        assert torch.equal(y, (x + 10 + x.itemsize) * 3)
    one = linked_kernel(options=options, dtypes=("float32",))
    one.variables["factor"] = 5
    x = torch.arange(5.0, device=device)
    one(x, y := torch.empty_like(x), 5)
    assert torch.equal(y, (x + 14) * 5)


@pytest.mark.simulator
def test_a_function_that_no_text_defines_is_named() -> None:
    alone = linked_kernel(link=[], dtypes=("float32",))
    x = np.zeros(5, "float32")
    with (
        cupyops.simulate(),
        pytest.raises(CompileError, match=r"linked<.*>: no text defines `(shaped\(float\)|factor)`"),
    ):
        alone(x, x.copy(), 5)


# Streams, graphs and devices


@pytest.mark.gpu
def test_a_variable_is_set_behind_the_work_of_a_stream_and_of_all_streams() -> None:
    text = """__device__ int v;
    extern "C" __global__ void k(int* y) { y[0] = v; }
    """
    kernel, y = Kernel(text, "k", 1), torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel[1](y)
    side = torch.cuda.Stream()
    for stream in (None, side):
        kernel.variables["v"] = 1
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            kernel[1](y)
        kernel.variables.write("v", 2, stream=stream)
        assert (y.item(), kernel.variables["v"], kernel.variables.read("v", stream=side)) == (1, 2, 2)


@pytest.mark.gpu
def test_a_capture_refuses_variables_and_a_replay_reads_them() -> None:
    kernel, y = variables_kernel(), torch.zeros(4, device="cuda")
    kernel(y, 4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(y, 4)
        with pytest.raises(RuntimeError, match="use: `spare` cannot be read or set while a CUDA graph is captured"):
            kernel.variables["spare"] = [0, 0, 5]
    kernel.variables["spare"] = [0, 0, 5]
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [5.0] * 4


@pytest.mark.gpu
@pytest.mark.multi_gpu
def test_a_variable_is_set_on_every_gpu_and_read_on_the_current_one() -> None:
    kernel = variables_kernel()
    kernel.variables["spare"] = [1, 2, 3]
    for device in (0, 1):
        with torch.cuda.device(device):
            y = torch.zeros(4, device=f"cuda:{device}")
            for _ in range(device + 1):
                kernel(y, 4)
            assert y.tolist() == [3.0] * 4
            assert kernel.variables["count"] == 7 + 4 * (device + 1)
    kernel.variables["count"] = 0
    for device in (0, 1):
        with torch.cuda.device(device):
            assert kernel.variables["count"] == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_texts_of_variables_and_modules_compile_for_a_gpu(target: str) -> None:
    for kernel, names in (
        (variables_kernel(), {"use"}),
        (Module(MODULE).kernel("take", 1), {"add", "take"}),
        (
            Module(TEMPLATES, kernels=["ops::scale<int>", "plain"]).kernel("plain"),
            {"_ZN3ops5scaleIiLi3EEEvPT_i", "_Z5plainPi"},
        ),
    ):
        binary = compile_text(kernel.final_text({}), kernel.name, target, OPTIONS)
        assert names <= set(binary.resources)
        assert kernel.source.named(binary) in names
        assert not warnings_in(binary.log)
