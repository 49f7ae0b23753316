"""Launches and bodies ask arrays for their library, their layout and conversions."""

import ctypes
import itertools
import math
import os
import random
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cupyops.torch  # makes tensors known
from cupyops import Kernel, MissingDependencyError
from cupyops.arrays import (
    LIBRARIES,
    CupyLibrary,
    Info,
    as_cupy,
    dense,
    in_use,
    is_contiguous,
    is_dense,
    library_of,
    numpy_dtype,
    on_any_arrays,
)
from cupyops.dtypes import DTYPES
from tests import preloaded

# Layouts


def addresses(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The address of each element, in C order."""
    indices = itertools.product(*(range(n) for n in shape))
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


def layouts() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Slices, permutations, expansions and plain nonsense of up to four dimensions."""
    generator = random.Random(0)
    found = []
    for _ in range(3000):
        shape = tuple(generator.choice([0, 1, 1, 2, 2, 3, 4]) for _ in range(generator.randint(0, 4)))
        order = list(range(len(shape)))
        generator.shuffle(order)
        strides, step = [0] * len(shape), 1
        for d in reversed(order if generator.random() < 0.7 else sorted(order)):
            strides[d] = step
            step *= max(shape[d], 1)
        for d in range(len(shape)):
            if generator.random() < 0.25 or (shape[d] == 1 and generator.random() < 0.5):
                strides[d] = generator.choice([0, 1, 2, 7, strides[d] + 1, 2 * strides[d]])
        found.append((shape, tuple(strides)))
    return found


def test_dense_layouts_are_those_without_holes_or_overlaps() -> None:
    outcomes = []
    for shape, strides in layouts():
        expected = sorted(addresses(shape, strides)) == list(range(math.prod(shape)))
        assert is_dense(shape, strides) == expected, (shape, strides)
        outcomes.append(expected)
    assert 500 < sum(outcomes) < 2700  # both answers have been tried


def test_contiguous_layouts_are_those_in_c_order() -> None:
    outcomes = []
    for shape, strides in layouts():
        expected = addresses(shape, strides) == list(range(math.prod(shape)))
        info = Info("float32", shape, strides, math.prod(shape), "cuda", 0, 0)
        assert is_contiguous(info) == expected, (shape, strides)
        if min(shape, default=1):
            assert torch.empty_strided(shape, strides).is_contiguous() == expected, (shape, strides)
        outcomes.append(expected)
    assert 300 < sum(outcomes) < 2700


def test_reversed_layouts_are_not_dense() -> None:
    """Their elements fill memory, but before the address that a kernel is given."""
    assert not is_dense((4,), (-1,))
    assert not is_dense((2, 3), (3, -1))


@pytest.mark.simulator
def test_a_simulated_kernel_reads_a_reversed_array_back_from_its_first_element() -> None:
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    kernel = Kernel("__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[-(int)threadIdx.x]; }", "k", 5)
    with cupyops.simulate(sanitize=True):
        kernel[5](x[::-1], y)
    assert y.tolist() == [4, 3, 2, 1, 0]


def test_dense_keeps_what_is_dense_and_copies_the_rest() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for kept in (x, x.permute(2, 0, 1), x[:1], x[0, 0, 0], x[:, :0]):
        assert dense(kept) is kept
    for view in (x[:, ::2], x[..., 1:], x[:, :1].expand(2, 5, 4)):
        copy = dense(view)
        assert copy.is_contiguous()
        assert torch.equal(copy, view)
        assert copy.data_ptr() != view.data_ptr()


# Libraries


class Subclass(torch.Tensor):
    pass


def test_subclasses_belong_to_the_library_of_their_base() -> None:
    library = library_of(torch.ones(1))
    assert library.name == "torch"
    assert library_of(torch.nn.Parameter(torch.ones(1))) is library
    assert library_of(torch.ones(1).as_subclass(Subclass)) is library  # type: ignore[no-untyped-call]
    assert Subclass not in LIBRARIES  # a graph of torch.compile that holds the number of entries stays valid


def test_a_function_of_any_arrays_converts_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cupyops.arrays.as_cupy", lambda x, where, argument: (x, where, argument))

    @on_any_arrays("x", "bias?", "more?")
    def combine(x: Any, factor: Any, bias: Any = None, *, more: Any = None, plain: Any = (1,)) -> Any:
        """Says what it got."""
        return x, factor, bias, more, plain

    assert combine(1, 2) == ((1, "combine", "x"), 2, None, None, (1,))
    assert combine(None, factor=2, more=3)[0] == (None, "combine", "x")
    assert combine(1, 2, 3, more=4, plain=5) == (
        (1, "combine", "x"),
        2,
        (3, "combine", "bias"),
        (4, "combine", "more"),
        5,
    )
    assert combine.__doc__ == "Says what it got."
    with pytest.raises(TypeError, match=r"combine\(\) missing 1 required positional argument: 'factor'"):
        combine(1)


@pytest.mark.parametrize(
    ("x", "name"),
    [(np.ones(2), "numpy.ndarray"), ([1.0], "builtins.list"), (1.0, "builtins.float"), (torch.Size(), "torch.Size")],
)
def test_what_no_kernel_runs_on_is_named(x: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} is not an array that kernels run on$"):
        library_of(x)
    assert type(x) not in LIBRARIES


def test_tensors_are_known_without_anybody_importing_the_part_that_knows_them() -> None:
    """Only torch and the launcher have been imported, and the first tensor is of a user's class."""
    script = """
import torch
from cupyops.arrays import library_of
class Mine(torch.Tensor): pass
for x in (torch.ones(2).as_subclass(Mine), torch.ones(2)):
    print(library_of(x).name)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = preloaded.run(["-c", script], env=environment)
    assert done.stdout.split() == ["torch", "torch"], done.stderr


def test_info_of_tensors() -> None:
    library = library_of(torch.ones(1))
    x = torch.empty(2, 3, dtype=torch.bfloat16).t()
    assert library.info(x) == Info("bfloat16", (3, 2), (1, 3), 6, "cpu", None, 0)
    assert str(library.info(x)) == "bfloat16[3, 2] on cpu"
    assert library.info(torch.empty(4, device="meta")) == Info("float32", (4,), (1,), 4, "meta", None, 0, fake=True)
    assert (
        library.dtype_name(torch.ones(1, dtype=torch.complex64)) == "complex64"
    )  # unknown to kernels, but not nameless


def test_info_of_cupy_arrays() -> None:
    """Uses host memory in place of a GPU's, which is inspected but not used."""
    cupy = pytest.importorskip("cupy")
    memory = ctypes.create_string_buffer(4096)
    start = ctypes.addressof(memory)
    pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(start, 4096, memory, device_id=0), 0)
    x = cupy.ndarray((4, 6), dtype="float16", memptr=pointer)
    library = library_of(x)
    assert (library.name, library.is_fake(x), library.is_host_scalar(x), library.size(x)) == ("cupy", False, False, 24)
    assert library.info(x) == Info("float16", (4, 6), (6, 1), 24, "cuda", 0, start)
    assert library.info(x.T[1:]) == Info("float16", (5, 4), (1, 6), 20, "cuda", 0, start + 2)
    assert library.info(x[::-1, ::2]) == Info("float16", (4, 3), (-6, 2), 12, "cuda", 0, start + 2 * 18)
    assert (library.is_contiguous(x), library.is_contiguous(x.T)) == (True, False)
    flags = cupy.ndarray((3,), dtype=bool, memptr=pointer)
    assert library.dtype_name(flags) == library.info(flags).dtype == "bool"


def test_cupy_allocates_on_the_device_of_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    current, seen = [0], []

    @contextmanager
    def device() -> Any:
        current.append(1)
        yield
        current.pop()

    def allocate(*args: Any, **options: Any) -> None:
        seen.append(current[-1])

    cupy = SimpleNamespace(empty=allocate, empty_like=allocate, ascontiguousarray=allocate)
    monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: cupy)
    library = CupyLibrary()
    for allocation in (library.empty_like, library.contiguous, lambda x: library.empty((2,), "float32", x)):
        allocation(SimpleNamespace(device=device()))
    assert seen == [1, 1, 1]
    assert current == [0]


def test_the_library_in_use_is_pytorchs_after_pytorch_has_used_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch without arrays takes the stream of this library."""
    for used, name in ((False, "cupy"), (True, "torch")):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda used=used: used)
        assert in_use().name == name


# Conversion


class Elsewhere:
    """Exports DLPack from some kind of device."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack__(self) -> None:
        raise AssertionError("exported")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


@pytest.mark.parametrize("x", [np.ones(3), torch.ones(3), Elsewhere(1), Elsewhere(3), Elsewhere(10)])
def test_arrays_that_are_not_on_a_gpu_are_refused(x: Any) -> None:
    pytest.importorskip("cupy")
    with pytest.raises(
        ValueError, match="^gelu: `x` must be in the memory of a CUDA GPU, got an array in host memory\\. On"
    ):
        as_cupy(x, "gelu", "x")


@pytest.mark.parametrize(("x", "kind"), [([1.0], "list"), (1.0, "float"), (None, "NoneType"), ("x", "str")])
def test_what_is_no_array_is_refused(x: Any, kind: str) -> None:
    pytest.importorskip("cupy")
    with pytest.raises(TypeError, match=f"^add2: `b` must be an array that exports DLPack, got {kind}$"):
        as_cupy(x, "add2", "b")


@pytest.mark.parametrize("kind", [2, 13])
def test_gpu_and_managed_memory_are_taken(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    cupy = SimpleNamespace(ndarray=str, from_dlpack=lambda x: ("from", x))
    monkeypatch.setattr("cupyops.compile.toolchain.cupy", lambda: cupy)
    x = Elsewhere(kind)
    assert as_cupy(x, "gelu", "x") == ("from", x)
    assert as_cupy("an array of CuPy's own", "gelu", "x") == "an array of CuPy's own"


# Element types


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_has_every_dtype(name: str) -> None:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    found = numpy_dtype(name)
    assert (str(found), found.itemsize) == (name, DTYPES[name].itemsize)
    assert torch.empty(0, dtype=getattr(torch, name)).element_size() == DTYPES[name].itemsize


def test_bfloat16_without_its_package_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingDependencyError, match="needs ml_dtypes. Install it with: pip install 'ml_dtypes>=0.5'$"):
        numpy_dtype("bfloat16")
    numpy_dtype("float16")


def test_whether_products_may_be_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    library, before = LIBRARIES[torch.Tensor], matmul.allow_tf32
    try:
        for allowed in (True, False):
            matmul.allow_tf32 = allowed
            assert library.tf32() is allowed
    finally:
        matmul.allow_tf32 = before
    for said, allowed in (("1", True), ("0", False)):
        monkeypatch.setenv("CUPY_TF32", said)
        assert CupyLibrary().tf32() is allowed
    monkeypatch.delenv("CUPY_TF32")
    assert CupyLibrary().tf32() is False
