"""Faults that samples hide: each shows for other numbers, sizes, values, dimensions or calls than those of its samples."""

from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor

from cupyops.torch import Operator

_names = count()
Samples = list[tuple[Any, ...]]


def plain(schema: str, body: Callable[..., Any], reference: Callable[..., Any]) -> Operator:
    """An operator whose body is of PyTorch's functions, and whose gradient is the reference's."""
    return Operator(f"faulty::hidden{next(_names)}{schema}", body, reference=reference)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def scaled(x: Tensor, f: float) -> Tensor:
    return x * f


def where(
    wrong: Callable[[Tensor, float], Any], samples: Samples | None = None, by: float = 1.25
) -> Callable[[], tuple[Operator, Samples]]:
    """x·f, wrong where a condition of the call holds."""

    def body(x: Tensor, f: float) -> Tensor:
        return x * (f * by if wrong(x, f) else f)

    return lambda: (plain("(Tensor x, float f) -> Tensor", body, scaled), samples or [(normal(4, 8), 3.0)])


def at(wrong: Callable[[Tensor], Tensor], y: float = 0.25) -> Callable[[], tuple[Operator, Samples]]:
    """x·f, wrong at some values of x."""

    def body(x: Tensor, f: float) -> Tensor:
        return torch.where(wrong(x), x.new_tensor(y), x * f)

    return lambda: (plain("(Tensor x, float f) -> Tensor", body, scaled), [(normal(4, 8), 3.0)])


def reduced(x: Tensor, mode: str) -> Tensor:
    """Sums or averages rows."""
    if mode not in ("sum", "mean", "largest"):
        raise ValueError("mode must be sum, mean or largest")
    return x.sum(-1) if mode == "sum" else x.mean(-1) if mode == "mean" else x.amax(-1)


def of_another_mode() -> tuple[Operator, Samples]:
    def body(x: Tensor, mode: str) -> Tensor:
        return reduced(x, "sum" if mode == "largest" else mode)

    return plain("(Tensor x, str mode) -> Tensor", body, reduced), [(normal(4, 8), "sum")]


def of_a_flag() -> tuple[Operator, Samples]:
    def reference(x: Tensor, squared: bool) -> Tensor:
        return x * x if squared else x.abs()

    return plain("(Tensor x, bool squared) -> Tensor", lambda x, squared: x * x, reference), [(normal(4, 8), True)]


def of_a_whole_number() -> tuple[Operator, Samples]:
    def reference(x: Tensor, k: int) -> Tensor:
        return x.roll(k, -1)

    def body(x: Tensor, k: int) -> Tensor:
        return reference(x, max(k, 0))

    return plain("(Tensor x, int k) -> Tensor", body, reference), [(normal(4, 8), 2)]


def of_an_absent_number() -> tuple[Operator, Samples]:
    def reference(x: Tensor, f: float | None) -> Tensor:
        return x.sin() if f is None else x * f

    return plain("(Tensor x, float? f) -> Tensor", lambda x, f: x.sin(), reference), [(normal(4, 8), None)]


def rows_of_matrices() -> tuple[Operator, Samples]:
    """Sums over the first dimension in place of the one before the last."""

    def reference(x: Tensor) -> Tensor:
        return x.sum(-2)

    return plain("(Tensor x) -> Tensor", lambda x: x.sum(0), reference), [(normal(4, 8),)]


def flattened() -> tuple[Operator, Samples]:
    """The results of a batch are right, and their shape is that of a matrix."""

    def body(x: Tensor, w: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1]) @ w

    return plain("(Tensor x, Tensor w) -> Tensor", body, lambda x, w: x @ w), [(normal(4, 8), normal(8, 3))]


def weights_kept() -> tuple[Operator, Samples]:
    """The weights of the first call of a shape are taken for those of all calls."""
    kept: dict[Any, Tensor] = {}

    def body(x: Tensor, w: Tensor) -> Tensor:
        return x * kept.setdefault((w.shape, w.dtype, w.device), w.detach().clone()) if type(x) is Tensor else x * w

    return plain("(Tensor x, Tensor w) -> Tensor", body, lambda x, w: x * w), [(normal(4, 8), normal(4, 8))]


def on_the_third_call() -> tuple[Operator, Samples]:
    calls: dict[Any, int] = {}

    def body(x: Tensor, f: float) -> Tensor:
        key = (x.shape, x.dtype, f)
        calls[key] = calls.get(key, 0) + (type(x) is Tensor)
        return x * (f + (calls[key] % 3 == 0))

    return plain("(Tensor x, float f) -> Tensor", body, scaled), [(normal(4, 8), 3.0)]


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    if not 0 <= p < 1:
        raise ValueError("p must be at least 0 and below 1")
    drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed))
    return x * (drawn >= p) / (1 - p)


def dropout_by_a_hash(x: Tensor, p: float, seed: int, scale: bool = True, seeded: bool = True) -> Tensor:
    """Draws other numbers by the same seed."""
    if not 0 <= p < 1:
        raise ValueError("p must be at least 0 and below 1")
    n = torch.arange(x.numel()).view(x.shape) + (seed if seeded else 0) * 7919
    for _ in range(3):
        n = ((n ^ (n >> 15)) * 0x2C1B3C6D + 0x297A2D39) & 0x7FFFFFFF
    drawn = n / 2.0**31
    return (x * (drawn >= p) / ((1 - p) if scale else 1.0)).to(x.dtype)


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(x, p, seed):  # type: ignore[no-untyped-def]
        return dropout_by_a_hash(x, p, seed)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        _, ctx.p, ctx.seed = inputs

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return None if grad is None else dropout_by_a_hash(grad, ctx.p, ctx.seed), None, None


def without_nan_of_weights() -> tuple[Operator, Samples]:
    def body(x: Tensor, w: Tensor) -> Tensor:
        return x * torch.where(w.isnan(), 0.0, w)

    return plain("(Tensor x, Tensor w) -> Tensor", body, lambda x, w: x * w), [(normal(4, 8), normal(4, 8))]


def batch_of_indices() -> tuple[Operator, Samples]:
    """Right for the indices of a row, and transposed for a batch of them."""

    def body(w: Tensor, i: Tensor) -> Tensor:
        return w[i.mT] if i.dim() > 1 else w[i]

    def reference(w: Tensor, i: Tensor) -> Tensor:
        return torch.nn.functional.embedding(i, w)

    return plain("(Tensor w, Tensor i) -> Tensor", body, reference), [(normal(4, 8), torch.tensor([0, 3, 1]))]


class Positive(torch.autograd.Function):
    """Takes 1/2 for the derivative at 0."""

    @staticmethod
    def forward(x):  # type: ignore[no-untyped-def]
        return torch.relu(x)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return None if grad is None else grad * ((x > 0) + 0.5 * (x == 0)).to(x.dtype)


DROPOUT = "(Tensor x, float p, int seed) -> Tensor"


def dropout_without_scale() -> tuple[Operator, Samples]:
    def body(x: Tensor, p: float, seed: int) -> Tensor:
        return dropout_by_a_hash(x, p, seed, scale=False)

    return plain(DROPOUT, body, dropout), [(normal(19, 7), 0.5, 3)]


def dropout_without_seed() -> tuple[Operator, Samples]:
    def body(x: Tensor, p: float, seed: int) -> Tensor:
        return dropout_by_a_hash(x, p, seed, seeded=False)

    return plain(DROPOUT, body, dropout), [(normal(19, 7), 0.5, 3)]


class DropoutOfTwoMasks(Dropout):
    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return None if grad is None else dropout_by_a_hash(grad, ctx.p, ctx.seed + 1), None, None


def another_mask_in_the_backward() -> tuple[Operator, Samples]:
    op = Operator(f"faulty::hidden{next(_names)}{DROPOUT}", DropoutOfTwoMasks, reference=dropout)
    return op, [(normal(19, 7), 0.5, 3)]


# By name: the check (or checks, in order) that finds the fault, the operator and its samples, and the words of the
# message.
HIDDEN_BY_SAMPLES: dict[str, tuple[str, Callable[[], tuple[Operator, Samples]], str]] = {
    "a seed that is set": (
        "determinism",
        lambda: (
            plain("(Tensor x) -> Tensor", lambda x: (torch.manual_seed(0), x * x)[1], lambda x: x * x),
            [(normal(4, 8),)],
        ),
        "the body changes the state of PyTorch's random generator, and the reference does not",
    ),
    "a whole warp of columns": ("sizes", where(lambda x, f: x.shape[-1] == 32), r"the first tensor of \[4, 32\]: output"),
    "a number in float64 without its sign": (
        "numbers",
        where(lambda x, f: x.dtype == torch.float64 and f < 0),
        r"float64, with f=-3.0: output",
    ),
    "a large number": ("numbers", where(lambda x, f: f > 50), r"float32, with f=100.0: output"),
    "a negative number of the second sample": (
        "numbers",
        where(lambda x, f: x.shape[-1] == 5 and f < 0, [(normal(4, 8), 3.0), (normal(4, 5), 2.0)]),
        r"float32, sample 2, with f=-2.0: output",
    ),
    "another mode": ("numbers", of_another_mode, r"with mode='largest': output"),
    "another flag": ("numbers", of_a_flag, r"with squared=False: output"),
    "a negative whole number": ("numbers", of_a_whole_number, r"with k=-2: output"),
    "a number that is absent": ("numbers", of_an_absent_number, r"with f=1.0: output"),
    "columns of 8n + 6": ("sizes", where(lambda x, f: x.shape[-1:] and x.shape[-1] % 8 == 6), r"\[\d+, 6\]: output"),
    "rows of 4n + 2": ("sizes", where(lambda x, f: x.dim() == 2 and x.shape[0] % 4 == 2), r"\[2, \d+\]: output"),
    "more than a thousand columns in float64": (
        "sizes",
        where(lambda x, f: x.dtype == torch.float64 and x.shape[-1] > 1024),
        r"float64, the first tensor of \[2, 1031\]: output",
    ),
    "256 elements": ("sizes", where(lambda x, f: x.numel() % 256 == 0), r"the first tensor of \[16, 16\]: output"),
    "more than 500 elements in float64": (
        "sizes",
        where(lambda x, f: x.dtype == torch.float64 and x.numel() > 1024),
        r"float64, \d+ rows: output",
    ),
    "a value at -0": ("special_values", at(lambda x: (x == 0) & x.signbit()), "float32, with 0, ±1"),
    "NaN of the weights": ("special_values", without_nan_of_weights, r"with nan as element 16 of `w`"),
    "a batch of indices": ("dimensions", batch_of_indices, r"\[4, 8\], \[2, 3\]: output"),
    "another mask in the backward": ("gradcheck", another_mask_in_the_backward, "Jacobian mismatch"),
    "a value at 1": ("special_values", at(lambda x: x == 1), "float32, with 0, ±1"),
    "a value at -1": ("special_values", at(lambda x: x == -1), "float32, with 0, ±1"),
    "a value at a half": ("special_values", at(lambda x: x == 0.5), "float32, with 0, ±1"),
    "a value of subnormal numbers": (
        "special_values",
        at(lambda x: (x != 0) & (x.abs() < torch.finfo(x.dtype).smallest_normal)),
        "float32, with 0, ±1",
    ),
    "a value at 7": ("special_values", at(lambda x: x == 7), "float32, with 0, ±1"),
    "values beyond integers of 32 bits": (
        "special_values",
        at(lambda x: (x.abs() >= 2**31) & (x.abs() < 1e30)),
        r"float32, with large powers of 2",
    ),
    "a batch of matrices": ("dimensions", where(lambda x, f: x.dim() == 3), r"float32, tensors of \[2, 4, 8\]: output"),
    "a batch of batches": ("dimensions", where(lambda x, f: x.dim() == 4), r"tensors of \[3, 2, 4, 8\]: output"),
    "a vector": ("dimensions", where(lambda x, f: x.dim() == 1), r"tensors of \[8\]: output"),
    "rows of the first dimension": (
        "dimensions",
        rows_of_matrices,
        r"\[2, 4, 8\]: output has shape \(4, 8\), and the reference gives \(2, 8\).* Flatten the leading dimensions",
    ),
    "a result that is flat": (
        "dimensions",
        flattened,
        r"\[2, 4, 8\], \[8, 3\]: output has shape \(8, 3\), and the reference gives \(2, 4, 3\)",
    ),
    "weights of the first call": ("gradcheck special_values data", weights_kept, "Jacobian mismatch"),
    "the third call": ("determinism", on_the_third_call, r"run \d: \d+ of 32 elements of output differ"),
    "dropout without its scale": ("values", dropout_without_scale, r"output\[\d+, \d\] is .* the reference in float64 gives"),
    "dropout without its seed": ("values", dropout_without_seed, r"output\[\d+, \d\] is .* the reference in float64 gives"),
}  # fmt: skip


def matrices_alone(x: Tensor) -> Tensor:
    rows, columns = x.shape
    return x.view(rows, columns).softmax(-1)


def of_offsets(x: Tensor, offsets: Tensor) -> Tensor:
    ends = offsets.tolist()
    return torch.stack([x[a:b].sum(0) for a, b in pairwise(ends)])


def noise(x: Tensor) -> Tensor:
    return x + torch.rand_like(x) - 0.5


def other_noise(x: Tensor) -> Tensor:
    return x + 0.5 - torch.rand(x.shape).to(x.dtype)


def dither(x: Tensor, seed: int) -> Tensor:
    return x + torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))


def other_dither(x: Tensor, seed: int) -> Tensor:
    return dither(x, seed + 10**6)


def seeding(x: Tensor, seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return x + torch.randn(x.shape, dtype=x.dtype)


def power(x: Tensor, n: int) -> Tensor:
    return x**n


# Right operators: by name, the operator, its samples and, by check, words of the reason why it is skipped.
def quarter_of_sum(x: Tensor) -> Tensor:
    return (x / 4).sum(-1)


def difference_of_products(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), -x, 4 * x - 8 * x)


UNUSUAL: dict[str, tuple[Callable[[], tuple[Operator, Samples]], dict[str, str]]] = {
    "dropout by another generator": (
        lambda: (
            Operator(f"faulty::hidden{next(_names)}{DROPOUT}", Dropout, reference=dropout),
            [(normal(19, 7), 0.25, 3)],
        ),
        {"values": "the operator is random: operator and reference draw other numbers by `seed`, and their means"},
    ),
    "noise of a body's own generator, by a number of any name": (
        lambda: (plain("(Tensor x, int draw) -> Tensor", other_dither, dither), [(normal(19, 7), 3)]),
        {"values": "the operator is random: operator and reference draw other numbers by `draw`, and their means"},
    ),
    "noise of PyTorch's own generator, by a number of any name": (
        lambda: (plain("(Tensor x, int draw) -> Tensor", other_dither, seeding), [(normal(19, 7), 3)]),
        {"values": "the operator is random: operator and reference draw other numbers by `draw`, and their means"},
    ),
    "noise by a number of any name, of rows by their indices": (
        lambda: (
            plain(
                "(Tensor x, Tensor rows, int draw) -> Tensor",
                lambda x, rows, draw: other_dither(x[rows], draw),
                lambda x, rows, draw: dither(x[rows], draw),
            ),
            [(normal(19, 7), torch.arange(18, -1, -1), 3)],
        ),
        {"values": "the operator is random: operator and reference draw other numbers by `draw`, and their means"},
    ),
    "noise of PyTorch's generator": (
        lambda: (plain("(Tensor x) -> Tensor", other_noise, noise), [(normal(19, 7),)]),
        {"determinism": "two calls of the reference with equal arguments give different results"},
    ),
    "noise by a seed and a dtype": (
        lambda: (plain("(Tensor x, int seed) -> Tensor", dither, dither), [(normal(19, 7), 3)]),
        {},
    ),
    "a result that is None": (
        lambda: (plain("(Tensor x) -> (Tensor y, Tensor? z)", *(lambda x: (x.abs(), None),) * 2), [(normal(19, 4),)]),
        {},
    ),
    "a number that stands for a list": (
        lambda: (plain("(Tensor x, int[2] k) -> Tensor", *(lambda x, k: x * k[0] * k[1],) * 2), [(normal(19, 4), 3)]),
        {},
    ),
    "an argument that it writes to, and that is absent": (
        lambda: (plain("(Tensor x, Tensor(a!)? z) -> Tensor", *(lambda x, z: x.abs(),) * 2), [(normal(19, 4), None)]),
        {},
    ),
    "a mean that does not overflow, as the reference's does": (
        lambda: (plain("(Tensor x) -> Tensor", quarter_of_sum, lambda x: (8 * x).sum(-1) / 32), [(normal(19, 4),)]),
        {},
    ),
    "a difference beyond the range, which is NaN": (
        lambda: (plain("(Tensor x) -> Tensor", difference_of_products, lambda x: -4 * x), [(normal(19, 7),)]),
        {},
    ),
    "matrices alone": (
        lambda: (plain("(Tensor x) -> Tensor", matrices_alone, lambda x: x.softmax(-1)), [(normal(4, 8),)]),
        {"dimensions": r"not comparable with other numbers of dimensions: \[2, 4, 8\] \(ValueError: too many values to unpack"},
    ),
    "offsets of rows": (
        lambda: (
            plain("(Tensor x, Tensor offsets) -> Tensor", of_offsets, of_offsets),
            [(normal(9, 5), torch.tensor([0, 2, 2, 9]))],
        ),
        {},
    ),
    "a choice of texts": (
        lambda: (plain("(Tensor x, str mode='sum') -> Tensor", reduced, reduced), [(normal(4, 8),)]),
        {},
    ),
    "a derivative of its own at a kink": (
        lambda: (
            Operator(f"faulty::hidden{next(_names)}(Tensor x) -> Tensor", Positive, reference=torch.relu),
            [(normal(4, 8),)],
        ),
        {},
    ),
    "negative powers": (
        lambda: (
            plain("(Tensor x, int n) -> Tensor", lambda x, n: x.new_ones(()) / x**-n if n < 0 else x**n, power),
            [(normal(4, 8), 2)],
        ),
        {},
    ),
    "the transpose of a batch": (
        lambda: (plain("(Tensor x) -> Tensor", lambda x: x.mT.clone(), lambda x: x.mT.clone()), [(normal(4, 8),)]),
        {},
    ),
    "a scalar of a matrix": (
        lambda: (plain("(Tensor x) -> Tensor", lambda x: x.square().sum(), lambda x: (x * x).sum()), [(normal(4, 8),)]),
        {},
    ),
}  # fmt: skip
