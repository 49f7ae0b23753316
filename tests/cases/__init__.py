"""Test data of the shipped operators: a file for each family, with its ``DATA`` and, where they are few, its own tests."""

from importlib import import_module
from pkgutil import iter_modules

from tests.support import FLOATS

from .data import Case, FamilyData, LaunchCase

__all__ = ["CASES", "FAMILIES", "FLOATS", "SAMPLES", "Case", "FamilyData", "LaunchCase"]

FAMILIES: dict[str, FamilyData] = {
    file.name: import_module(f"{__name__}.{file.name}").DATA for file in iter_modules(__path__) if file.name != "data"
}
CASES = [case for data in FAMILIES.values() for case in data.cases]
SAMPLES = {name: samples for data in FAMILIES.values() for name, samples in data.samples.items()}
