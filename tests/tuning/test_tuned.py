"""Tuned launches: which choice is taken, the results that it must give, and when nothing is timed."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cupyops
from cupyops import Elementwise, Kernel, LaunchError, Threads, Tuned, TuningError
from cupyops.launch import debug, driver
from cupyops.sharing import Setting
from cupyops.tuning import records as tuning
from tests.gpu.timed_gpu import TEXT, Array, Gpu, arguments, axpy, launched, timed_gpu, tuned


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    with timed_gpu(monkeypatch, tmp_path) as found:
        yield found


# The choice, and the results of the call


def test_the_fastest_is_launched_once_on_the_arrays_of_the_call(gpu: Gpu) -> None:
    axpys, (x, y, a, n) = tuned(), arguments()
    axpys(x, y, a, n)
    assert (y.values == 1 + 2 * np.arange(1000)).all(), "an output was not what one launch gives"
    assert (x.values == np.arange(1000)).all()
    assert gpu.launches[-1] == 128
    assert {256, 128, 512} == set(gpu.launches)
    assert launched(gpu, lambda: axpys(x, y, a, n)) == [128]
    assert axpys.choice(x, y, a, n) is axpys.kernels[1]
    record = next(iter(tuning._own.values()))
    assert (record.kernel, record.gpu, record.sizes) == ("axpy<float32>", "NVIDIA H200", "n <= 1024")
    assert record.choice == "block=(128, 1, 1)"
    assert dict(record.microseconds) == {"block=(256, 1, 1)": 3, "block=(128, 1, 1)": 2, "block=(512, 1, 1)": 4}


def test_output_and_input_may_be_one_array(gpu: Gpu) -> None:
    x = Array(np.arange(9, dtype=np.float32))
    tuned()(x, x, 2.0, 9)
    assert (x.values == 3 * np.arange(9)).all()


@pytest.mark.parametrize("offset", [0, 1, 63])
def test_what_runs_on_copies_is_aligned_as_the_call_is(gpu: Gpu, offset: int) -> None:
    """Kernels choose their accesses by it; so another choice would be timed."""
    whole = np.ones(1000 + 128, np.float32)
    start = -(whole.ctypes.data // 4) % 64 + offset
    y = Array(whole[start : start + 1000])
    tuned()(arguments()[0], y, 2.0, 1000)
    assert len(set(gpu.outputs)) == 3  # two copies, and at last the call's own
    assert {address % 256 for address in gpu.outputs} == {4 * offset}


def test_the_first_is_kept_for_less_than_two_percent(gpu: Gpu) -> None:
    gpu.cost = lambda block, n: {256: 100.0, 128: 98.5, 512: 97.0}[block]
    assert tuned(256, 128).choice(*arguments()).geometry.threads[0] == 256
    assert tuned(256, 128, 512).choice(*arguments()).geometry.threads[0] == 512


def test_launches_are_timed_in_turn_and_the_middle_counts(gpu: Gpu) -> None:
    """One slow launch, for example because of another program, does not decide, nor does work between the launches."""
    times = {256: iter([1e3] + [5.0] * 99), 128: iter([1.0] * 3 + [9.0] * 99)}
    gpu.cost = lambda block, n: next(times[block])
    axpys = tuned(256, 128)
    assert axpys.choice(*arguments()) is axpys.kernels[0]
    gate, timed = gpu.launches[:2], gpu.launches[2:]
    assert gate == [256, 128]
    assert timed == [256, 128] * (len(timed) // 2)
    assert 5 <= len(timed) // 2 - 1 <= 25
    assert gpu.flushed == len(timed) << 25, "not each with a cold cache"


def test_long_kernels_are_launched_less_often(gpu: Gpu) -> None:
    gpu.cost = lambda block, n: 1e6
    tuned(256, 128).choice(*arguments())
    assert len(gpu.launches) == 2 * (1 + 1 + 5)


@pytest.mark.parametrize("changed", ["dtype", "class", "gpu"])
def test_each_dtype_class_of_sizes_and_gpu_is_timed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    axpys = tuned()
    assert axpys.choice(*arguments()) is axpys.kernels[1]
    gpu.cost = lambda block, n: {256: 3.0, 128: 2.0, 512: 1.0}[block]
    for n in (513, 1024):
        assert axpys.choice(*arguments(n)) is axpys.kernels[1], "the same class was timed again"
    if changed == "gpu":
        monkeypatch.setattr(driver, "name", lambda device: "NVIDIA H100")
        axpys = tuned()
    other = {"dtype": arguments(1000, "float64"), "class": arguments(1025), "gpu": arguments()}
    assert axpys.choice(*other[changed]) is axpys.kernels[2]


def test_a_second_gpu_of_that_name_takes_what_was_found_on_the_first(gpu: Gpu) -> None:
    axpys = tuned()
    x, y = (Array(array.values, device=1) for array in arguments()[:2])
    axpys(x, y, 2.0, 1000)
    assert len(gpu.launches) > 3
    assert launched(gpu, lambda: axpys(*arguments())) == [128]
    assert gpu.library.current == 0


def test_sizes_may_count_exactly(gpu: Gpu) -> None:
    axpys = tuned(exact=("n",))
    gpu.cost = lambda block, n: block if n == 1000 else 1 / block
    assert axpys.choice(*arguments(1000)) is axpys.kernels[1]
    assert axpys.choice(*arguments(1001)) is axpys.kernels[2]
    assert [r.sizes for r in tuning._own.values()] == ["n = 1000", "n = 1001"]
    assert launched(gpu, lambda: axpys(*arguments(1000))) == [128]


def test_calls_by_name_and_wrong_calls(gpu: Gpu) -> None:
    axpys, (x, y, a, n) = tuned(), arguments()
    axpys(n=n, a=a, y=y, x=x)
    assert (y.values == 1 + 2 * np.arange(1000)).all()
    before = len(gpu.launches)
    for call, words in (
        (lambda: axpys(x, y, a), "axpy: missing `n`; it takes x, y, a, n"),
        (lambda: axpys.launch(x, y, a), r"axpy\(\) missing 1 required positional argument: 'n'"),
        (lambda: axpys(x, y, a, 1000.0), r"axpy: `n` must be an integer \(int64\), got 1000.0"),
        (lambda: axpys(x, [1.0], a, n), "axpy: `y` must be a CuPy array or a PyTorch tensor, got list"),
    ):
        with pytest.raises(TypeError, match=words):
            call()
    with pytest.raises(ValueError, match="axpy: `x` must hold n = 999 elements, got 1000"):
        axpys(x, y, a, 999)
    assert len(gpu.launches) == before


# The gate


def one_off(at: int, by: float) -> Callable[[np.ndarray], None]:
    def change(result: np.ndarray) -> None:
        result[at] += by

    return change


def test_a_choice_with_another_result_is_an_error_that_says_where(gpu: Gpu) -> None:
    gpu.wrong[512] = one_off(17, 0.5)
    x, y, a, n = arguments()
    with pytest.raises(TuningError) as caught:
        tuned()(x, y, a, n)
    assert str(caught.value) == (
        "axpy<float32>: block=(512, 1, 1) gives another result than block=(256, 1, 1): element 17 of `y` is 35.5, and was "
        "35.0. One of the two is wrong. If the difference is rounding, declare a tolerance: Tuned(..., rtol=..., atol=...)"
    )
    assert (y.values == 1).all(), "an output was written"
    assert not tuning._own


def test_a_tolerance_is_the_sum_of_its_parts(gpu: Gpu) -> None:
    gpu.wrong[512] = one_off(17, 0.5)  # of 35
    for options, right in (
        ({"atol": 0.5}, True),
        ({"atol": 0.49}, False),
        ({"rtol": 0.0143}, True),
        ({"rtol": 0.0142}, False),
        ({"rtol": 0.01, "atol": 0.2}, True),
    ):
        axpys = tuned(**options)
        if right:
            assert axpys.choice(*arguments()) is axpys.kernels[1]
        else:
            with pytest.raises(TuningError):
                axpys(*arguments())


@pytest.mark.parametrize("at", [0, 15, 16, 1008])
@pytest.mark.parametrize("rounding", [False, True])
def test_the_gate_sees_every_element(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, at: int, rounding: bool) -> None:
    """Also if outputs are compared in pieces."""
    monkeypatch.setattr("cupyops.tuning.measure._CHUNK", 64)
    gpu.wrong[128] = one_off(at, 1.0)
    with pytest.raises(TuningError, match=f"element {at} of `y` is {2 + 2 * at}.0, and was {1 + 2 * at}.0"):
        tuned(atol=0.9 if rounding else 0.0)(*arguments(1009))


def test_the_gate_sees_every_bit_and_takes_nan_for_nan(gpu: Gpu) -> None:
    x, y, a, n = arguments()
    x.values[:2] = -0.5, np.nan
    assert tuned().choice(x, y, a, n)
    gpu.wrong[128] = lambda result: result.__setitem__(0, -0.0)
    with pytest.raises(TuningError, match="element 0 of `y` is -0.0, and was 0.0"):
        tuned(exact=("n",))(x, y, a, n)
    assert tuned(exact=("n",), atol=1e-30).choice(x, y, a, n)
    gpu.wrong[128] = lambda result: result.__setitem__(1, np.copysign(np.nan, -1))
    with pytest.raises(TuningError, match="element 1 of `y` is nan, and was nan"):
        tuned(256, 128)(x, y, a, n)
    assert tuned(256, 128, atol=1e-30).choice(x, y, a, n)


def test_a_choice_that_the_gpu_does_not_take_is_left_out(gpu: Gpu) -> None:
    gpu.refused = {128}
    axpys = Tuned([axpy(256), axpy(128), axpy(64, since=100), axpy(512)])
    gpu.cost = lambda block, n: {256: 3.0, 512: 2.0}[block]
    assert axpys.choice(*arguments()) is axpys.kernels[3]
    (record,) = tuning._own.values()
    assert list(record.microseconds.values()) == [3, None, None, 2]


def test_a_first_that_the_gpu_does_not_take_is_the_calls_error(gpu: Gpu) -> None:
    gpu.refused = {256}
    with pytest.raises(
        LaunchError, match=r"axpy<float32> with grid \(4, 1, 1\), block \(256, 1, 1\) was refused: CUDA_ER"
    ):
        tuned()(*arguments())


def test_a_choice_that_fails_while_it_runs_is_named(gpu: Gpu) -> None:
    gpu.failing = {512}
    with pytest.raises(LaunchError, match=r"axpy<float32> with block=\(512, 1, 1\) failed: CUDA_ERROR_ILLEGAL_ADDRESS"):
        tuned()(*arguments())


# When nothing is timed


def test_nothing_is_timed_while_a_graph_is_captured(gpu: Gpu) -> None:
    axpys = tuned()
    for capturing in (True, RuntimeError("cudaErrorStreamCaptureImplicit")):
        gpu.capturing = capturing
        assert launched(gpu, lambda: axpys(*arguments())) == [256]
    gpu.capturing = False
    axpys(*arguments())
    gpu.capturing = True
    assert launched(gpu, lambda: axpys(*arguments())) == [128], "what is recorded counts in a capture"


def test_nothing_is_timed_in_debug_mode(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    axpys = tuned()
    monkeypatch.setattr(debug, "_setting", Setting(True))
    assert axpys.choice(*arguments()) is axpys.kernels[0]
    monkeypatch.setattr(debug, "_setting", Setting(False))
    assert axpys.choice(*arguments()) is axpys.kernels[1]


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_nothing_is_timed_on_arrays_without_memory(gpu: Gpu, device: str) -> None:
    axpys = tuned()
    with FakeTensorMode() if device == "cuda" else nullcontext():
        x = torch.empty(1000, device=device)
        axpys(x, torch.empty_like(x), 2.0, 1000)
        with pytest.raises(ValueError, match="axpy: `x` must hold n = 999 elements, got 1000"):
            axpys(Array(np.ones(1000)), Array(np.ones(1000)), 2.0, 999)
    assert not gpu.launches


def test_under_torch_compile_with_sizes_that_are_symbols(gpu: Gpu) -> None:
    axpys = tuned()

    @torch.library.custom_op("tuned_test::axpy", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @op.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        axpys(x, y, 2.0, x.numel())
        axpys.launch_vouched(x, y, 2.0, x.numel())
        return y

    compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, dynamic=True, backend="eager")
    for n in (5, 6):
        assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 3.0))
    assert not gpu.launches


def test_nothing_is_timed_for_no_elements(gpu: Gpu) -> None:
    axpys = tuned()
    axpys(*arguments(0))
    assert not gpu.launches


def test_told_not_to_tune_it_takes_the_first_whatever_is_recorded(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned()(*arguments())
    monkeypatch.setenv("CUPYOPS_TUNE", "0")
    axpys = tuned()
    assert launched(gpu, lambda: axpys(*arguments())) == [256]
    assert launched(gpu, lambda: axpys(*arguments())) == [256]


def test_without_room_for_copies_it_takes_the_first_and_records_nothing(gpu: Gpu, tmp_path: Path) -> None:
    gpu.free_bytes = 4000
    axpys = tuned()
    assert launched(gpu, lambda: axpys(*arguments(5000))) == [256]
    gpu.free_bytes = 1 << 30
    assert axpys.choice(*arguments(5000)) is axpys.kernels[0], "not tried at every call"
    assert not tuning._own
    assert tuned().choice(*arguments(5000)).geometry.threads[0] == 128


@pytest.mark.simulator
def test_in_the_simulator_the_first_runs_and_every_choice_can(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    axpys = tuned()
    with cupyops.simulate(sanitize=True):
        for launch in (axpys, *axpys.kernels):
            x, y = torch.arange(1000.0), torch.ones(1000)
            launch(x, y, 2.0, 1000)
            assert torch.equal(y, 1 + 2 * x)


# Declarations

VIEW = TEXT.replace("scalar_t* y,        // (n)", "scalar_t* y,")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Tuned([]), ValueError, "Tuned: `kernels` must be at least one, got none"),
        (lambda: Tuned([axpy(), "axpy"]), TypeError, "Tuned: `kernels` must be kernels, got str"),  # type: ignore[list-item]
        (
            lambda: Tuned(
                [axpy(), Kernel(TEXT.replace("acc_t a", "double a"), "axpy", Threads("n"), dtypes=("float32",))]
            ),
            ValueError,
            "Tuned: all choices must have the same parameters and dtypes, and <Kernel axpy of axpy.cu: x, y, a, n> differs from <Kernel axpy",
        ),
        (
            lambda: Tuned([axpy(), axpy(dtypes=("float32",))]),
            ValueError,
            "all choices must have the same parameters and dtypes",
        ),
        (lambda: Tuned([Kernel(TEXT)]), ValueError, "leaves its threads to each call; declare a policy"),
        (
            lambda: Tuned([Kernel(VIEW, "axpy", Threads("n"))]),
            ValueError,
            r"Tuned: `y` of axpy is written to; declare its shape, as in // \(n\)",
        ),
        (lambda: tuned(exact=("nn",)), ValueError, "Tuned: exact: axpy has no size `nn`; did you mean 'n'"),
    ],
)
def test_refused_declarations(make: Callable[[], Tuned], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_choices_are_called_by_what_tells_them_apart() -> None:
    kernels = [
        Kernel(TEXT, "axpy", Elementwise("n", block=b, vectors=v), constants={"UNROLL": u})
        for b, v, u in ((128, 1, 4), (128, 2, 4), (256, 2, 8))
    ]
    assert Tuned(kernels).names == (
        "block=128, vectors=1, UNROLL=4",
        "block=128, vectors=2, UNROLL=4",
        "block=256, vectors=2, UNROLL=8",
    )
    texts = [Kernel(text, "axpy", Threads("n")) for text in (TEXT, TEXT + " ")]
    assert Tuned([*texts, axpy(512, dtypes=texts[0].dtypes)]).names == (
        "block=(256, 1, 1) (choice 1)",
        "block=(256, 1, 1) (choice 2)",
        "block=(512, 1, 1)",
    )
    assert Tuned([axpy()]).names == ("the only one",)
