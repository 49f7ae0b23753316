"""torchtitan's overrides (0.3) and model converters (0.2), by its own code that applies them, and in its own trainer."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import results_file
from tests.integrations import titan

pytest.importorskip("torchtitan.config")


def test_the_override_exchanges_every_norm_of_a_model() -> None:
    config = pytest.importorskip("torchtitan.config", reason="")
    if not hasattr(config, "apply_overrides"):
        pytest.skip("torchtitan 0.2 has converters in place of overrides")
    from torchtitan.models.common import RMSNorm
    from torchtitan.models.llama3 import model_registry

    target = "cupyops.integrations.torchtitan.rms_norm"
    spec = model_registry("debugmodel")
    lines = config.apply_overrides(config.OverrideConfig(imports=[target]), spec.model)
    from cupyops.integrations.torchtitan import OurRMSNorm

    assert lines
    with torch.device("meta"):
        model = spec.model.build()
    norms = [m for m in model.modules() if isinstance(m, RMSNorm)]
    assert norms
    assert {type(m) for m in norms} == {OurRMSNorm}
    torch.manual_seed(0)
    ours, theirs = (cls(cls.Config(normalized_shape=24)) for cls in (OurRMSNorm, RMSNorm))
    x = torch.randn(6, 24)
    torch.testing.assert_close(ours(x), theirs(x))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_the_converter_optimizes_the_model_in_place() -> None:
    converters = pytest.importorskip("torchtitan.protocols.model_converter")
    from torch import nn

    import cupyops.integrations.torchtitan  # noqa: F401 - it registers the converter

    job = SimpleNamespace(model=SimpleNamespace(converters=["cupyops"], print_after_conversion=False))
    container = converters.ModelConvertersContainer(job, None)
    model = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8))
    container.convert(model)
    assert type(model[1]).forward is not nn.RMSNorm.forward
    container.post_optimizer_hook(model)


def trained(folder: Path, ranks: int, tensor_parallel: int, ours: str) -> Any:
    """Returns losses and calls of the first rank."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        (folder / "port").write_text(str(free.getsockname()[1]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(results_file.ROOT), *sys.path])}
    command = [sys.executable, "-W", "ignore", "-m", titan.__name__]
    given = [str(folder), str(ranks), str(tensor_parallel), ours]
    options: Any = {"cwd": results_file.ROOT, "env": environment, "stdout": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*command, str(rank), *given], stderr=subprocess.STDOUT, **options) for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * ranks, "\n".join(printed)[-3000:]
    return json.loads(next(line for line in printed[0].splitlines() if line.startswith('{"losses"')))


@pytest.mark.parametrize(
    ("ranks", "tensor_parallel"), [(1, 1), (2, 1), (2, 2)], ids=["one rank", "FSDP2", "tensor parallel"]
)
def test_its_trainer_has_the_same_losses(ranks: int, tensor_parallel: int, tmp_path: Path) -> None:
    pytest.importorskip("torchtitan.train", reason="torchtitan's trainer needs packages that are missing")
    converts = find_spec("torchtitan.protocols.model_converter") is not None
    plain, ours = (trained(tmp_path / which, ranks, tensor_parallel, which) for which in ("no", "yes"))
    assert not plain["calls"]
    assert {"rms_norm", *(["swiglu"] if converts else [])} <= ours["calls"].keys()
    assert len(plain["losses"]) == titan.STEPS
    assert len(set(plain["losses"])) == titan.STEPS, "the steps train"
    assert ours["losses"] == pytest.approx(plain["losses"], rel=1e-5)
