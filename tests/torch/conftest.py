"""Fixtures of the tests of DTensors."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

MESH = 4  # ranks


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A mesh of ranks in this process."""
    local = pytest.importorskip("torch.distributed._local_tensor")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=MESH, store=FakeStore())
    try:
        with local.LocalTensorMode(MESH):
            yield dist.init_device_mesh("cpu", (MESH,))
    finally:
        dist.destroy_process_group()
