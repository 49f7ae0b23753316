"""Kernels are loaded on the GPU of their arrays, once for each choice of types, with what their launches need."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cupyops import Elementwise, GridStride, Kernel, Rows, warmup
from cupyops.compile.cache import Binary
from cupyops.errors import LaunchError
from cupyops.launch import driver
from tests.gpu.stub_gpu import TEXT, scale


class Gpus:
    """CuPy's devices: which one is current, and kernels whose handle belongs to the current one, as CuPy's do."""

    def __init__(self) -> None:
        self.current = 0
        self.attributes = {"MultiProcessorCount": 132}
        self.compute_capability = "90"
        self.cuda = SimpleNamespace(Device=self.device)

    @contextmanager
    def device(self, index: int) -> Iterator["Gpus"]:
        before, self.current = self.current, index
        yield self
        self.current = before

    @property
    def kernel(self) -> Any:
        return SimpleNamespace(ptr=100 + self.current)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    found = Gpus()
    monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: found)
    monkeypatch.setattr("cupyops.launch.load.target_for", "sm_{}".format)
    monkeypatch.setattr("cupyops.launch.load.binary_for", lambda *args: Binary(b"", "", {}, 0.0))
    monkeypatch.setattr(driver, "load", lambda binary, name: found)
    return found


def test_a_kernel_is_loaded_on_the_gpu_of_its_arrays(gpus: Gpus) -> None:
    """The current GPU does not matter: a handle of one GPU is invalid on another."""
    found = scale()
    assert [found.variant({"scalar_t": "float32"}, device).function for device in (1, 0, 1)] == [101, 100, 101]


@pytest.mark.parametrize(
    ("capability", "exactly", "words"),
    [
        ("80", False, "scale<float32> needs a GPU of sm_90 or later, and GPU 0 is sm_80"),
        ("80", True, "scale<float32> needs a GPU of sm_90 and no other, and GPU 0 is sm_80"),
        ("100", True, "scale<float32> needs a GPU of sm_90 and no other, and GPU 0 is sm_100"),
        ("100", False, ""),
        ("90", True, ""),
    ],
)
def test_a_kernel_is_not_loaded_on_a_gpu_that_lacks_what_it_needs(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, capability: str, exactly: bool, words: str
) -> None:
    gpus.compute_capability = capability
    monkeypatch.setattr(driver, "capability", lambda device: int(capability))
    found = scale(since=90, exactly=exactly)
    assert found.options == (("-arch=sm_90a",) if exactly else ())
    assert warmup(("float32",), kernels=[found], device=0) == (0 if words else 1)
    if not words:
        assert found.variant({"scalar_t": "float32"}, 0).function == 100
        return
    with pytest.raises(LaunchError) as caught:
        found.variant({"scalar_t": "float32"}, 0)
    assert str(caught.value) == words


def test_variants_are_kept_apart_by_type_and_device(gpus: Gpus) -> None:
    found = Kernel(TEXT, "gather", Elementwise("n"), dtypes=("float32", "float64", "int32"))
    types = [{"scalar_t": a, "index_t": b} for a in ("float32", "float64") for b in ("float64", "int32")]
    variants = [found.variant(t, device) for t in types for device in (0, 1)]
    assert len({id(v) for v in variants}) == 8
    assert variants == [found.variant(t, device) for t in types for device in (0, 1)]
    # One group of 16 bytes of the widest array a thread.
    assert [v.grid(1024)[0] for v in variants[::2]] == [4, 2, 4, 4]


def test_a_text_is_compiled_for_its_gpu_with_the_options_of_its_kernel(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []

    def binary_for(*args: Any) -> Binary:
        given.append(args)
        return Binary(b"", "", {}, 0.0)

    monkeypatch.setattr("cupyops.launch.load.binary_for", binary_for)
    found = scale(options=("--maxrregcount=32",))
    found.variant({"scalar_t": "float16"}, 0)
    text = found.final_text({"scalar_t": "float16"})
    assert given == [(text, "scale<float16>", "sm_90", ("--maxrregcount=32",))]


def test_a_grid_has_blocks_for_the_multiprocessors_of_the_gpu(gpus: Gpus) -> None:
    units = []
    for count in (132, 66):
        gpus.attributes["MultiProcessorCount"] = count
        units.append(scale(GridStride("N", blocks_per_multiprocessor=3)).variant({"scalar_t": "float32"}, 0).unit)
    assert units == [396, 198]


@pytest.mark.parametrize("declared", ["", "__device__ int calls;"])
def test_a_kernel_with_variables_shares_their_code(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, declared: str) -> None:
    """The variables of a text belong to one module on a GPU, and each kernel of the text is a function of this module."""
    code = SimpleNamespace(
        module=SimpleNamespace(get_function=lambda name: SimpleNamespace(name=name, kernel=gpus.kernel))
    )
    monkeypatch.setattr("cupyops.launch.variables.Storage.on_gpu", lambda *args: code)
    text = f'{declared}\nextern "C" __global__ void one(float* x, long long n) {{}}'
    variant = Kernel(text, "one", Elementwise("n")).variant({}, 0)
    assert variant.code is (code if declared else None)
    assert (variant.raw is gpus) is not bool(declared)


def test_threads_that_need_a_kernel_at_once_build_it_once(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def slow(*args: Any) -> Binary:
        built.append(args)
        threading.Event().wait(0.05)
        return Binary(b"", "", {}, 0.0)

    monkeypatch.setattr("cupyops.launch.load.binary_for", slow)
    found, variants = scale(), []
    threads = [
        threading.Thread(target=lambda: variants.append(found.variant({"scalar_t": "float32"}, 0))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(variants) == 8
    assert len({id(v) for v in variants}) == 1


def test_dynamic_shared_memory_is_asked_for(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(driver, "allow_shared_memory", lambda raw, size: asked.append(size))
    # Beside what the text itself declares, less than 48 KiB may already be too much.
    for size in (0, 40 * 1024, 48 * 1024 + 1, 200_000):
        scale(shared=size).variant({"scalar_t": "float32"}, 0)
    assert asked == [40 * 1024, 48 * 1024 + 1, 200_000]


def test_clusters_of_more_than_eight_blocks_are_asked_for(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(driver, "allow_large_clusters", lambda raw: asked.append(raw))
    scale(Rows("N", blocks_per_row=8)).variant({"scalar_t": "float32"}, 0)
    assert not asked
    scale(Rows("N", blocks_per_row=16)).variant({"scalar_t": "float32"}, 0)
    assert len(asked) == 1
