"""Fixtures of the tests of whole models."""

import pytest

from cupyops.torch.models import small


@pytest.fixture(autouse=True)
def _operators_for_few_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a test on a GPU call the operators for its small tensors, too, which optimize() leaves to PyTorch."""
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(small, "LEAST_ELEMENTS", 0)
        monkeypatch.setattr(small, "LEAST_PADDED", 0)
