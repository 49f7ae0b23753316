"""Training scripts to run and to read: ``python -m examples.add_model`` and ``python -m examples.lenet5``."""
