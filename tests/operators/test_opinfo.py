"""The drop-ins on the samples of PyTorch's own OpInfo database."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import autograd_bridge as ab

OURS = {
    "softmax": ab.softmax,
    "log_softmax": ab.log_softmax,
    "nn.functional.rms_norm": ab.rms_norm,
    "nn.functional.cross_entropy": ab.cross_entropy,
}


@pytest.mark.parametrize("name", OURS)
def test_results_and_gradients_of_every_sample_are_pytorchs(name: str) -> None:
    """Runs in another process: the database freezes settings of PyTorch."""
    pytest.importorskip("expecttest", reason="PyTorch's database of samples needs it")
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-m", "tests.operators.test_opinfo", name], cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def compare(name: str) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    tried = 0
    for info in (op for op in op_db if op.name == name):
        for dtype in info.supported_dtypes("cpu"):
            near: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {}
            for sample in info.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point):
                given, options = (sample.input, *sample.args), sample.kwargs
                got, wanted = OURS[name](*given, **options), info.op(*given, **options)
                torch.testing.assert_close(got, wanted, equal_nan=True, **near)
                inputs = [x for x in (*given, *options.values()) if isinstance(x, Tensor) and x.requires_grad]
                if inputs:
                    grad = torch.randn_like(wanted)
                    pairs = zip(*(torch.autograd.grad(y, inputs, grad) for y in (got, wanted)), strict=True)
                    for a, b in pairs:
                        torch.testing.assert_close(a, b, equal_nan=True, **near)
                tried += 1
    assert tried


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compare(sys.argv[1])
