"""torchtitan's overrides (0.3) and model converters (0.2), by its own code that applies them."""

from types import SimpleNamespace

import pytest
import torch

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
