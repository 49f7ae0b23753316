"""Test data of the shipped operators: for each family of the registry, a file of the family's name with its ``DATA``.

A family without a file is left out here, so that ``tests/operators/test_registry.py`` runs and names the family.
"""

from importlib import import_module
from importlib.util import find_spec

from cupyops.ops.registry import SHIPPED

from .data import FLOATS, Case, FamilyData, LaunchCase

__all__ = ["CASES", "FAMILIES", "FLOATS", "SAMPLES", "Case", "FamilyData", "LaunchCase"]

FAMILIES: dict[str, FamilyData] = {
    family: import_module(f"{__name__}.{family}").DATA
    for family in dict.fromkeys(s.family for s in SHIPPED)
    if find_spec(f"{__name__}.{family}")
}
CASES = [case for data in FAMILIES.values() for case in data.cases]
SAMPLES = {name: samples for data in FAMILIES.values() for name, samples in data.samples.items()}
