"""The code that calls on a GPU run on the host, as :mod:`tests.torch.host_paths` records it."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cupy") is None, reason="what NVRTC would be asked for is asked by way of CuPy"
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = {n: v for n, v in os.environ.items() if not n.startswith("CUPYOPS_")}
    environment |= {"PYTHONPATH": str(ROOT), "CUPYOPS_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    done = preloaded.run(["-m", "tests.torch.host_paths"], cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


HALF, SINGLE, DOUBLE = "bfloat16", "float32", "float64"


@pytest.mark.parametrize(
    ("call", "dtypes"),
    [
        ("layer_norm", [SINGLE, HALF, SINGLE, SINGLE]),
        ("layer_norm of float64", [DOUBLE, DOUBLE]),
        ("linear", [HALF, SINGLE, SINGLE, SINGLE]),
        ("linear_gelu", [HALF, SINGLE, SINGLE, SINGLE]),
        ("gelu", [SINGLE, SINGLE, HALF, HALF]),
        ("add_layer_norm", [HALF, HALF]),
        ("own", [HALF, SINGLE, DOUBLE, DOUBLE]),
        ("disabled within", [SINGLE, SINGLE]),
        ("another dtype within", ["float16", SINGLE]),
        ("without gradients", [HALF, SINGLE]),
        ("modules", [SINGLE] * 8),
        ("backward within", [SINGLE, HALF, SINGLE, SINGLE]),
        ("afterwards", [SINGLE, SINGLE]),
    ],
)
def test_autocast_gives_a_result_and_gradients_these_dtypes(seen: dict[str, Any], call: str, dtypes: list[str]) -> None:
    assert seen["casts"][call] == dtypes


def test_a_call_under_autocast_stays_in_the_generated_dispatch(seen: dict[str, Any]) -> None:
    assert seen["casts"]["calls that left the generated dispatch"] == []


@pytest.mark.parametrize("name", ["gelu", "layer_norm", "add_layer_norm", "linear_gelu"])
def test_a_backward_calls_its_operator_where_a_body_would_be_missed(seen: dict[str, Any], name: str) -> None:
    found = seen["backwards"]
    assert found[f"{name} {{}}"] is False, "a plain backward calls the body"
    assert found[f"{name} {{'create_graph': True}}"] is True, "a gradient of the gradient needs the operator"
    assert found[f"{name} in a mode"] is True, "a dispatch mode sees the operator"


@pytest.mark.parametrize("name", ["gelu", "layer_norm", "add_layer_norm", "linear_gelu"])
def test_a_node_that_is_called_on_a_gradient_of_another_shape_refuses_it(seen: dict[str, Any], name: str) -> None:
    assert "must have shape" in seen["backwards"][f"{name} of another shape"]


@pytest.mark.parametrize("about", ["N", "K", "both", "neither"])
@pytest.mark.parametrize("name", ["linear", "linear_gelu"])
def test_odd_products_are_asked_for_with_aligned_rows(seen: dict[str, Any], name: str, about: str) -> None:
    n, k = {"N": (129, 136), "K": (136, 129), "both": (131, 133), "neither": (136, 128)}[about]
    found = seen["odd"][f"{name} {about}"]
    shape, strides, owns = found["y"]
    assert shape == [4, 16, n]
    row = 136 if name == "linear" else n  # GELU writes a result without gaps
    assert strides == [16 * row, row, 1]
    assert owns, "no view, which could not be written to"
    assert [g[:2] for g in found["grads"]] == [[[4, 16, k], True], [[n, k], True], [[n], True]]
    assert found["grads"][1][2], "autograd keeps this gradient as it is"
    assert found["products"] == 3
    assert found["aligned"]


def test_the_rule_of_odd_products_can_be_changed(seen: dict[str, Any]) -> None:
    padded, dense, off = seen["odd"]["dense"]
    assert (padded, dense, off) == ([136, 1], [129, 1], [129, 1])
