"""Properties of an array besides its address: the negative bit, whether it may be written to, and what autograd has
saved of it."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cupyops
from cupyops import Kernel, Threads
from cupyops.launch import driver
from cupyops.launch.generated import TensorAccess, write_launch
from cupyops.torch import operator
from cupyops.torch.core.tensors import TorchLibrary

TEXT = """
extern "C" __global__ void twice(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    scalar_t* more,     // (n) or null
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(2) * x[i];
    if (i < n && more) more[i] = y[i];
}
"""
TWICE = Kernel(TEXT, "twice", Threads("n"), dtypes=("float32", "float64"))


class Launches:
    """The kernel by both launches: simulated, and by the function written for a GPU, of which only what it launches and counts is
    looked at."""

    def __init__(self, fast: bool) -> None:
        self.launched: list[Any] = []
        self.fast = fast
        if not fast:
            return
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(driver, "launch_kernel", lambda: lambda *a: self.launched.append(a))
            tensors = TensorAccess(
                frozenset({Tensor, torch.nn.Parameter}),
                lambda: -1,
                lambda d: 0,
                lambda: 1,
                torch.is_grad_enabled,
                TorchLibrary().written,
            )
            self.launch, self.vouched, variants = write_launch(
                *(
                    TWICE.signature,
                    TWICE.geometry,
                    TWICE.constants,
                    tensors,
                    TWICE.checked_launch,
                    TWICE.checked_vouched,
                )
            )
        packing = TWICE.signature.packing({"scalar_t": "float32"}, {})[0]
        new = lambda: (ctypes.create_string_buffer(64), 0)  # noqa: E731
        variant = SimpleNamespace(unit=1, buffers=[], new_buffer=new, pack_into=packing.pack_into, function=1, shared=0)
        for key in ((-1, torch.float32), (-1, *[torch.float32] * 2, None), (-1, *[torch.float32] * 3)):
            variants[key] = variant

    def __call__(self, *args: Any) -> None:
        if self.fast:
            self.launch(*args)
            return
        with cupyops.simulate():
            TWICE(*args)


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.simulator, id="checked"), pytest.param(True, id="fast")])
def launches(request: pytest.FixtureRequest) -> Launches:
    return Launches(request.param)


def negated(x: Tensor) -> Tensor:
    """The same values, of a view whose memory holds the negated ones."""
    return (-x)._neg_view()


# The negative bit


@pytest.mark.parametrize("view", ["_neg_view", "imaginary part of a conjugate"])
def test_an_input_whose_memory_holds_the_negated_values_is_refused(launches: Launches, view: str) -> None:
    x = torch.ones(3)._neg_view()
    if view != "_neg_view":
        x = torch.complex(torch.ones(1), torch.ones(1)).conj().imag
    assert x.is_neg()
    words = r"^twice: `x` must not have the negative bit, .* got one that .*. Pass x.resolve_neg\(\)$"
    with pytest.raises(ValueError, match=words):
        launches(x, torch.zeros(x.numel()), None, x.numel())
    assert not launches.launched
    launches(x.resolve_neg(), torch.zeros(x.numel()), None, x.numel())


@pytest.mark.parametrize("name", ["y", "more"])
def test_an_output_with_the_negative_bit_is_refused(launches: Launches, name: str) -> None:
    outputs = {"y": torch.zeros(3), "more": torch.zeros(3), name: torch.zeros(3)._neg_view()}
    words = (
        rf"^twice: `{name}` must not have the negative bit, .* Pass a tensor of its own, as torch.empty_like\({name}\)"
    )
    with pytest.raises(ValueError, match=words):
        launches(torch.ones(3), *outputs.values(), 3)
    assert not launches.launched


# What may not be written to


@pytest.mark.simulator
@pytest.mark.parametrize("source", ["flags", "dlpack", "broadcast"])
def test_a_read_only_array_of_numpy_is_no_output(source: str) -> None:
    x, y = np.ones(3, "float32"), np.zeros(3, "float32")
    y.flags.writeable = False
    if source == "dlpack":
        y = np.from_dlpack(y)
    if source == "broadcast":
        y = np.broadcast_to(y, (1, 3))
    with cupyops.simulate():
        with pytest.raises(ValueError, match="^twice: `y` must be writable, got a read-only array$"):
            TWICE(x, y, None, 3)
        assert not y.any()
        TWICE(y.reshape(3), np.zeros(3, "float32"), None, 3)  # it may be read


@pytest.mark.parametrize("kind", ["a leaf", "a view of a leaf", "no leaf", "a parameter"])
@pytest.mark.parametrize("name", ["y", "more"])
def test_what_requires_grad_is_no_output_while_gradients_are_recorded(launches: Launches, kind: str, name: str) -> None:
    leaf = torch.zeros(3, requires_grad=True)
    chosen = {
        "a leaf": leaf,
        "a view of a leaf": leaf[:],
        "no leaf": leaf * 1,
        "a parameter": torch.nn.Parameter(leaf),
    }[kind]
    outputs = {"y": torch.zeros(3), "more": torch.zeros(3), name: chosen}
    words = rf"^twice: `{name}` must not require grad while gradients are recorded, .* torch.no_grad\(\), or pass {name}.detach\(\)$"
    with pytest.raises(RuntimeError, match=words):
        launches(torch.ones(3, requires_grad=True), *outputs.values(), 3)
    assert not chosen.any()
    assert not launches.launched
    with torch.no_grad():
        launches(torch.ones(3, requires_grad=True), *outputs.values(), 3)
    launches(torch.ones(3, requires_grad=True), *[x.detach() for x in outputs.values()], 3)
    assert len(launches.launched) == (2 if launches.fast else 0)


# Versions


def test_each_launch_counts_the_versions_of_its_outputs_up(launches: Launches) -> None:
    x, y, more = torch.ones(3), torch.zeros(3), torch.zeros(4)[1:]
    launches(x, y, more, 3)
    assert (x._version, y._version, more._version, more._base._version) == (0, 1, 1, 1)  # type: ignore[union-attr]
    launches(x, y, None, 3)
    assert (x._version, y._version, more._version) == (0, 2, 1)
    with torch.inference_mode():
        inference = torch.zeros(3)
    launches(x, inference, None, 3)  # which has no version


def test_autograd_notices_that_what_it_has_saved_was_overwritten(launches: Launches) -> None:
    x = torch.ones(3, requires_grad=True)
    saved = x * 1
    y = saved.square()
    launches(torch.ones(3), saved.detach(), None, 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.simulator
def test_a_launch_that_fails_halfway_has_written_too() -> None:
    text = """extern "C" __global__ void k(const float* x, float* y, int n) { y[0] = 1; __trap(); }"""
    y = torch.zeros(1)
    with cupyops.simulate(), pytest.raises(cupyops.LaunchError):
        Kernel(text, "k", Threads("n"))(torch.zeros(1), y, 1)
    assert y._version == 1


def test_a_vouched_launch_neither_looks_nor_counts() -> None:
    launches = Launches(True)
    y = torch.zeros(3)
    launches.vouched(torch.ones(3), y, None, 3)
    assert (len(launches.launched), y._version) == (1, 0)


@pytest.mark.simulator
def test_a_vouched_launch_takes_any_array_for_an_output_that_its_text_leaves_alone() -> None:
    """The body of layer_norm passes an existing array, which costs nothing."""
    text = 'extern "C" __global__ void k(const float* x, float* y, float* unused, int n) { y[0] = x[0]; }'
    kernel, x, y = Kernel(text, "k", Threads("n")), torch.ones(1, requires_grad=True), torch.zeros(1)
    read_only = np.ones(1, "float32")
    read_only.flags.writeable = False
    launch = kernel.launch_vouched
    with cupyops.simulate():
        launch(x, y, x, 1)
        launch(read_only, np.zeros(1, "float32"), read_only, 1)
    assert (x._version, y._version, y.item()) == (0, 0, 1.0)


@pytest.mark.simulator
def test_an_operator_may_write_into_what_its_body_allocates() -> None:
    @operator("written_test::twice(Tensor x) -> Tensor y", backward=lambda grad_y: grad_y * 2)
    def twice(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        TWICE(x, y, None, x.numel())
        return y

    x = torch.ones(3, requires_grad=True)
    for given in (x, torch.nn.Parameter(torch.ones(3))):
        twice(given).sum().backward()
        torch.ops.written_test.twice(given).sum().backward()
    assert x.grad.tolist() == [4.0] * 3  # type: ignore[union-attr]
    torch.testing.assert_close(twice(negated(torch.ones(3))), torch.full((3,), 2.0))
