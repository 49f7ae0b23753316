"""Texts in the names of the release before still compile, give the same numbers, and say what the names are now."""

import importlib
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import cupyops
from cupyops import Kernel, Threads, deprecated
from cupyops.launch.geometry import Rows
from cupyops.tiling import config as configs
from cupyops.tiling.config import Config
from cupyops.tiling.tiles import Tiles
from cupyops.torch import CHECKS, check_op
from cupyops.torch.check.run import Row
from cupyops.torch.ops.gelu import gelu_backward_operator

LANES = """
#include "lanes.cuh"
#include "strided.cuh"
extern "C" __global__ void twice(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    Lanes<scalar_t, 4> v = load_lanes<4>(x + i, 1);
    for (int k = 0; k < 4; ++k) v.lane[k] *= 2;
    *(Lanes<scalar_t, 4>*)(y + i) = v;
}
"""
TILES = """
extern "C" __global__ void next(
    const scalar_t* x,  // (count, n)
    scalar_t* y,        // (count, n)
    long long n, long long count, long long columns, long long rows) {
    const long long column = (blockIdx.x * (long long)ABREAST + threadIdx.x) * LANES;
    const long long row = blockIdx.y * (256 / ABREAST) + threadIdx.y;
    if (column >= n || row >= count) return;
    for (int k = 0; k < LANES; ++k) y[row * n + column + k] = x[row * n + column + k] + 1;
}
"""
PACKED = """
#include "scalar.cuh"
#include "packed.cuh"
extern "C" __global__ void negate(
    const scalar_t* x,  // (M, LANES)
    scalar_t* y,        // (M, LANES)
    long long M) {
    acc_t v[LANES];
    const Packed<scalar_t> p = load_packed(x + blockIdx.x * LANES, false);
    for (int k = 0; k < LANES; ++k) v[k] = -p[k];
    Packed<scalar_t> q;
    q.set(v);
    if (threadIdx.x == 0) store_packed(y + blockIdx.x * LANES, q, false);
}
"""


@pytest.mark.simulator
def test_a_text_with_lanes_cuh_runs_and_is_told_its_new_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"lanes\.cuh is vector\.cuh now"):
        kernel = Kernel(LANES, "twice", Threads("n"), dtypes=("float32",))
    x = np.arange(8, dtype=np.float32)
    y = np.empty_like(x)
    with cupyops.simulate(sanitize=True):
        kernel(x, y, 8)
    np.testing.assert_array_equal(y, 2 * x)


def test_a_text_with_matrix_units_cuh_is_told_its_new_name() -> None:
    text = '#include "matrix_units.cuh"\n' + TILES
    with pytest.warns(DeprecationWarning, match=r"matrix_units\.cuh is tensor_cores\.cuh now"):
        kernel = Kernel(
            text, "next", Threads("columns", "rows"), dtypes=("float32",), constants={"ABREAST": 1, "LANES": 1}
        )
    assert "struct alignas(16) Eight" in kernel.final_text({"scalar_t": "float32"})


@pytest.mark.simulator
def test_a_plan_of_ours_gives_lanes_to_a_text_that_says_lanes() -> None:
    tiles = Tiles.over(6, 2)
    with pytest.warns(DeprecationWarning, match="LANES is VECTOR_WIDTH now"):
        kernel = tiles.kernel(TILES, "next", dtypes=("float32",))
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    y = np.empty_like(x)
    with cupyops.simulate(sanitize=True):
        kernel(x, y, 6, 3, *tiles.sizes(6, 3))
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.simulator
def test_a_plan_of_a_users_own_gives_our_headers_their_vector_width() -> None:
    @dataclass(frozen=True)
    class Own(Config):
        lanes: int

        @property
        def geometry(self) -> Rows:
            return Rows("M", 32)

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = np.empty_like(x)
    with cupyops.simulate(sanitize=True):
        Own(4).kernel(PACKED, "negate", dtypes=("float32",))(x, y, 3)
    np.testing.assert_array_equal(y, -x)


def test_a_text_of_today_is_told_nothing(recwarn: pytest.WarningsRecorder) -> None:
    kernel = Tiles.over(6, 2).kernel(TILES.replace("LANES", "VECTOR_WIDTH"), "next", dtypes=("float32",))
    assert "LANES" not in kernel.constants
    Kernel(LANES.replace('#include "lanes.cuh"', ""), "twice", Threads("n"), dtypes=("float32",))
    assert not recwarn.list


def test_lanes_for_is_told_its_new_name() -> None:
    with pytest.warns(DeprecationWarning, match="vector_width_for"):
        assert configs.lanes_for(12, 2) == configs.vector_width_for(12, 2) == 4


@pytest.mark.parametrize(("former", "now"), deprecated.MOVED.items())
def test_a_module_that_moved_is_found_by_its_former_name(former: str, now: str) -> None:
    sys.modules.pop(f"cupyops.{former}", None)
    with pytest.warns(DeprecationWarning, match=rf"cupyops\.{former} is cupyops\.{now} now") as told:
        found = importlib.import_module(f"cupyops.{former}")
    assert found is importlib.import_module(f"cupyops.{now}")
    assert found.__name__ == f"cupyops.{now}"
    assert found.__spec__ is not None
    assert found.__spec__.name == f"cupyops.{now}", "a relative import in a function would warn of the package"
    assert len(told) == 1


@pytest.mark.parametrize(
    ("package", "name"),
    [("check", "CheckFailed"), ("bench", "bench_op"), ("onnx", "require_onnx")],
)
def test_a_module_that_became_a_package_still_has_its_names(package: str, name: str) -> None:
    module = importlib.import_module(f"cupyops.torch.{package}")
    with pytest.warns(
        DeprecationWarning, match=rf"cupyops\.torch\.{package}\.{name} is cupyops\.torch\.{package}\.\w+\.{name} now"
    ):
        assert getattr(module, name).__name__ == name
    for absent in ("absent", "torch"):  # the module of before imports `torch`
        with pytest.raises(AttributeError, match=absent):
            getattr(module, absent)


@pytest.mark.parametrize(
    ("module", "former", "now"),
    [
        ("cupyops.tiling.config", "Plan", "Config"),
        ("cupyops.tiling.rows", "RowsPlan", "RowsConfig"),
        ("cupyops.launch.memo", "remembered", "memo"),
    ],
)
def test_a_name_that_is_another_now_is_found_by_the_former(module: str, former: str, now: str) -> None:
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{former} is {module}\.{now} now"):
        assert getattr(found, former) is getattr(found, now)
    with pytest.raises(AttributeError, match="absent"):
        found.absent  # noqa: B018


@pytest.mark.parametrize("name", ["since", "exactly", "cooperative", "shared"])
def test_what_a_kernel_needs_is_found_on_the_kernel(name: str) -> None:
    kernel = Kernel(TILES, "next", Threads("columns", "rows"), since=90)
    with pytest.warns(DeprecationWarning, match=rf"Kernel\.{name} is Kernel\.hardware\.{name} now") as told:
        assert getattr(kernel, name) == getattr(kernel.hardware, name)
    assert told[0].filename == __file__


def test_check_op_takes_backends_by_the_former_name() -> None:
    def rows(**chosen: list[str]) -> list[tuple[str, str, str]]:
        x = torch.randn(3, 5)
        report = check_op(gelu_backward_operator, (x, x, "none"), checks=["fakes", "empties"], **chosen)  # type: ignore[arg-type]
        return [(row.check, row.backend, row.outcome) for row in report.rows]

    with pytest.warns(DeprecationWarning, match=r"check_op\(lanes=\.\.\.\) is check_op\(backends=\.\.\.\) now") as told:
        found = rows(lanes=["reference"])
    assert told[0].filename == __file__
    assert found == rows(backends=["reference"])
    assert ("empties", "reference", "passed") in found
    with pytest.raises(TypeError, match="`lanes` is the former name of `backends`; pass `backends` alone"):
        rows(lanes=["reference"], backends=["simulator"])


def test_rows_and_checks_tell_backends_by_the_former_name() -> None:
    row, check = Row("values", "simulator", "passed", ""), CHECKS["guard_bands"]
    with pytest.warns(DeprecationWarning, match=r"Row\.lane is Row\.backend now") as told:
        assert row.lane == row.backend == "simulator"
    assert told[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"Check\.lanes is Check\.backends now") as told:
        assert check.lanes == check.backends == ("cuda",)
    assert told[0].filename == __file__


def test_the_warning_names_the_line_that_imports() -> None:
    sys.modules.pop("cupyops.geometry", None)
    vars(cupyops).pop("geometry", None)
    with pytest.warns(DeprecationWarning, match="geometry") as told:
        from cupyops import geometry  # type: ignore[attr-defined]  # noqa: F401
    assert told[0].filename == __file__
