"""Checks of features that large models use: forward mode, FLOP counters, jagged tensors, activation checkpointing."""

import logging
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .compare import assert_close
from .failures import first_words, quiet
from .inputs import Arguments, fresh, tensors_in
from .methods import has_forward_mode
from .registry import Fault, Skip, check
from .subject import Subject

__all__ = ["checkpointing", "flops", "jvp", "nested"]


def _widest(subject: Subject) -> tuple[str, list[Arguments]]:
    """Returns float64 if the operator takes it, else the dtype of the samples, and the samples in this dtype."""
    names = list(dict.fromkeys(name for name, _ in subject.variants))
    dtype = "float64" if "float64" in names else names[0]
    return dtype, subject.of_dtype(dtype)


@check(
    "Forward mode calls the declared `jvp` where kernels run, and differentiates the reference elsewhere. Write the "
    "reference in PyTorch's differentiable functions, and give an autograd.Function in the reference a right `jvp`.",
    needs=("gradients", "gradgradcheck", "differentiable"),
    compares="reference",
)
def jvp(subject: Subject) -> str:
    """Tangents of forward mode equal those of reverse mode; torch.compile may raise an error instead."""
    if not has_forward_mode(subject.op):
        raise Skip("forward mode needs a jvp or a reference")
    dtype, samples = _widest(subject)
    if dtype != "float64":
        raise Skip("needs float64, and the operator does not take it")
    for args in samples:
        ready = subject.need_gradients(args)
        seeds, wanted = subject.seeds(ready), subject.wanted(args)
        right = subject.results(fresh(args), seeds=seeds)
        tangents = list(subject.seeds({str(i): args[i] for i in wanted}).values())
        # Σ seed·(J·tangent) = Σ (seed·J)·tangent for the Jacobian J
        terms = [
            right[f"gradient of {subject.schema[i].name}"] * t
            for i, t in zip(wanted, tangents, strict=True)
            if f"gradient of {subject.schema[i].name}" in right
        ]
        by_reverse = sum(x.sum() for x in terms)
        size = sum(float(x.abs().sum()) for x in terms) + 1.0
        for name, method in (("torch.func.jvp", _by_func), ("torch.autograd.forward_ad", _by_dual)):
            found = _product(method(_outputs(subject, args, wanted, ready), args, wanted, tangents), seeds)
            _hold(f"{dtype}, {name}", found, by_reverse, size)
    if subject.kernels and subject.op.reference is not None:
        return f"{len(samples)} samples of {dtype}"  # the backend `reference` compiles the same program
    function = _outputs(subject, args, wanted, ready)

    def compiled(*inputs: Tensor) -> Any:
        return torch.func.jvp(function, inputs, tuple(tangents))[1]

    torch.compiler.reset()
    try:
        with quiet():
            under = torch.compile(compiled, backend="aot_eager")(*(args[i].detach() for i in wanted))
    except Exception:
        _end_forward_mode()
        return f"{len(samples)} samples of {dtype}; torch.compile raises an error"
    _hold(f"{dtype}, torch.func.jvp under torch.compile", _product(under, seeds), by_reverse, size)
    return f"{len(samples)} samples of {dtype}, and one under torch.compile"


def _end_forward_mode() -> None:
    """Ends forward mode, which a failed compilation leaves active in PyTorch. PyTorch refuses forward mode within it."""
    try:
        with forward_ad.dual_level():
            pass
    except RuntimeError:
        torch._C._exit_dual_level(level=0)


def _outputs(
    subject: Subject, args: Arguments, wanted: Sequence[int], ready: dict[str, Tensor]
) -> Callable[..., tuple[Tensor, ...]]:
    """Returns the operator as a function of the differentiated inputs, with the results that require gradients."""
    taken = [int(name.partition(" ")[2] or 0) for name in ready]

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for i, x in zip(wanted, inputs, strict=True):
            full[i] = x
        found = subject.call(full)
        return tuple(found[k] for k in taken)

    return function


def _by_func(
    function: Callable[..., Any], args: Arguments, wanted: Sequence[int], tangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    found: Sequence[Tensor] = torch.func.jvp(function, tuple(args[i].detach() for i in wanted), tuple(tangents))[1]
    return found


def _by_dual(
    function: Callable[..., Any], args: Arguments, wanted: Sequence[int], tangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    with forward_ad.dual_level():
        duals = (forward_ad.make_dual(args[i].detach(), t) for i, t in zip(wanted, tangents, strict=True))
        return [forward_ad.unpack_dual(y).tangent for y in function(*duals)]


def _product(tangents: Sequence[Tensor | None], seeds: dict[str, Tensor]) -> Any:
    return sum((t * g).sum() for t, g in zip(tangents, seeds.values(), strict=True) if t is not None)


def _hold(words: str, found: Any, right: Any, size: float) -> None:
    off = abs(float(found) - float(right))
    if not off <= 1e-9 * size:
        raise Fault(
            f"{words}: the tangents times a gradient are {float(found)!r}, and reverse mode gives {float(right)!r}"
        )


@check(
    "Declare `flops=`, a function of the arguments with shapes in place of tensors. An operator that computes a gradient "
    "needs a `flops` of its own: declare the backward as an Operator.",
    needs=("gradients", "gradgradcheck"),
)
def flops(subject: Subject) -> str:
    """FlopCounterMode counts as many operations for the operator and its gradient as for the reference."""
    dtype, samples = subject.each[0][0], subject.of_dtype(subject.each[0][0])
    reference, total = subject.reference, 0
    for args in samples:
        theirs, ours = _counted(subject, args, reference), _counted(subject, args, None)
        # If the gradient is that of the reference, it runs the reference again.
        again = ours[0] if subject.op._by_reference else 0
        rights = theirs[0], theirs[1] + (again if theirs[1] > theirs[0] else 0)
        for what, right, found in zip(("the call", "call and gradient"), rights, ours, strict=True):
            if right != found:
                shapes = ", ".join(str(tuple(args[i].shape)) for i in tensors_in(args))
                raise Fault(f"{dtype}, {shapes}: {found} FLOPs of {what}, and the reference has {right}")
        total += ours[1]
    return f"{len(samples)} samples of {dtype}, {total} FLOPs"


def _counted(subject: Subject, args: Arguments, function: Callable[..., Any] | None) -> tuple[int, int]:
    """Returns the floating point operations of a call, and of a call and its gradient."""
    from torch.utils.flop_counter import FlopCounterMode

    wanted = [] if subject.mutated or subject.refusal else subject.wanted(args)
    leaves = [x.detach().requires_grad_(i in wanted) if isinstance(x, Tensor) else x for i, x in enumerate(fresh(args))]
    ready = [] if not wanted else list(subject.differentiable(args))
    with FlopCounterMode(display=False) as counter, torch.enable_grad() if wanted else torch.no_grad():
        outputs = subject.call(leaves, function)
        forward = counter.get_total_flops()
        taken = [y for name in ready if (y := outputs[int(name.partition(" ")[2] or 0)]).requires_grad]
        if taken:
            seeds = [torch.ones_like(y) for y in taken]
            torch.autograd.grad(taken, [leaves[i] for i in wanted], seeds, allow_unused=True)
    return forward, counter.get_total_flops()


@check(
    "The rule in `sharding=` must hold for the first dimension. Between the gradient that arrives and the call of the "
    "gradient's operator, use operations that PyTorch has for jagged tensors.",
    needs=("gradgradcheck", "gradient_strides", "differentiable", "sharding"),
)
def nested(subject: Subject) -> str:
    """A jagged nested tensor gives, with its gradient, the results of a dense tensor of all rows."""
    rule = subject.op._scale.rule
    if rule is None:
        raise Skip("the operator declares no `sharding`")
    tried = 0
    for dtype, args in subject.each:
        # A tensor beside the jagged tensors is dense, and cannot be cut along another dimension.
        splits = [s for s in rule(*args) if 0 in s[1] and set(s[1]) <= {0, None}]
        rows = args[list(splits[0][1]).index(0)].shape[0] if splits else 0
        if rows < 2:
            continue
        split = splits[0]
        # If the gradient is that of the reference, it needs PyTorch's operations on jagged tensors.
        by = [] if subject.op._by_reference else subject.wanted(args)
        wanted = subject.results(fresh(args), wanted=by)
        jagged = [i for i, place in enumerate(split[1]) if place == 0 and isinstance(args[i], Tensor)]
        try:
            found = subject.results(fresh(args), _on_jagged(subject, jagged, rows), wanted=by)
        except Exception as error:
            raise Fault(f"{dtype}, on jagged tensors: {first_words(error)}") from error
        assert_close(f"{dtype}, jagged", found, wanted, than="dense tensors give")
        tried += 1
    if not tried:
        raise Skip("no sample can be cut along the first dimension of its tensors")
    return subject.told(tried, "samples")


def _on_jagged(subject: Subject, jagged: Sequence[int], rows: int) -> Callable[..., Any]:
    """Returns the operator as a function of dense tensors, which it calls on jagged tensors of two sequences."""
    offsets = torch.tensor([0, rows - rows // 2, rows], device=subject.device)

    def function(*args: Any) -> Any:
        full = list(args)
        # PyTorch's function asks whether torch.fx traces it, and thereby has PyTorch log advice to itself.
        log = logging.getLogger("torch.fx._symbolic_trace")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            for i in jagged:
                full[i] = torch.nested.nested_tensor_from_jagged(args[i], offsets)
        finally:
            log.setLevel(level)
        return tuple(y.values() if y.is_nested else y for y in subject.call(full))

    return function


@check(
    "Save tensors with ctx.save_for_backward and not on ctx, so that a checkpoint can drop and recompute them. Compute "
    "the same in every call.",
    needs=("gradients", "gradgradcheck", "differentiable", "determinism"),
)
def checkpointing(subject: Subject) -> str:
    """Under checkpoint the inputs are dropped, and a selective policy that names the operator decides what is recomputed.

    The policy names every operator that it sees if the operator has ``parts``, and must not see the operator itself.
    """
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    op = subject.op
    dtype, args = subject.one_each[0]
    seeds = subject.seeds(subject.need_gradients(args))
    plain = subject.results(fresh(args), seeds=seeds)
    changed = subject.wanted(args)
    calls: list[bool] = []

    def policy(decided: Any, ctx: Any, target: Any, *_: Any, **__: Any) -> Any:
        if op.parts is not None and target is op.op:
            raise Fault(f"a selective checkpoint calls {op.op} and not its parts")
        if op.parts is None and target is not op.op:
            return CheckpointPolicy.PREFER_RECOMPUTE
        calls.append(ctx.is_recompute)
        return decided

    for decided in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE):
        kept: list[Any] = []
        failed: list[Exception] = []

        def region(*given: Any, kept: list[Any] = kept, failed: list[Exception] = failed) -> Any:
            full = [x * 1 if i in changed else x for i, x in enumerate(given)]
            is_recompute = bool(kept)
            kept.extend(weakref.ref(full[i]) for i in changed)
            try:
                return tuple(subject.call(full))
            except Exception as error:
                if is_recompute:
                    raise
                failed.append(error)
                return ()

        choose = partial(policy, decided)

        def function(
            *given: Any,
            region: Any = region,
            kept: list[Any] = kept,
            failed: list[Exception] = failed,
            choose: Any = choose,
        ) -> Any:
            outputs = checkpoint(
                region,
                *given,
                use_reentrant=False,
                context_fn=lambda: create_selective_checkpoint_contexts(choose),
            )
            # In PyTorch 2.11, a forward that raises leaves the checkpoint in force for all tensors that are made later.
            if failed:
                raise failed[0]
            if alive := [subject.schema[i].name for i, x in zip(changed, kept, strict=True) if x() is not None]:
                raise Fault(f"{dtype}: after the forward under checkpoint, `{'`, `'.join(alive)}` is still in memory")
            return outputs

        calls.clear()
        with quiet():
            got = subject.results(fresh(args), function, seeds=seeds)
        assert_close(f"{dtype}, under checkpoint", got, plain, than="without checkpoint")
        if calls[:1] != [False]:
            raise Fault(f"{dtype}: the policy of a selective checkpoint does not see {op.op}")
    return f"policies that save and that recompute {op.op}, in {dtype}"
