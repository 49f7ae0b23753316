"""Defines a check of :func:`cupyops.torch.check_op`, and the exceptions for a fault and for a skip."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["BACKENDS", "KERNEL_BACKENDS", "Check", "Fault", "Skip", "check"]

# The backends, which run an operator: PyTorch runs the reference on the CPU, the simulator runs the kernels on the CPU
# under sanitizers, and CUDA runs the kernels on a GPU.
BACKENDS = ("reference", "simulator", "cuda")
KERNEL_BACKENDS = ("simulator", "cuda")


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
        run: takes the :class:`cupyops.torch.check.subject.Subject` and returns a description of the test. It raises
            :class:`Fault` or :class:`Skip`; any other exception counts as a fault.
        change: how to repair an operator that fails the check.
        backends: the backends on which the check runs.
        needs: names of checks. If one of them failed, this check is skipped, because it would report the same fault.
        ground: if this check fails, all later checks on the backend are skipped.
        compares: what the check compares: results with those of the ``"reference"``, or results of two ``"calls"``; ``""``
            if it compares nothing that depends on random numbers.
    """

    name: str
    holds: str
    run: Callable[[Any], str]
    change: str
    backends: Sequence[str] = BACKENDS
    needs: Sequence[str] = ()
    ground: bool = False
    compares: str = "calls"


def check(
    change: str,
    *,
    backends: Sequence[str] = BACKENDS,
    needs: Sequence[str] = (),
    ground: bool = False,
    compares: str = "calls",
) -> Callable[[Callable[[Any], str]], Check]:
    """Makes a :class:`Check` named as the function; the first line of the function's docstring is `holds`."""

    def made(function: Callable[[Any], str]) -> Check:
        holds = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        return Check(function.__name__, holds, function, change, backends, needs, ground, compares)

    return made
