"""A callback of Lightning's Trainer: ``Trainer(callbacks=[Optimize()])`` runs the model on this project's kernels."""

from typing import Any

from cupyops.torch.models.report import OptimizeReport
from cupyops.torch.models.swap import optimize

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the same package by its other name
    from pytorch_lightning import Callback

__all__ = ["Optimize"]


class Optimize(Callback):
    """Optimizes the model when a fit, a validation, a test or a prediction begins.

    The model is complete at that time: ``configure_model`` has run, and the strategy has sharded or wrapped it. Parameters stay the same
    objects, and checkpoints have the model's own classes.

    Args:
        options: arguments of :func:`cupyops.torch.optimize`.

    Attributes:
        report: the report of the first beginning, or None before it.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.report: OptimizeReport | None = None

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        if self.report is None:
            self.report = optimize(pl_module, **self.options)

    on_fit_start = on_validation_start = on_test_start = on_predict_start = _begin
