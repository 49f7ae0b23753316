"""Fixtures of the tests of the export to ONNX."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_registry() -> Iterator[None]:
    """PyTorch's exporter parses its own 500 functions again in each export, which takes half of an export's time. They are
    parsed once here. Each export gets lists of its own, since a translation of ours is inserted into them."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        parsed = cache(ONNXRegistry.from_torchlib)
    except (ImportError, AttributeError):  # without onnxscript, or in another version of PyTorch
        yield
        return

    def from_torchlib(cls: type[Any], *args: Any, **options: Any) -> Any:
        whole, registry = parsed(*args, **options), cls()
        vars(registry).update(vars(whole), functions={target: list(found) for target, found in whole.functions.items()})
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(from_torchlib))
        yield
