"""Defines a check of :func:`cupyops.torch.check_op`, and the exceptions for a fault and for a skip."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CPU_LANES", "KERNEL_LANES", "LANES", "Check", "Fault", "Skip", "check"]

# The ways to run an operator: its PyTorch reference on the CPU, its kernels on the CPU under sanitizers, and its
# kernels on a GPU.
LANES = ("reference", "simulator", "cuda")
CPU_LANES = ("reference", "simulator")
KERNEL_LANES = ("simulator", "cuda")


class Fault(Exception):
    """Raised by a check that found a fault in the operator; the message describes the fault.

    Attributes:
        change: how to repair the operator; if empty, :attr:`Check.change` is reported.
    """

    def __init__(self, what: str, change: str = "") -> None:
        super().__init__(what)
        self.change = change


class Skip(Exception):
    """Raised by a check that cannot run; the message is the reason."""


@dataclass(frozen=True)
class Check:
    """One check of an operator.

    Attributes:
        name: the check's name in reports and in ``checks=``.
        holds: the claim that the check tests, as a sentence.
        run: takes the :class:`cupyops.torch.check.subject.Subject` and returns what it tried, as text. It raises
            :class:`Fault` or :class:`Skip`; any other exception counts as a fault.
        change: how to repair an operator that fails the check.
        lanes: the lanes in which the check runs.
        needs: names of checks. If one of them failed, this check is skipped, because it would report the same fault.
        ground: if this check fails, all later checks of the lane are skipped.
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
    """Makes a :class:`Check` named as the function; the first line of the function's docstring is `holds`."""

    def made(function: Callable[[Any], str]) -> Check:
        holds = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        return Check(function.__name__, holds, function, change, lanes, needs, ground)

    return made
