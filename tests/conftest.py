"""What every test file shares: lanes, the GPU marks, and a cache folder of the tests' own."""

import os
from collections.abc import Iterator

import pytest
import torch

import cupyops
from cupyops.simulator import host


def _missing_for_gpu() -> str:
    """Why GPU tests cannot run here, or nothing."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy does not import: {error}"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA GPU"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy sees no CUDA GPU: {error}"
    return ""


NO_GPU = _missing_for_gpu()
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
NO_COMPILER = host.missing()
# The same assertions in each lane: the reference on the CPU, the kernel on the CPU under sanitizers, the kernel on the GPU.
LANES = [
    pytest.param("reference"),
    pytest.param("simulator", marks=pytest.mark.simulator),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and NO_GPU:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {NO_GPU}"))
        if item.get_closest_marker("simulator") and NO_COMPILER:
            item.add_marker(pytest.mark.skip(reason=f"the simulator lane: {NO_COMPILER}"))
        if item.get_closest_marker("multi_gpu") and torch.cuda.device_count() < 2:
            item.add_marker(pytest.mark.skip(reason="needs two GPUs"))
        if item.get_closest_marker("large") and os.environ.get("CUPYOPS_TEST_LARGE") != "1":
            item.add_marker(pytest.mark.skip(reason="needs CUPYOPS_TEST_LARGE=1 and 40 GiB of GPU memory"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> Iterator[str]:
    """What runs an operator: plain PyTorch on the CPU, the kernel on the CPU, the kernel on the GPU."""
    with cupyops.simulate(request.param == "simulator", sanitize=True):
        yield str(request.param)


@pytest.fixture
def device(lane: str) -> str:
    """Where the tensors of a test are."""
    return "cuda" if lane == "cuda" else "cpu"


@pytest.fixture
def kernels(lane: str) -> bool:
    """Whether kernels run, whose results are the same bits for every layout."""
    return lane != "reference"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Have PyTorch use one thread: on tensors of a few elements, more of them only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """PyTorch's own loops: on some CPUs it hands gelu to oneDNN, whose gelu of infinity is NaN, and which is less accurate."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)
