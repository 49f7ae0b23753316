"""What the tests of whole models share."""

from collections.abc import Iterator

import pytest

from cupyops.torch import set_native
from cupyops.torch.models import overrides, small

from .overriding import tables


@pytest.fixture(autouse=True)
def _operators_for_few_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a test on a GPU call the operators for its small tensors, too, which optimize() and native() leave to PyTorch."""
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(small, "LEAST_ELEMENTS", 0)
        monkeypatch.setattr(small, "LEAST_PADDED", 0)
        monkeypatch.setitem(overrides.LEAST, "cuda", 0)


@pytest.fixture(autouse=True)
def _kernels_are_removed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait, such as those of Inductor's compilers, outlive the tests that start them. A test of another
    folder, such as that of the code in the documentation, may have left kernels for a later call to remove."""
    monkeypatch.setattr(overrides, "_QUIET", 0.0)
    with overrides._lock:
        for device in list(overrides._unused):
            overrides._remove_if_quiet(device)
    assert not overrides._unused


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Fails a test after which kernels of native() are registered."""
    before = tables()
    yield
    set_native(False)
    assert tables() == before
    assert not +overrides._entries
    assert not overrides._libraries
