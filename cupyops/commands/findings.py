"""The findings of the doctor: facts, and faults with their remedies."""

from dataclasses import dataclass

__all__ = ["COMPILING", "LAUNCHING", "Fact", "Fault", "Finding"]

COMPILING, LAUNCHING = "compiling", "launching"


@dataclass(frozen=True)
class Fact:
    """One line of the report, ``name: value``."""

    name: str
    value: str


@dataclass(frozen=True)
class Fault:
    """A fault of the installation.

    Attributes:
        what: the fault and its consequence. mend: the command or setting that fixes the fault.
        stops: ``COMPILING`` if the fault prevents compiling and launching, ``LAUNCHING`` if it prevents launching, else an
            empty string.
    """

    what: str
    mend: str
    stops: str = ""


Finding = Fact | Fault
