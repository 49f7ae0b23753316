"""In a checkout, the modules of the folder examples/. In a wheel, setup.py puts that folder in the place of this file."""

from importlib import import_module
from pathlib import Path

__path__.append(str(Path(__file__).parents[2] / "examples"))
import_module(f"{__name__}.starting")  # first, so that Ctrl-C during the imports prints one line
