"""What a check of :func:`cupyops.torch.check_op` is, and the two ways in which one ends other than well."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CPU_LANES", "KERNEL_LANES", "LANES", "Check", "Fault", "Skip", "check"]

# What runs the operator: plain PyTorch on the CPU; the kernels on the CPU, under sanitizers; the kernels on a GPU.
LANES = ("reference", "simulator", "cuda")
CPU_LANES = ("reference", "simulator")
KERNEL_LANES = ("simulator", "cuda")


class Fault(Exception):
    """What is wrong with the operator.

    Attributes:
        change: what to change, where the check itself does not say it well enough.
    """

    def __init__(self, what: str, change: str = "") -> None:
        super().__init__(what)
        self.change = change


class Skip(Exception):
    """Why a check cannot run here."""


@dataclass(frozen=True)
class Check:
    """One thing that holds for an operator that is done.

    Attributes:
        name: what reports and ``checks=`` call it.
        holds: the sentence that it proves.
        run: is given the :class:`cupyops.torch.check.subject.Subject`, raises :class:`Fault` or :class:`Skip`, and returns how
            far it looked. Whatever else it raises is a fault, too.
        change: what to change in an operator that fails.
        lanes: where it means something.
        needs: checks without which it would only repeat their fault; it is left out where one of them has failed.
        ground: all checks behind it need it.
    """

    name: str
    holds: str
    run: Callable[[Any], str]
    change: str
    lanes: Sequence[str] = LANES
    needs: Sequence[str] = ()
    ground: bool = False


def check(
    change: str, *, lanes: Sequence[str] = LANES, needs: Sequence[str] = (), ground: bool = False
) -> Callable[[Callable[[Any], str]], Check]:
    """Makes a check of a function: its name, and the first line of its docstring, are the check's."""

    def made(function: Callable[[Any], str]) -> Check:
        holds = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        return Check(function.__name__, holds, function, change, lanes, needs, ground)

    return made
