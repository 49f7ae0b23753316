"""A correct operator, and ways to break it. Each check has a fault that it must find."""

import inspect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cupyops import Kernel, Threads
from cupyops.torch import Operator
from cupyops.torch.core.conditions import dispatch_modes, is_compiling, transforms_active

TEXT = r"""
// y = x + factor·x·w, so grad_x = grad_y·(1 + factor·w) and grad_w = grad_y·factor·x
extern "C" __global__ void mix(
    const scalar_t* __restrict__ x,  // (n)
    const scalar_t* __restrict__ w,  // (n)
    scalar_t* __restrict__ y,        // (n)
    acc_t factor, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) {
        const acc_t v = acc_t(x[i]);
        y[i] = scalar_t(v + factor * v * acc_t(w[i]));
    }
}
extern "C" __global__ void mix_backward(
    const scalar_t* __restrict__ grad_y,  // (n)
    const scalar_t* __restrict__ x,       // (n)
    const scalar_t* __restrict__ w,       // (n)
    scalar_t* __restrict__ grad_x,        // (n)
    scalar_t* __restrict__ grad_w,        // (n)
    acc_t factor, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) {
        const acc_t g = acc_t(grad_y[i]);
        grad_x[i] = scalar_t(g * (1 + factor * acc_t(w[i])));
        grad_w[i] = scalar_t(g * factor * acc_t(x[i]));
    }
}
"""
DTYPES = ("float32", "float64")
_numbers = count()


def kernel(name: str, *changes: tuple[str, str]) -> Kernel:
    """The kernel, with pieces of its text replaced."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Kernel(text, name, Threads("n"), dtypes=DTYPES)


FORWARD, BACKWARD = kernel("mix"), kernel("mix_backward")
IN_PLACE = kernel("mix", ("* __restrict__ x,", "* x,"), ("* __restrict__ y, ", "* y, "))

Body = Callable[..., Any]


def body(x: Tensor, w: Tensor, factor: float, mix: Kernel = FORWARD) -> Tensor:
    x, w = x.contiguous(), w.contiguous()
    y = torch.empty_like(x)
    mix(x, w, y, factor, x.numel())
    return y


def in_place(x: Tensor, w: Tensor, factor: float, mix: Kernel | None = None) -> None:
    (mix or IN_PLACE)(x, w.contiguous(), x, factor, x.numel())


def backward_body(grad_y: Tensor, x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    grad_y, x, w = grad_y.contiguous(), x.contiguous(), w.contiguous()
    grad_x, grad_w = torch.empty_like(x), torch.empty_like(w)
    BACKWARD(grad_y, x, w, grad_x, grad_w, factor, x.numel())
    return grad_x, grad_w


def reference(x: Tensor, w: Tensor, factor: float) -> Tensor:
    return x + factor * x * w


def backward_reference(grad_y: Tensor, x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return grad_y * (1 + factor * w), grad_y * factor * x


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, ctx.factor = inputs
    ctx.save_for_backward(x, w)


@dataclass
class Mix:
    """The parts of a correct operator.

    Attributes:
        backward: of (gradients, ctx, the operator of the backward).
        gradient: a Function for that operator, whose own gradient is else its reference's.
    """

    body: Body = body
    reference: Body | None = reference
    backward_body: Body = backward_body
    backward_reference: Body | None = backward_reference
    save: Body = save
    backward: Body | None = None
    gradient: type[torch.autograd.Function] | None = None
    elementwise: bool = True
    autocast: str | None = None
    schema: str = "(Tensor x, Tensor w, float factor) -> Tensor"
    sharding: str | None = None
    jvp: Body | None = None
    repeats: bool = False
    recompute: Body | None = None
    inplace: Body | None = None

    def operator(self) -> Operator:
        """An operator of these parts, under a name of its own."""
        name = f"mix{next(_numbers)}"
        gradient = Operator(
            f"faulty::{name}_backward(Tensor grad_y, Tensor x, Tensor w, float factor) -> (Tensor, Tensor)",
            self.gradient or self.backward_body,
            reference=self.backward_reference,
            elementwise=True,
            repeats=self.repeats,
        )
        parts = self

        class Function(torch.autograd.Function):
            forward = staticmethod(parts.body)
            setup_context = staticmethod(parts.save)

            @staticmethod
            def backward(ctx, grad_y):  # type: ignore[no-untyped-def]
                if grad_y is None:
                    return None, None, None
                if parts.backward is not None:
                    return (*parts.backward(grad_y, ctx, gradient), None)
                return (*gradient(grad_y, *ctx.saved_tensors, ctx.factor), None)

        return Operator(
            f"faulty::{name}{self.schema}",
            Function,
            reference=self.reference,  # type: ignore[arg-type]
            elementwise=self.elementwise,
            autocast=self.autocast,
            sharding=self.sharding,
            jvp=self.jvp,
            repeats=self.repeats,
            recompute=self.recompute,
            inplace=self.inplace,
        )


# The faults


def changed(*changes: tuple[str, str]) -> Body:
    """The body with another text."""
    broken = kernel("mix", *changes)
    return lambda x, w, factor: body(x, w, factor, broken)


def adds_up_in_one_element() -> Body:
    """A sum of all elements that threads add to as they come, beside the correct result. Threads take turns in the simulator, so
    the sum is right there."""
    text = r"""
extern "C" __global__ void total(
    const scalar_t* __restrict__ x,  // (n)
    acc_t* __restrict__ y,           // (1)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[0] += acc_t(x[i]);
}
"""
    total = Kernel(text, "total", Threads("n"), dtypes=DTYPES)

    def broken(x: Tensor, w: Tensor, factor: float) -> Tensor:
        if not isinstance(x, FakeTensor):
            total(x.contiguous(), x.new_zeros(1), x.numel())
        return body(x, w, factor)

    return broken


def counting() -> Body:
    """A little more at each call."""
    calls = count()
    return lambda x, w, factor: body(x, w, factor + 1e-3 * next(calls))


def chosen(choose: Callable[[Tensor], bool]) -> Body:
    """A choice between two kernels of the same results."""
    other = kernel("mix", ("v + factor * v * acc_t(w[i])", "factor * v * acc_t(w[i]) + v"))
    return lambda x, w, factor: body(x, w, factor, other if not isinstance(x, FakeTensor) and choose(x) else FORWARD)


def by_a_value(x: Tensor) -> bool:
    """The value is read past PyTorch's dispatcher."""
    return x.numel() > 0 and bool(x.detach().cpu().numpy().flat[0] < -1)


def chosen_by_a_value_of_the_gradient(grad_y: Tensor, x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    if not isinstance(grad_y, FakeTensor) and by_a_value(grad_y):
        return backward_body(grad_y.clone(), x, w, factor)
    return backward_body(grad_y, x, w, factor)


def without_contiguous(x: Tensor, w: Tensor, factor: float) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    FORWARD(x, w, y, factor, x.numel())
    return y


def strided_unseen() -> Body:
    """Arrays declared without a shape: the launch cannot know that they have to be contiguous."""
    views = kernel(
        "mix", ("x,  // (n)\n    const scalar_t* __restrict__ w,  // (n)", "x, const scalar_t* __restrict__ w,")
    )

    def broken(x: Tensor, w: Tensor, factor: float) -> Tensor:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        views(x, w, y, factor, x.numel())
        return y

    return broken


def gradient_without_contiguous(grad_y: Tensor, x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    x, w = x.contiguous(), w.contiguous()
    grad_x, grad_w = torch.empty_like(x), torch.empty_like(w)
    BACKWARD(grad_y, x, w, grad_x, grad_w, factor, x.numel())
    return grad_x, grad_w


def wrong_gradient(grad_y: Tensor, x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    grad_x, _ = backward_body(grad_y, x, w, factor)
    return grad_x, grad_x.clone()  # in place of factor·x


def without_nan(x: Tensor, w: Tensor, factor: float) -> Tensor:
    inf = float("inf")
    return body(x.nan_to_num(nan=0.0, posinf=inf, neginf=-inf), w, factor)


def rows_by_name(x: Tensor, w: Tensor, factor: float) -> Tensor:
    rows = x.reshape(x.shape[0], -1)  # finds nothing without elements
    return body(rows, w.reshape(rows.shape), factor).view(x.shape)


def one_row_otherwise(x: Tensor, w: Tensor, factor: float) -> Tensor:
    return body(x, w, 0.0 if x.shape[0] == 1 else factor)


def itself(x: Tensor, w: Tensor, factor: float) -> Tensor:
    return x if factor == 0 else body(x, w, factor)


def into_its_input(x: Tensor, w: Tensor, factor: float) -> Tensor:
    y = body(x, w, factor)
    w.detach().zero_()
    return y


def into_its_gradient(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    found = gradient(grad_y, *ctx.saved_tensors, ctx.factor)
    grad_y.mul_(2)
    return found


def looks_at_values(x: Tensor, w: Tensor, factor: float) -> Tensor:
    if x.numel() and x.flatten()[0].item() > 1e30:
        factor = 0.0
    return body(x, w, factor)


def tied_to_a_size(x: Tensor, w: Tensor, factor: float) -> Tensor:
    if int(x.shape[0]) in (10**6, 10**7):
        factor = 0.0
    return body(x, w, factor)


def by_the_number_of_elements(x: Tensor, w: Tensor, factor: float) -> Tensor:
    """Another kernel for many elements, as a choice that a trace keeps as a condition on the size."""
    return body(x, w, 0.0 if x.numel() >= 2**24 else factor)


def kept_by_a_number() -> Body:
    """Large factors have their result kept, whatever the tensors are."""
    kept: dict[Any, Tensor] = {}

    def broken(x: Tensor, w: Tensor, factor: float) -> Tensor:
        y = body(x, w, factor)
        if isinstance(x, FakeTensor) or factor <= 0.9:
            return y
        return kept.setdefault((factor, x.shape, x.dtype), y).clone()

    return broken


def last_of_four_left_out(x: Tensor, w: Tensor, factor: float) -> Tensor:
    x, w = x.contiguous(), w.contiguous()
    y, n = torch.empty_like(x), x.numel()
    flat = y.view(-1)
    left = n - 1 if n % 4 == 3 else n
    FORWARD(x.view(-1)[:left], w.view(-1)[:left], flat[:left], factor, left)
    return y


def wrong_where(size: Callable[[Tensor], bool]) -> Body:
    return lambda x, w, factor: body(x, w, 0.25 if size(x) else factor)


def without_small_values(x: Tensor, w: Tensor, factor: float) -> Tensor:
    size = x.abs()
    return body(x.masked_fill((size > 2.0**-13) & (size < 2.0**-9), 0.0), w, factor)


def gradient_without_zeros(grad_y: Tensor, x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    broken = kernel(
        "mix_backward", ("acc_t g = acc_t(grad_y[i])", "acc_t g = acc_t(w[i]) == 0 ? acc_t(0) : acc_t(grad_y[i])")
    )
    grad_y, x, w = grad_y.contiguous(), x.contiguous(), w.contiguous()
    grad_x, grad_w = torch.empty_like(x), torch.empty_like(w)
    broken(grad_y, x, w, grad_x, grad_w, factor, x.numel())
    return grad_x, grad_w


def _next_rows(w: Tensor) -> Tensor:
    # DTensor of PyTorch 2.11 has no strategy for flip and roll.
    return torch.cat((w[1:], w[:1]))


def a_row_further(x: Tensor, w: Tensor, factor: float) -> Tensor:
    """No elementwise operator: each row goes with the next one."""
    return body(x, _next_rows(w), factor)


def reference_a_row_further(x: Tensor, w: Tensor, factor: float) -> Tensor:
    return reference(x, _next_rows(w), factor)


def gradient_a_row_further(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    x, w = ctx.saved_tensors
    grad_x, grad_w = gradient(grad_y, x, _next_rows(w), ctx.factor)
    return grad_x, torch.cat((grad_w[-1:], grad_w[:-1]))


def in_autocast(x: Tensor, w: Tensor, factor: float) -> Tensor:
    """Follows autocast, which is off in a body, by looking for its context in the frames of the callers."""
    frame, dtype = inspect.currentframe(), x.dtype
    while frame := frame and frame.f_back:
        if any(type(v) is torch.autocast and v._enabled for v in frame.f_locals.values()):
            dtype = torch.bfloat16
    y = torch.empty_like(x.contiguous(), dtype=dtype)
    FORWARD(x.contiguous(), w.contiguous(), y, factor, x.numel())
    return y


def one_buffer_for_all() -> Body:
    """An output that lives on between the calls."""
    kept: dict[Any, Tensor] = {}
    lock = threading.Lock()

    def broken(x: Tensor, w: Tensor, factor: float) -> Tensor:
        if isinstance(x, FakeTensor):
            return torch.empty_like(x.contiguous())
        key = (tuple(x.shape), x.dtype, x.device)
        with lock:
            y = kept.setdefault(key, torch.empty(x.shape, dtype=x.dtype, device=x.device))
        FORWARD(x.contiguous(), w.contiguous(), y, factor, x.numel())
        time.sleep(2e-3)  # long beside the launch: calls of the other threads fall into it
        return y.clone()

    return broken


def save_intermediates(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, factor = inputs
    ctx.save_for_backward(1 + factor * w, factor * x)


def from_intermediates(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    return tuple(grad_y * d for d in ctx.saved_tensors)


def launched_in_backward(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    return backward_body(grad_y.resolve_neg(), *ctx.saved_tensors, ctx.factor)


def launched_as_it_comes(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    """Ignores the negative bit of views, except under tracing and differentiation."""
    watched = is_compiling() or transforms_active() or dispatch_modes()
    if watched or torch.is_grad_enabled():
        return gradient(grad_y, *ctx.saved_tensors, ctx.factor)
    return backward_body(grad_y, *ctx.saved_tensors, ctx.factor)


def all_or_nothing(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    if not ctx.needs_input_grad[0]:
        return None, None
    return gradient(grad_y, *ctx.saved_tensors, ctx.factor)


def otherwise_when_compiled(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    grad_x, grad_w = gradient(grad_y, *ctx.saved_tensors, ctx.factor)
    return (grad_x * 1.5 if is_compiling() else grad_x), grad_w


class DifferentiatedAgain(torch.autograd.Function):
    """A gradient, and autograd of its reference for the gradient of that, by what was saved. This is still part of a
    graph: grad_y may be made of x, and x counts again by way of grad_y."""

    @staticmethod
    def forward(grad_y, x, w, factor):  # type: ignore[no-untyped-def]
        return backward_body(grad_y, x, w, factor)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs[:3])
        ctx.factor = inputs[3]

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        if all(g is None for g in grads):
            return None, None, None, None
        again = torch.is_grad_enabled()
        saved = [t if again and t.requires_grad else t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            pairs = [
                (y, g) for y, g in zip(backward_reference(*saved, ctx.factor), grads, strict=True) if g is not None
            ]
            outputs, given = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, saved, given, create_graph=again, allow_unused=True)
        return (*found, None)


def detached_in_a_transform(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    """Values alone, where a transform runs the backward: right once, and a constant for the next transform."""
    x, w = ctx.saved_tensors
    if torch._C._are_functorch_transforms_active():
        x, w = x.detach(), w.detach()
    return gradient(grad_y, x, w, ctx.factor)


def wrong_at_a_quarter(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    """A backward with a hidden special case for one number."""
    return gradient(grad_y, *ctx.saved_tensors, 1.0 if ctx.factor == 0.25 else ctx.factor)


def only_factors_are_made_contiguous(x: Tensor, w: Tensor, factor: float) -> Tensor:
    """Treats factor = 0 as if a separate kernel took x only."""
    return body(x, w, factor) if factor else without_contiguous(x, w, factor)


@dataclass
class OtherDefault(Mix):
    """A separate wrapper of the operator with another default than the schema's."""

    schema: str = "(Tensor x, Tensor w, float factor=0.5) -> Tensor"

    def operator(self) -> Operator:
        op = super().operator()
        call = op.call
        op.call = lambda x, w, factor=1.0: call(x, w, factor)
        return op


def both(x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return reference(x, w, factor), x * w


class BothGradientsOrNone(Mix):
    """Two results, and no gradient if one of them is unused."""

    def operator(self) -> Operator:
        class Function(torch.autograd.Function):
            @staticmethod
            def forward(x, w, factor):  # type: ignore[no-untyped-def]
                return both(x, w, factor)

            @staticmethod
            def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
                save(ctx, inputs, output[0])

            @staticmethod
            def backward(ctx, a, b):  # type: ignore[no-untyped-def]
                if a is None or b is None:
                    return None, None, None
                x, w = ctx.saved_tensors
                grad_x, grad_w = backward_reference(a, x, w, ctx.factor)
                return grad_x + b * w, grad_w + b * x, None

        schema = f"faulty::mix{next(_numbers)}(Tensor x, Tensor w, float factor) -> (Tensor y, Tensor z)"
        return Operator(schema, Function, reference=both, elementwise=True)


def marked_in_the_function_alone() -> Operator:
    """The Function declares that its second result has no gradient, and the reference does not."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(x, w, factor):  # type: ignore[no-untyped-def]
            return both(x, w, factor)

        @staticmethod
        def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
            save(ctx, inputs, output[0])
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx, grad_y, _):  # type: ignore[no-untyped-def]
            return (*backward_reference(grad_y, *ctx.saved_tensors, ctx.factor), None)

    schema = f"faulty::mix{next(_numbers)}(Tensor x, Tensor w, float factor) -> (Tensor y, Tensor z)"
    return Operator(schema, Function, reference=both, elementwise=True)
