"""Fixtures of the tests of the training examples."""

from collections.abc import Callable
from pathlib import Path

import pytest

from examples import add_model, lenet5, linear_regression, llama, lltm_benchmark, run, sequence
from tests.examples.example_support import TEST_SET, TRAIN_SET, Example


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn for the tests that use the fixture `pictures`: to draw takes longer than a short run."""

    def told(path: Path, draw: object, *args: object, name: str = "", echo: Callable[[str], object] = print) -> None:
        echo(f"{name}: not drawn")

    if "pictures" not in request.fixturenames:
        for module in (add_model, lenet5, linear_regression, llama, lltm_benchmark, run, sequence):
            monkeypatch.setattr(module, "picture", told)


@pytest.fixture
def pictures() -> None:
    """The examples draw their pictures."""
    pytest.importorskip("matplotlib")


@pytest.fixture
def small_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few synthetic images take the place of scikit-learn's digits in LeNet-5."""
    monkeypatch.setattr(lenet5, "load_digits", lambda: (TRAIN_SET, TEST_SET))


@pytest.fixture(params=["lenet5", "char_gpt"])
def example(request: pytest.FixtureRequest, small_digits: None) -> Example:
    """Each of the two training examples."""
    return Example(request.param)
