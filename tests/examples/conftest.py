"""What the tests of the training examples ask for by name."""

import pytest

from examples import lenet5
from tests.examples.example_support import TEST_SET, TRAIN_SET, Example


@pytest.fixture
def small_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few synthetic images take the place of scikit-learn's digits in LeNet-5."""
    monkeypatch.setattr(lenet5, "load_digits", lambda: (TRAIN_SET, TEST_SET))


@pytest.fixture(params=["lenet5", "char_gpt"])
def example(request: pytest.FixtureRequest, small_digits: None) -> Example:
    """Each of the two training examples."""
    return Example(request.param)
