"""Training scripts to run and to read: ``python -m examples.`` followed by ``add_model``, ``lenet5`` or ``char_gpt``."""
