"""What the tests of native() share."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import cupyops
from cupyops.launch.recording import Launch, recorded
from cupyops.torch import native
from tests import preloaded

ROOT = Path(__file__).parents[2]

# Where the kernels of native() run: simulated on CPU tensors, and on a GPU.
PLACES = [pytest.param("cpu", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OPERATORS = (
    "gelu",
    "gelu_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
)


@contextmanager
def inside(place: str, *, sanitize: bool = False) -> Iterator[list[Launch]]:
    """native() for the tensors of a place; CPU tensors are simulated. Gives the launches."""
    with native([place]), cupyops.simulate(place == "cpu", sanitize=sanitize), recorded() as launches:
        yield launches


def names(launches: Sequence[Launch]) -> list[str]:
    return [launch.kernel.name for launch in launches]


def tables() -> list[str]:
    """What PyTorch's dispatcher holds of the overridden operators."""
    whole = [f"aten::{name}" for name in OPERATORS]
    return [dump(name) for name in whole for dump in (torch._C._dispatch_dump, torch._C._dispatch_dump_table)]


def about(x: torch.Tensor | None) -> Any:
    """Shape, dtype, strides and device. The stride of a dimension of size 1 means nothing."""
    if x is None:
        return None
    strides = tuple(st for st, size in zip(x.stride(), x.shape, strict=True) if size != 1)
    return tuple(x.shape), x.dtype, strides if x.numel() else (), x.device.type


def overridden() -> bool:
    """Whether ATen's gelu launches a kernel of this project's."""
    with cupyops.simulate(), recorded() as launches:
        F.gelu(torch.ones(3))
    return bool(launches)


def in_a_process(code: str) -> None:
    """Runs code that must neither fail nor write to stderr."""
    done = preloaded.run(["-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
