"""Whole models: the time of a training step with PyTorch's modules, after :func:`cupyops.torch.optimize`, and with
:class:`cupyops.torch.Fusions`."""
