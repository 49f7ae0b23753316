"""The check that proves the bounds of an operator's kernels for all sizes."""

import ast

import torch

from cupyops import simulator
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.launch import recording as launches
from cupyops.launch.kernel import Kernel

from .failures import first_words
from .inputs import fresh, to_device
from .registry import KERNEL_BACKENDS, Fault, Skip, check
from .running import few_rows
from .subject import Subject

__all__ = ["bounds"]


@check(
    "Guard each access by the sizes of the call, in 64 bits. If the body guarantees more than the kernel declares, say it: "
    'check_op(..., prove="N % 4 == 0").',
    backends=KERNEL_BACKENDS,
    needs=("sanitizer",),
    compares="",
)
def bounds(subject: Subject) -> str:
    """The kernels that ran access arrays and shared memory within their bounds, whatever the sizes."""
    from cupyops.proving import prove_bounds  # few programs prove

    cpu = torch.device("cpu")
    try:
        with simulator.simulate(), launches.recorded() as record:
            for _dtype, args in subject.variants:
                subject.results(fresh(few_rows(to_device(args, cpu))))
    except (MissingDependencyError, CompileError) as error:
        raise Skip(first_words(error)) from None
    ran = {(launch.kernel, tuple(sorted(launch.types.items()))): None for launch in record}
    if not ran:
        raise Skip("the operator launches no kernel")
    inside, others = 0, dict[str, None]()
    for kernel, types in ran:
        if kernel.geometry.per_call:
            others[f"{kernel.name} gets its grid from each call"] = None
            continue
        try:
            proofs = prove_bounds(kernel, types=dict(types), assume=_about(kernel, subject.prove))
        except (MissingDependencyError, CompileError) as error:
            raise Skip(first_words(error)) from None
        for proof in proofs:
            if proof.answer == "broken":
                raise Fault(str(proof))
            inside += proof.answer == "inside"
            if proof.answer != "inside":
                others[str(proof)] = None
    words = "; ".join(others)
    if not inside:
        raise Skip(words)
    return f"{inside} kernels inside for all sizes{'; ' * bool(others)}{words}"


def _about(kernel: Kernel, conditions: tuple[str, ...]) -> list[str]:
    """Returns the conditions whose names are all parameters of a kernel."""
    names = [{n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)} for text in conditions]
    return [text for text, used in zip(conditions, names, strict=True) if used <= set(kernel.signature.names)]
