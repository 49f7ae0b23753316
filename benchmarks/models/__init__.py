"""Whole models: the time of a training step with PyTorch's modules, under :func:`cupyops.torch.native`, and after
:func:`cupyops.torch.optimize`."""
