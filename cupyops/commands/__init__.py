"""The commands of ``python -m cupyops``."""
