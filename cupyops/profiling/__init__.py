"""Explains a kernel without a GPU: :func:`cupyops.explain` counts in the simulator and reads the compiler's reports."""
