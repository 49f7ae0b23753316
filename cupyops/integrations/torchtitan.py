"""torchtitan with the norms of this project, by each of its two ways to exchange parts of a model.

torchtitan 0.3 exchanges configs before it builds the model::

    --override.imports cupyops.integrations.torchtitan.rms_norm

torchtitan 0.2 converts the built model, before it is parallelized, by :func:`cupyops.torch.optimize`::

    --experimental.custom_import cupyops.integrations.torchtitan --model.converters cupyops
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from cupyops.torch.models.leaves import by_operator
from cupyops.torch.models.swap import optimize

try:
    from torchtitan.config import derive, override
    from torchtitan.models.common import RMSNorm
except ImportError:
    from torchtitan.protocols.model_converter import register_model_converter

    class Optimize:
        """A ``ModelConverter`` of torchtitan 0.2."""

        def __init__(self, job_config: Any, parallel_dims: Any) -> None:
            pass

        def convert(self, model: nn.Module) -> None:
            """Optimizes the model in place."""
            optimize(model)

        def post_optimizer_hook(self, model: Any) -> None:
            """Does nothing: the parameters are the model's own."""

    register_model_converter(Optimize, "cupyops")
else:

    class OurRMSNorm(RMSNorm):
        """torchtitan's RMS norm, computed by the operator."""

        @dataclass(kw_only=True, slots=True)
        class Config(RMSNorm.Config):
            pass

        forward = by_operator(nn.RMSNorm.forward)

    @override(target=RMSNorm.Config, description="RMS norm by a kernel of cupyops", exact=True)
    def rms_norm(config: RMSNorm.Config) -> OurRMSNorm.Config:
        """Returns the config of the same norm, computed by the operator."""
        return derive(config, OurRMSNorm.Config)
