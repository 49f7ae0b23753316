"""Checks of an operator on tensors of other shapes and layouts, and a check that inputs are not written."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .compare import assert_close
from .failures import first_words
from .inputs import (
    WAYS,
    Arguments,
    channels_last,
    expanded,
    form_of,
    fresh,
    laid_out,
    lead_of,
    misaligned_all,
    moved_on,
    restrided,
    tensors_in,
    transposed,
    with_sizes,
)
from .nearby import Refused, filled, holds
from .registry import KERNEL_BACKENDS, Fault, Skip, check
from .subject import Subject
from .values import target

__all__ = ["dimensions", "empties", "gradient_strides", "inputs_kept", "misaligned", "sizes", "strides"]

# More elements than fit into a grid of 16-bit numbers are tried, if that takes at most so many seconds.
# Sizes with every remainder by 8, the elements of a vector of 16-bit numbers.
RESIDUES = (1, 2, 3, 4, 6, 15, 16, 37)
LARGE, SECONDS = 1 << 16, 0.3
# Seeds of random strides and of random sizes, the largest random size, and the most elements.
SEEDS, RANDOM_SIZE, RANDOM_ELEMENTS = 8, 100, 1 << 12
_CONTIGUOUS = "Begin the body with `x = x.contiguous()`, or pass strides to the kernel and use them."


def _alike(subject: Subject, what: str, args: Arguments) -> None:
    """Raises unless the results on these tensors are close to the results on contiguous copies."""
    copies = tuple(
        x.detach().contiguous().clone(memory_format=torch.contiguous_format) if isinstance(x, Tensor) else x
        for x in args
    )
    wanted = subject.wanted(args)
    try:
        got = subject.results(args, wanted=wanted)
    except Exception as error:
        raise Fault(f"{what}: {first_words(error)}") from error
    assert_close(what, got, subject.results(copies, wanted=wanted), than="a contiguous copy gives")


@check(_CONTIGUOUS)
def strides(subject: Subject) -> str:
    """Transposed, sliced, padded and expanded tensors, and those of random strides, give the results of contiguous copies."""
    tried = 0
    for dtype, args in subject.each:
        for name, changed in laid_out(args):
            _alike(subject, f"{dtype}, {name}", changed)
            tried += 1
        if not subject.mutated:  # PyTorch does not write into expanded tensors
            for name, changed in expanded(args):
                _alike(subject, f"{dtype}, {name}", changed)
                tried += 1
            for seed in range(SEEDS) if dtype == subject.one_dtype else ():
                changed = restrided(args, torch.Generator().manual_seed(seed))
                _alike(subject, f"{dtype}, random strides of seed {seed}", changed)
                tried += 1
    return subject.told(tried, "layouts")


@check(
    "Look at the address before an access wider than an element, as elementwise.cuh and rows.cuh do, or copy with "
    "`.clone()` in the body if `x.data_ptr() % 16` is not 0."
)
def misaligned(subject: Subject) -> str:
    """Tensors whose address is not a multiple of 16 bytes give the results of aligned copies."""
    tried = 0
    for dtype, args in subject.each:
        _alike(subject, f"{dtype}, one element after a multiple of 16 bytes", misaligned_all(args))
        tried += 1
    return subject.told(tried, "samples")


@check(
    "Begin the backward with `grad = grad.contiguous()`, or pass its strides to the kernel and use them. If the "
    "backward launches kernels itself, call `grad = grad.resolve_neg()`, too."
)
def gradient_strides(subject: Subject) -> str:
    """Expanded, transposed, strided and negative-bit gradients give the results of contiguous gradients.

    The backward of `y.sum()` passes a gradient of stride 0. The backward of `torch.imag` passes a gradient with the
    negative bit.
    """
    tried = 0
    for dtype, args in subject.each:
        ready = subject.need_gradients(args)
        kinds = {
            "gradients of stride 0": {n: torch.ones((), dtype=y.dtype, device=y.device).expand_as(y) for n, y in ready.items()},
            "transposed gradients": {
                n: transposed(g)
                for n, g in subject.seeds(ready).items()
            },
            "gradients of every other element": {
                n: torch.stack((torch.zeros_like(g), g), -1)[..., 1] for n, g in subject.seeds(ready).items()
            },
            "gradients with the negative bit": {n: torch._neg_view(-g) for n, g in subject.seeds(ready).items()},
        }  # fmt: skip
        for what, seeds in kinds.items():
            try:
                got = subject.results(fresh(args), seeds=seeds)
            except Exception as error:
                raise Fault(f"{dtype}, {what}: {first_words(error)}") from error
            copies = {n: g.resolve_neg().clone(memory_format=torch.contiguous_format) for n, g in seeds.items()}
            assert_close(
                f"{dtype}, {what}", got, subject.results(fresh(args), seeds=copies), than="a contiguous gradient gives"
            )
            tried += 1
    return subject.told(tried, "gradients")


@check(
    "A launch over no elements is skipped already. Look for divisions by a size, reshape(-1, ...), and max() of no "
    "elements in the body.",
    compares="reference",
)
def empties(subject: Subject) -> str:
    """Inputs without rows give the outputs and gradients that the reference gives."""
    tried = 0
    for dtype, args in subject.each:
        if not lead_of(args).dim():
            continue
        none = subject.rows(args, 0)
        try:
            got = subject.results(fresh(none))
        except Exception as error:
            if subject.reference_raises(none):
                raise Skip(f"the reference takes no tensors without rows: {first_words(error)}") from None
            raise Fault(f"{dtype}, no rows: {first_words(error)}") from error
        if subject.kernels and subject.op.reference is not None:
            wanted = subject.results(fresh(none), subject.reference, wanted=subject.wanted(none))
            got = {n: got[n] for n in got if n in wanted}
            assert_close(f"{dtype}, no rows", got, {n: wanted[n] for n in got}, than="the reference gives")
        tried += 1
    if not tried:
        raise Skip("the samples have no dimension that could be empty")
    return subject.told(tried, "samples")


@check(
    "Look at the last block, and at the tail after the last whole vector. Take sizes from the tensors of the call.",
    backends=KERNEL_BACKENDS,
    needs=("values", "gradients"),
    compares="reference",
)
def sizes(subject: Subject) -> str:
    """1, 3, 37 and 1023 rows, and other sizes of every dimension, also random ones, give the values of the reference."""
    tried, many = 0, 0.0
    for dtype, args in subject.each:
        for count in (1, 3, 37, 1023):
            lead = lead_of(args)
            if count == 1023 and lead.dim() and lead.numel() > 64 * lead.shape[0]:
                continue  # a thousand long rows take the simulator minutes
            rows = subject.rows(args, count)
            began = time.process_time()  # other programs do not count
            with filled():
                got = subject.outputs(fresh(rows))
            many = time.process_time() - began if count == 1023 else many
            right = target(subject, rows, got, {})
            assert_close(f"{dtype}, {count} rows", got, right.exact, right.allowed, right.than)
            tried += 1
    if subject.op.reference is not None:
        for dtype, args in subject.variants:
            # Every sample in one dtype, and of each other dtype the first sample.
            if dtype == subject.one_dtype or args is subject.of_dtype(dtype)[0]:
                tried += _other_sizes(subject, dtype, args, many)
            for seed in range(SEEDS) if dtype == subject.one_dtype else ():
                for what, changed in _random_sizes(args, seed):
                    with contextlib.suppress(Refused):
                        holds(subject, f"{dtype}, {what}", changed)
                        tried += 1
                        break
    return subject.told(tried, "sizes")


def _other_sizes(subject: Subject, dtype: str, args: Arguments, many: float) -> int:
    """Compares the operator with the reference at other sizes of each dimension, and of all; returns how many.

    Args:
        many: the seconds that a call with 1023 rows took; 0 if there was none.
    """
    shape = lead_of(args).shape
    changes: list[dict[int, int]] = [{d: n} for d in range(len(shape)) for n in RESIDUES]
    # All sizes odd: their product has every remainder by 4 and by 8 in turn.
    odd = (3, 5, 7, 9, 11, 13)
    changes += [{d: odd[(d + k) % len(odd)] for d in range(len(shape))} for k in (0, 1, 2)]
    # Whole blocks of threads: 256 elements and more, and 1024 columns.
    changes += [dict.fromkeys(range(len(shape)), n) for n in (1, 16)]
    changes += [{**dict.fromkeys(range(len(shape)), 1), len(shape) - 1: 1024}] if len(shape) else []
    changes += (
        [{len(shape) - 1: n} for n in (32, 64, 128)] if len(shape) else []
    )  # whole warps, for which kernels have separate code
    changes += [{d: n + 1} for d, n in enumerate(shape) if list(shape).count(n) > 1]
    if len(shape) > 1:
        changes += [{**dict.fromkeys(range(len(shape) - 2), 1), len(shape) - 2: 2, len(shape) - 1: 1031}]
    per_row = max(1, lead_of(args).numel() // max(1, shape[0] if shape else 1))
    rows = LARGE // per_row + 3
    if shape and 0 < many * (rows / 1023) ** 2 < SECONDS:  # the time may grow with the square of the size
        changes += [{0: rows}]
    if dtype != subject.one_dtype:  # the sizes on which most kernels' choices depend
        last = len(shape) - 1
        changes = [c for c in changes if len(c) == len(shape) or c in ({last: 2}, {last: 6}, {last: 15})]
    found = 0
    for change in changes:
        if not all(shape[d] for d in change):
            continue
        what = f"{dtype}, the first tensor of {[change.get(d, n) for d, n in enumerate(shape)]}"
        repeated = len({shape[d] for d in change}) < len(change) or any(list(shape).count(shape[d]) > 1 for d in change)
        for way in WAYS[2:] if repeated else WAYS:
            try:
                holds(subject, what, with_sizes(args, change, way), gradients=sum(change.values()) < 100)
            except Refused:
                continue
            found += 1
            break
    return found


def _random_sizes(args: Arguments, seed: int) -> Iterator[tuple[str, Arguments]]:
    """Yields the sample at random sizes, in the ways in which the sizes of its tensors may go together."""
    generator = torch.Generator().manual_seed(seed)
    shape = lead_of(args).shape
    change = {d: int(torch.randint(1, RANDOM_SIZE, (), generator=generator)) for d, n in enumerate(shape) if n}
    while change and math.prod(change.values()) > RANDOM_ELEMENTS:
        change[max(change, key=lambda d: change[d])] //= 2
    what = f"seed {seed}: the first tensor of {[change.get(d, n) for d, n in enumerate(shape)]}"
    for way in WAYS if change else ():
        yield what, with_sizes(args, change, way)


# Leading dimensions that are put before those of a sample.
LEADING = ((2,), (3, 2))


@check(
    "Flatten the leading dimensions in the body, and give the results the dimensions of the reference's. If the operator "
    "does not take tensors with more or fewer dimensions, raise ValueError in the body.",
    backends=KERNEL_BACKENDS,
    needs=("values", "gradients"),
    compares="reference",
)
def dimensions(subject: Subject) -> str:
    """With more leading dimensions, also channels last, or without one, the results are the reference's, or the operator refuses."""
    subject.reference  # noqa: B018 (skips the check where there is none)
    if subject.mutated:
        raise Skip("the operator writes into its arguments")
    tried, refused, known = 0, list[str](), set[str]()
    for args in subject.of_dtype(subject.one_dtype):
        for changed in _other_dimensions(args):
            if (form := form_of(changed)) in known:
                continue
            known.add(form)
            shapes = ", ".join(str(list(changed[i].shape)) for i in tensors_in(changed))
            try:
                holds(subject, f"{subject.one_dtype}, tensors of {shapes}", changed)
                if (last := channels_last(changed)) is not None:
                    holds(subject, f"{subject.one_dtype}, tensors of {shapes}, channels last", last)
                tried += 1
            except Refused as error:
                refused.append(f"{shapes} ({error})")
    if not tried:
        raise Skip(f"not comparable with other numbers of dimensions: {'; '.join(refused[:2])}")
    return f"{tried} shapes of {subject.one_dtype}{f'; not comparable: {len(refused)}' * bool(refused)}"


def _other_dimensions(args: Arguments) -> Iterator[Arguments]:
    """Yields the sample with leading dimensions put before those of the tensors, and without the first dimension.

    The tensors of the lead's shape change, or those of as many dimensions, or all, or those whose shape is a leading part of
    the lead's, as targets of a loss are, or those of whole numbers, as indices of rows are. The reference decides which of these make sense.
    """
    lead = lead_of(args)
    ways: list[Callable[[Tensor], bool]] = [
        lambda x: x.shape == lead.shape,
        lambda x: x.dim() == lead.dim(),
        lambda x: True,
        lambda x: x.shape == lead.shape[: x.dim()],
        lambda x: not x.is_floating_point(),
    ]
    positions = {tuple(i for i in tensors_in(args) if way(args[i])) for way in ways}
    for some in sorted(positions - {()}):
        for leading in LEADING:
            copies = [moved_on(args, k) for k in range(math.prod(leading))]
            changed = list(fresh(args))
            for i in some:
                joined = torch.stack([copy[i].detach() for copy in copies]).view(*leading, *args[i].shape)
                changed[i] = joined.requires_grad_(args[i].requires_grad)
            yield tuple(changed)
        if all(args[i].dim() and args[i].shape[0] for i in some):
            changed = list(fresh(args))
            for i in some:
                changed[i] = args[i].detach()[-1].clone().requires_grad_(args[i].requires_grad)
            yield tuple(changed)


@check(
    "Allocate the outputs. Never return an input or a view of an input, and never write into an input that the schema "
    "does not declare as written, `Tensor(a!) x`.",
    ground=True,
    compares="",
)
def inputs_kept(subject: Subject) -> str:
    """Inputs and incoming gradients are not written, and no output is an input or shares the memory of an input."""
    for dtype, args in subject.variants:
        mine = fresh(args)
        wanted = subject.wanted(mine)
        before = [x.detach().clone() if isinstance(x, Tensor) else x for x in mine]
        leaves = [
            x.detach().requires_grad_(i in wanted and not (subject.mutated or subject.refusal))
            if isinstance(x, Tensor)
            else x
            for i, x in enumerate(mine)
        ]
        with torch.enable_grad():
            outputs = subject.call(leaves)
        outputs = outputs[: len(outputs) - sum(isinstance(mine[i], Tensor) for i in subject.mutated)]
        ready = [y for y in outputs if y.requires_grad]
        seeds = [torch.ones_like(y) for y in ready]
        if ready:
            torch.autograd.grad(ready, [leaves[i] for i in wanted], seeds, allow_unused=True)
        for i in tensors_in(mine):
            name = subject.schema[i].name
            if i not in subject.mutated and not _same(mine[i], before[i]):
                raise Fault(f"{dtype}: `{name}` is written into")
            for k, y in enumerate(outputs):
                if y.numel() and y.untyped_storage().data_ptr() == mine[i].untyped_storage().data_ptr():
                    raise Fault(f"{dtype}: output {k} shares the memory of `{name}`")
        for g in seeds:
            if not bool((g == 1).all()):
                raise Fault(f"{dtype}: the gradient of an output is written into")
    return subject.told(len(subject.variants), "samples")


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)
