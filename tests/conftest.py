"""Fixtures of all tests: backends, the GPU marks, and a cache folder of the tests."""

import gc
import logging
import os
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._export.utils

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
# The same assertions on each backend: the reference on the CPU, the kernel on the CPU under sanitizers, the kernel on the GPU.
BACKENDS = [
    pytest.param("reference"),
    pytest.param("simulator", marks=pytest.mark.simulator),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


# A worker of xdist has one thread of PyTorch's. The tests' tensors are small, and threads that wait for each other burn cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # beyond one, processes that import PyTorch first
# Where the environment forbids bytecode on disk, each process that tests start would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Inductor would compile a program for each of the CPU's vector instructions, to see whether they run. No test asks for them.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# Where the root logger has no handler, libraries such as Lightning add one of their own, which keeps the stream that a test captures.
logging.getLogger().addHandler(logging.NullHandler())

# An export asks for PyTorch's composite operators once for each namespace, and each time looks all of them up. They take a quarter
# of the time of tests that export.
_materialize = torch._export.utils._materialize_cpp_cia_ops


def _materialize_new() -> None:
    """Looks up the composite operators again if new ones have been registered."""
    if (found := torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")) != _composite:
        _materialize()
        _composite[:] = found


_composite: list[str] = []
torch._export.utils._materialize_cpp_cia_ops = _materialize_new

# Compiled graphs call the kernels, which tests look at. tests/models/test_choices.py has the choices.
os.environ["CUPYOPS_CHOICES"] = "0"
# Dynamo would collect garbage after each of the tests' thousand compilations.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

# torch.compile allocates so many objects that collections of garbage at the default threshold take a tenth of the tests' time.
gc.set_threshold(20_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Gives the tests a cache folder of their own in .pytest_cache, where later runs find what this one compiles.

    Entries are keyed by content. ``pytest --cache-clear`` empties the folder. With ``-p no:cacheprovider``, the environment decides.
    """
    if (kept := getattr(config, "cache", None)) is not None:
        os.environ["CUPYOPS_CACHE_DIR"] = str(kept.mkdir("cupyops"))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kept.mkdir("inductor"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives a worker of xdist consecutive tests. They share the fixtures of a module, and what they import."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def _values(item: pytest.Item) -> tuple[set[object], set[object]]:
    """Returns the values of a case's parameters, and the pairs of them."""
    callspec = getattr(item, "callspec", None)
    # By identity: a value may be unhashable, and 1 equals True. Cases of one parameter share its objects.
    found = [(name, id(value)) for name, value in callspec.params.items()] if callspec else []
    return set(found), set(combinations(found, 2))


def _sampled(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Returns ``count`` cases of a test: at each step, one with the most values, and then pairs of values, that are new."""
    known: set[object] = set()
    # In an order whose beginnings spread over all cases: multiples of the golden ratio. Neighbours in a list are
    # similar.
    spread = sorted(range(len(items)), key=lambda i: i * 0.618034 % 1)
    left = [(items[i], *_values(items[i])) for i in spread]
    found = []
    while left and len(found) < count:
        best = max(left, key=lambda case: (len(case[1] - known), len(case[2] - known)))
        left.remove(best)
        found.append(best[0])
        known |= best[1] | best[2]
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if NO_GPU:
        # One case of each test is skipped, and names it. The others are left out: a report takes time in two processes.
        of_tests: dict[tuple[Path, str], list[pytest.Item]] = {}
        for item in items:
            if item.get_closest_marker("gpu"):
                of_tests.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
        for (_, name), (first, *others) in of_tests.items():
            first.add_marker(pytest.mark.skip(reason=f"needs a GPU: {NO_GPU}; cases of {name}: {1 + len(others)}"))
        left_out = {other for _, *others in of_tests.values() for other in others}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    of_samples: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        elsewhere = item.get_closest_marker("thorough") or (NO_GPU and item.get_closest_marker("gpu"))
        if item.get_closest_marker("sample") and not elsewhere:
            of_samples.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for cases in of_samples.values():
        mark = cases[0].get_closest_marker("sample")
        assert mark is not None
        sampled = set(_sampled(cases, *mark.args))
        for case in cases:
            if case not in sampled:
                case.add_marker("thorough")
    for item in items:
        if item.get_closest_marker("simulator") and NO_COMPILER:
            item.add_marker(pytest.mark.skip(reason=f"the simulator backend: {NO_COMPILER}"))
        if item.get_closest_marker("multi_gpu") and torch.cuda.device_count() < 2:
            item.add_marker(pytest.mark.skip(reason="needs two GPUs"))
        if item.get_closest_marker("large") and os.environ.get("CUPYOPS_TEST_LARGE") != "1":
            item.add_marker(pytest.mark.skip(reason="needs CUPYOPS_TEST_LARGE=1 and 40 GiB of GPU memory"))


def pytest_collection_finish() -> None:
    """Leaves the modules and the tests out of every later collection of garbage, which would go through them each time."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _collected() -> None:
    """Leaves what earlier files have made out of later collections, too: modules of PyTorch, compiled programs, loaded kernels."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Without a GPU, torch.manual_seed keeps the seed for the start of CUDA, with a traceback of pytest's deep stack.
    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(0)
    # Dynamo empties the CPU's caches after each compilation, to time the guards for its log.
    if (guards := sys.modules.get("torch._dynamo.guards")) is not None:
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The implementation of an operator: plain PyTorch on the CPU, the kernel on the CPU, the kernel on the GPU."""
    with cupyops.simulate(request.param == "simulator", sanitize=True):
        yield str(request.param)


@pytest.fixture
def device(backend: str) -> str:
    """The device of a test's tensors."""
    return "cuda" if backend == "cuda" else "cpu"


@pytest.fixture
def kernels(backend: str) -> bool:
    """Whether kernels run; their results have the same bits for every layout."""
    return backend != "reference"


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
