"""Training scripts to run and to read; ``python -m examples`` lists them. An installed wheel has them as
``cupyops.examples``: all imports in this folder are relative."""

from . import starting  # noqa: F401 - first, so that Ctrl-C during the imports prints one line
