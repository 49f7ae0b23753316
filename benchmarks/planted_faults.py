"""Faults of operators as users write them, and correct operators that are unusual: what :func:`cupyops.torch.check_op` is measured on.

Each entry was written before check_op was run on it. Since then, only wrong entries have been changed: faults that were
none, such as a read that every compiler removes, and operators that were faulty, such as a transpose that may return its
input's memory. ``python -m benchmarks.check_op_recall`` runs them.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cupyops import Kernel, Rows, Threads
from cupyops.torch import Operator

__all__ = ["FAULTS", "RIGHT"]

Samples = list[tuple[Any, ...]]
Made = tuple[Operator, Samples]
_numbers = itertools.count()
_FLOATS = ("float32", "float64")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def op(schema: str, body: Any, reference: Any, samples: Samples | None = None, **given: Any) -> Made:
    """An operator under a name of its own, and its samples."""
    name = f"planted::op{next(_numbers)}"
    return Operator(name + schema, body, reference=reference, **given), samples or [(normal(6, 10),)]


def with_gradient(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: int = 1,
    samples: Samples | None = None,
) -> Made:
    """An operator of one or two tensors whose backward gets the gradient and the inputs."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*args):  # type: ignore[no-untyped-def]
            return forward(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad_y):  # type: ignore[no-untyped-def]
            return (None,) * inputs if grad_y is None else backward(grad_y, *ctx.saved_tensors)

    names = ("x", "w")[:inputs]
    schema = f"({', '.join(f'Tensor {n}' for n in names)}) -> Tensor"
    return op(schema, Function, reference, samples or [tuple(normal(6, 10) + i for i in range(inputs))])


def of_one(
    text: str, reference: Callable[..., Any], samples: Samples | None = None, make: Any = None, policy: Any = None
) -> Made:
    """An operator of a kernel ``k(x, y, n)`` that writes as many numbers as it reads."""
    head = 'extern "C" __global__ void k(const scalar_t* x, /* (n) */ scalar_t* y, /* (n) */ long long n) {'
    i = "const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;"
    kernel = Kernel(f"{head}\n{i}\n{text}\n}}", "k", policy or Threads("n"), dtypes=_FLOATS)

    def body(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel(x, y, x.numel())
        return y

    return op("(Tensor x) -> Tensor", make(kernel) if make else body, reference, samples)


def of_rows(text: str, reference: Callable[..., Any], block: int = 64, zeroed: bool = False) -> Made:
    """An operator of a kernel ``k(x, y, M, N)`` that writes a number for each row, by a block for each."""
    head = 'extern "C" __global__ void k(const scalar_t* x, /* (M, N) */ scalar_t* y, /* (M) */ long long M, long long N) {'
    start = "const long long row = blockIdx.x; const int t = threadIdx.x; __shared__ scalar_t part[BLOCK_THREADS];"
    kernel = Kernel(f"{head}\n{start}\n{text}\n}}", "k", Rows("M", block=block), dtypes=_FLOATS)

    def body(x: Tensor) -> Tensor:
        rows = x.contiguous().reshape(-1, x.shape[-1])
        y = (torch.zeros if zeroed else torch.empty)(rows.shape[0], dtype=x.dtype)
        kernel(rows, y, *rows.shape)
        return y.reshape(x.shape[:-1])

    return op("(Tensor x) -> Tensor", body, reference)


def plain(
    body: Callable[..., Any], reference: Callable[..., Any], samples: Samples | None = None
) -> Callable[[], Made]:
    return lambda: op("(Tensor x) -> Tensor", body, reference, samples)


def scaled(body: Callable[..., Any], default: str = "", reference: Any = None, sample: Any = 3.0) -> Callable[[], Made]:
    samples = [(normal(6, 10), sample)] if not default else [(normal(6, 10),)]
    return lambda: op(f"(Tensor x, float f{default}) -> Tensor", body, reference or (lambda x, f: x * f), samples)


def square(x: Tensor) -> Tensor:
    return x * x


def product(x: Tensor, w: Tensor) -> Tensor:
    return x * w


def where(wrong: Callable[[Tensor], Any]) -> Callable[[], Made]:
    """x², and x² + x where a condition of the call holds."""
    return plain(lambda x: x * x + x if wrong(x) else x * x, square)


def at(wrong: Callable[[Tensor], Tensor], value: float) -> Callable[[], Made]:
    """x², and another value at some values of x."""
    return plain(lambda x: torch.where(wrong(x), x.new_full((), value), x * x), square)


def gradient(backward: Callable[..., Any]) -> Callable[[], Made]:
    return lambda: with_gradient(square, backward, square)


def gradients(backward: Callable[..., Any]) -> Callable[[], Made]:
    return lambda: with_gradient(product, backward, product, 2)


def kept(key: Callable[[Tensor], Any]) -> Callable[[], Made]:
    """The result of an earlier call with the same key."""

    def make() -> Made:
        results: dict[Any, Tensor] = {}
        return op("(Tensor x) -> Tensor", lambda x: results.setdefault(key(x), x * x).clone(), square)

    return make


def after(calls: int, wrong: Callable[[Tensor], Tensor]) -> Callable[[], Made]:
    def make() -> Made:
        count = itertools.count(1)
        return op("(Tensor x) -> Tensor", lambda x: wrong(x) if next(count) % calls == 0 else x * x, square)

    return make


def one_buffer() -> Made:
    buffers: dict[Any, Tensor] = {}

    def body(x: Tensor) -> Tensor:
        y = buffers.setdefault((x.shape, x.dtype), torch.empty_like(x))
        return y.copy_(x.detach() * x.detach())

    return op("(Tensor x) -> Tensor", body, square)


def written_and_restored(x: Tensor) -> Tensor:
    before = x.detach().clone()
    x.detach().mul_(x.detach())
    y = x.detach().clone()
    x.detach().copy_(before)
    return y


def write(change: Callable[[Tensor], object]) -> Callable[[], Made]:
    def body(x: Tensor) -> Tensor:
        y = x * x
        change(x.detach())
        return y

    return plain(body, square)


def in_memory(x: Tensor) -> Tensor:
    """Reads memory as if every tensor were contiguous."""
    flat = x.detach().as_strided((x.numel(),), (1,), x.storage_offset())
    return (flat * flat).reshape(x.shape)


def from_the_start(x: Tensor) -> Tensor:
    flat = x.detach().as_strided(x.shape, x.stride(), 0)
    return flat * flat


def sine_with_tangent(jvp_factor: float) -> Callable[[], Made]:
    def jvp(tangent_x: Tensor, x: Tensor) -> Tensor:
        return jvp_factor * x.cos() * tangent_x

    return lambda: op("(Tensor x) -> Tensor", lambda x: x.sin(), torch.sin, jvp=jvp)


def second_order(wrong: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Made]:
    """The gradient is right, and its own gradient is of another expression of the same value."""
    return lambda: with_gradient(lambda x: x**3, wrong, lambda x: x**3)


SUM = """
    scalar_t s = 0;
    for (long long j = t; j < N; j += BLOCK_THREADS) s += x[row * N + j];
    part[t] = s;
    FIRST
    for (int half = BLOCK_THREADS / 2; half; half /= 2) { if (t < half) part[t] += part[t + half]; SECOND }
    if (t == 0) y[row] = part[0];
"""


def summed(first: str = "__syncthreads();", second: str = "__syncthreads();") -> Callable[[], Made]:
    return lambda: of_rows(SUM.replace("FIRST", first).replace("SECOND", second), lambda x: x.sum(-1))


def elements(text: str, reference: Callable[..., Any] = square, **given: Any) -> Callable[[], Made]:
    return lambda: of_one(text, reference, **given)


def rows(text: str, reference: Callable[..., Any] = lambda x: x.sum(-1), **given: Any) -> Callable[[], Made]:
    return lambda: of_rows(text, reference, **given)


# By kind and name.
FAULTS: dict[str, dict[str, Callable[[], Made]]] = {
    "gradient": {
        "off by a factor of 1.01": gradient(lambda g, x: g * x * 2.02),
        "without its factor": gradient(lambda g, x: g * x),
        "wrong sign below zero": gradient(lambda g, x: g * 2 * x.abs()),
        "of a mean of the gradient": gradient(lambda g, x: g.mean() * 2 * x),
        "last row left out": gradient(lambda g, x: torch.cat([(g * 2 * x)[:-1], torch.zeros_like(x[-1:])])),
        "of large values": gradient(lambda g, x: g * (2 * x).clamp(-100, 100)),
        "none for the second input": gradients(lambda g, x, w: (g * w, torch.zeros_like(w))),
        "of both inputs exchanged": gradients(lambda g, x, w: (g * x, g * w)),
        "not summed over rows that are broadcast": lambda: with_gradient(
            product, lambda g, x, w: (g * w, (g * x)[0]), product, 2, [(normal(6, 10), normal(10))]
        ),
        "in float16 on the way": gradient(lambda g, x: (g * 2 * x).half().to(x.dtype)),
    },
    "second order": {
        "a constant in the gradient": second_order(lambda g, x: g * 3 * (x * x).detach()),
        "half of the gradient constant": second_order(lambda g, x: g * 3 * x * x.detach()),
        "the incoming gradient constant": second_order(lambda g, x: g.detach() * 3 * x * x),
    },
    "jvp": {
        "off by a factor": sine_with_tangent(1.01),
        "wrong sign": sine_with_tangent(-1.0),
        "zero": sine_with_tangent(0.0),
    },
    "vmap and dimensions": {
        "a mean over all dimensions": plain(
            lambda x: x - (x.mean(-1, keepdim=True) if x.dim() < 3 else x.mean()), lambda x: x - x.mean(-1, keepdim=True)
        ),
        "the first dimension in place of the last but one": plain(lambda x: x.cumsum(0), lambda x: x.cumsum(-2)),
        "wrong above three dimensions": where(lambda x: x.dim() > 3),
    },
    "sizes": {
        "odd numbers of columns": where(lambda x: x.shape[-1] % 2 == 1),
        "more than 256 columns": where(lambda x: x.shape[-1] > 256),
        "one row": where(lambda x: x.shape[0] == 1),
        "exactly 32 columns": where(lambda x: x.shape[-1] == 32),
        "more than 65535 rows": where(lambda x: x.shape[0] > 65535),
        "no rows": plain(lambda x: x / len(x) * len(x) if len(x) != 0 else x.new_zeros(1), lambda x: x.clone()),
        "a tail of fewer than four": plain(
            lambda x: torch.cat([(x * x).reshape(-1)[: x.numel() // 4 * 4], x.reshape(-1)[x.numel() // 4 * 4 :]]).reshape(x.shape), square
        ),
        "a prime number of rows": where(lambda x: x.shape[0] in (101, 103, 107)),
    },
    "layouts": {
        "memory taken for contiguous": plain(in_memory, square),
        "an offset of the storage ignored": plain(from_the_start, square),
        "a stride of 0": where(lambda x: 0 in x.stride()),
        "columns first": where(lambda x: x.dim() == 2 and x.stride()[0] == 1 and x.shape[0] > 1),
        "channels last": where(lambda x: x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()),
        "an address that is no multiple of 16 bytes": where(lambda x: x.data_ptr() % 16 != 0),
    },
    "state": {
        "kept by the shape": kept(lambda x: (x.shape, x.dtype)),
        "kept by the address": kept(lambda x: (x.data_ptr(), x.shape, x.stride(), x.dtype)),
        "kept by the object": kept(lambda x: (id(x), x.dtype)),
        "kept by the sum": kept(lambda x: (x.shape, x.dtype, float(x.detach().double().sum().round(decimals=1)))),
        "the second call": after(2, lambda x: x * x + x),
        "each 97th call": after(97, lambda x: x * x + x),
        "each 1000th call": after(1000, lambda x: x * x + x),
        "a buffer for all results": one_buffer,
    },
    "random numbers": {
        "noise of 1e-5": plain(lambda x: x * x + 1e-5 * torch.randn_like(x), square),
        "noise of 1e-12": plain(lambda x: x * x * (1 + 1e-12 * torch.randn_like(x)), square),
        "a seed that is set": plain(lambda x: (torch.manual_seed(0), x * x)[1], square),
    },
    "declarations": {
        "a view of the input": plain(lambda x: x.view(x.shape), lambda x: x.clone()),
        "the input for one value": scaled(lambda x, f: x if f == 1.0 else x * f, "=1.0"),
        "writes into its input": write(lambda x: x.mul_(2)),
        "writes the same values into its input": write(lambda x: x.copy_(x.clone())),
        "writes one element of its input": write(lambda x: x.reshape(-1)[:1].zero_()),
        "writes and restores its input": plain(written_and_restored, square),
        "float32 for 16-bit floats": plain(lambda x: (x * x).float() if x.dtype.itemsize == 2 else x * x, square),
        "float64 for float32": plain(lambda x: (x * x).double(), square),
        "memory of the transpose": plain(lambda x: (x * x).mT.contiguous().mT, square),
        "a row fewer": plain(lambda x: (x * x)[1:], square),
        "a fake of another shape": lambda: op("(Tensor x) -> Tensor", lambda x: x.sum(-1), lambda x: x.sum(-1), fake=lambda x: torch.empty_like(x)),
    },
    "numbers": {
        "ignored, without a default": scaled(lambda x, f: x * 3.0),
        "ignored, at its default": scaled(lambda x, f: x * 2.0, "=2.0"),
        "its sign ignored": scaled(lambda x, f: x * abs(f)),
        "rounded to a whole number": scaled(lambda x, f: x * round(f)),
        "in float32 for float64": scaled(lambda x, f: x * torch.tensor(f, dtype=torch.float32).to(x.dtype), sample=0.1),
        "wrong at 0": scaled(lambda x, f: x * (f or 1.0)),
        "a flag ignored": lambda: op("(Tensor x, bool up=True) -> Tensor", lambda x, up: x.ceil(), lambda x, up: x.ceil() if up else x.floor()),
        "an absent tensor": lambda: op(
            "(Tensor x, Tensor? b=None) -> Tensor", lambda x, b: x + 1 if b is None else x, lambda x, b: x + 1 if b is None else x + b
        ),
    },
    "values": {
        "NaN becomes 0": at(lambda x: x.isnan(), 0.0),
        "infinity becomes a number": plain(lambda x: (x * x).clamp(max=1e30) if x.dtype == torch.float32 else x * x, square),
        "wrong at 0": at(lambda x: x == 0, 1e-3),
        "wrong at 2": at(lambda x: x == 2, 5.0),
        "wrong between 0.5 and 0.5001": at(lambda x: (x > 0.5) & (x < 0.5001), 1.0),
        "wrong beyond 100": at(lambda x: x > 100, 1e4),
        "a softmax without its maximum": plain(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), lambda x: x.softmax(-1)),
        "a variance by the mean of squares": plain(
            lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, lambda x: x.var(-1, unbiased=False)
        ),
        "a sum in 16 bits": plain(lambda x: x.cumsum(-1)[..., -1] if x.dtype.itemsize > 2 else _in_turn(x), lambda x: x.sum(-1), [(normal(6, 300),)]),
        "truncated where it rounds down": plain(lambda x: x.trunc(), torch.floor),
        "wrong at subnormal numbers": at(lambda x: (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny), 1.0),
    },
    "races and barriers": {
        "without the first barrier": summed(first=""),
        "without the barrier in the loop": summed(second=""),
        "a barrier of half of the block": rows(
            "if (t < 32) { __syncthreads(); if (t == 0) { scalar_t s = 0; for (int j = 0; j < N; ++j) s += x[row * N + j]; "
            "y[row] = s; } }"
        ),
        "a sum without atomics": rows("y[row] = 0; __syncthreads(); for (long long j = t; j < N; j += BLOCK_THREADS) y[row] += x[row * N + j];"),
        "a plain read beside atomics": rows(
            "for (long long j = t; j < N; j += BLOCK_THREADS) { if (y[row] < 1e30) atomicAdd(y + row, x[row * N + j]); }",
            zeroed=True,
        ),
        "a shuffle of too few lanes": rows(
            "scalar_t s = 0; for (long long j = t; j < N; j += 64) s += x[row * N + j]; if (t < 20) for (int o = 16; o; "
            "o /= 2) s += __shfl_down_sync(~0u, s, o); if (t == 0) y[row] = s;"
        ),
        "rows that write into one element": rows(
            "if (t == 0) { scalar_t s = 0; for (int j = 0; j < N; ++j) s += x[row * N + j]; y[row / 2] = s; y[row] = s; }"
        ),
    },
    "bounds and memory": {
        "a read past the end": elements("if (i < n) y[i] = x[i] * x[i] + 0 * x[i + 1];"),
        "a write past the end": elements("if (i <= n) y[i] = i < n ? x[i] * x[i] : scalar_t(0);"),
        "a read before the start": elements("if (i < n) y[i] = x[i] * x[i] + 0 * x[i - 1];"),
        "no condition": elements("y[i] = x[i] * x[i];"),
        "the last element unwritten": elements("if (i < n - 1) y[i] = x[i] * x[i];"),
        "elements of value 0 unwritten": elements("if (i < n && x[i] != 0) y[i] = x[i] * x[i];"),
        "adds to what is in memory": elements("if (i < n) y[i] += x[i] * x[i];"),
        "shared memory that nobody has written": rows(
            "if (t < N) part[t] = x[row * N + t]; __syncthreads(); if (t == 0) { scalar_t s = 0; for (int j = 0; "
            "j < BLOCK_THREADS; ++j) s += part[j]; y[row] = s; }"
        ),
        "a fixed number of shared elements": rows(
            "for (long long j = t; j < N; j += BLOCK_THREADS) part[j] = x[row * N + j]; __syncthreads(); if (t == 0) { "
            "scalar_t s = 0; for (int j = 0; j < N; ++j) s += part[j]; y[row] = s; }"
        ),
        "an index of 16 bits": elements("const short j = i; if (i < n) y[i] = x[j] * x[j];"),
        "vectors of four that need an address": elements(
            "typedef struct alignas(4 * sizeof(scalar_t)) { scalar_t v[4]; } four; if (4 * i + 3 < n) { "
            "four f = *(const four*)(x + 4 * i); for (auto& v : f.v) v *= v; *(four*)(y + 4 * i) = f; } "
            "else for (long long j = 4 * i; j < n; ++j) y[j] = x[j] * x[j];"
        ),
    },
}  # fmt: skip


def _in_turn(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[:-1], dtype=x.dtype)
    for column in x.unbind(-1):
        total = total + column
    return total


def plus(x: Tensor, b: Tensor | None = None) -> Tensor:
    return x.clone() if b is None else x + b


def chosen(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.1 * x)


# Right operators whose values, layouts, results or gradients are unusual.
RIGHT: dict[str, Callable[[], Made]] = {
    "a sum by blocks": summed(),
    "elements by a kernel": elements("if (i < n) y[i] = x[i] * x[i];"),
    "a kernel whose last block is empty": elements("if (i < n) y[n - 1 - i] = x[n - 1 - i] * x[n - 1 - i];"),
    "a result that is a constant": plain(lambda x: torch.ones_like(x), lambda x: torch.ones_like(x)),
    "a result of no elements": plain(lambda x: x[:0].clone(), lambda x: x[:0].clone()),
    "a result of one element": plain(lambda x: x.square().sum(), lambda x: (x * x).sum()),
    "a result of another dtype": plain(lambda x: (x > 0).to(torch.int32), lambda x: (x > 0).int()),
    "a condition": plain(lambda x: x > 0, lambda x: x > 0),
    "a kink": plain(chosen, chosen),
    "a step": plain(lambda x: x.floor(), torch.floor),
    "a sort": plain(lambda x: x.sort(-1).values, lambda x: x.sort(-1).values),
    "a transpose": plain(lambda x: x.mT.clone(), lambda x: x.mT.clone()),
    "a flip": plain(lambda x: x.flip(-1), lambda x: x.flip(-1)),
    "a cumulative product": plain(lambda x: x.cumprod(-1), lambda x: x.cumprod(-1)),
    "the largest of a row": plain(lambda x: x.amax(-1), lambda x: x.amax(-1)),
    "a logarithm": plain(lambda x: x.abs().log1p(), lambda x: x.abs().log1p()),
    "a square root": plain(lambda x: x.abs().sqrt(), lambda x: x.abs().sqrt()),
    "a reciprocal": plain(lambda x: 1 / x, lambda x: x.reciprocal()),
    "an exponential": plain(lambda x: x.exp(), torch.exp),
    "a padding": plain(lambda x: torch.nn.functional.pad(x, (1, 2)), lambda x: torch.nn.functional.pad(x, (1, 2))),
    "a repetition": plain(lambda x: x.repeat_interleave(2, -1), lambda x: x.repeat_interleave(2, -1)),
    "a power by a number": scaled(lambda x, f: x.abs() ** f, reference=lambda x, f: x.abs().pow(f)),
    "a number that is divided by": scaled(lambda x, f: x / f, reference=lambda x, f: x / f),
    "an optional tensor": lambda: op("(Tensor x, Tensor? b=None) -> Tensor", plus, lambda x, b=None: plus(x, b)),
    "two results": lambda: op("(Tensor x) -> (Tensor, Tensor)", lambda x: (x.sin(), x.cos()), lambda x: (x.sin(), x.cos())),
    "two tensors of other shapes": lambda: op("(Tensor x, Tensor w) -> Tensor", product, product, [(normal(6, 10), normal(10))]),
    "indices": lambda: op("(Tensor x, Tensor i) -> Tensor", lambda x, i: x[i], lambda x, i: x[i], [(normal(6, 10), torch.tensor([5, 0, 2]))]),
    "a product of matrices": lambda: op(
        "(Tensor x, Tensor w) -> Tensor", torch.matmul, torch.matmul, [(normal(6, 10), normal(10, 4))], flops=lambda x, w: 2 * x[0] * x[1] * w[1]
    ),
    "a gradient of its own": gradient(lambda g, x: 2 * g * x),
    "two gradients of their own": gradients(lambda g, x, w: (g * w, g * x)),
}  # fmt: skip
