"""Fixtures of the tests of bundles: no bundle is loaded, and one is written."""

from pathlib import Path

import pytest

from cupyops.compile import bundle
from cupyops.compile.bundle import write_bundle

from .bundles import VERSIONS, entries


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_loaded", [])
    for name in ("CUPYOPS_BUNDLE", "CUPYOPS_REQUIRE_SIGNED", "CUPYOPS_TRUSTED_KEYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "kernels", entries(), VERSIONS)
    return tmp_path / "kernels"
