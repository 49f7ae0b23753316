"""Results that a compiled graph writes over an argument, by ``inplace=``: where it does, where it must not, and the values."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autograd_bridge as bridge
import cupyops
from cupyops.torch import Operator, elementwise
from cupyops.torch.ops.linear_gelu import _gelu_bias_backward

from .test_compiled import CUDA, code_of, codes_of, lines_of

Values = tuple[Tensor, Tensor]


def scaled(x: Tensor, factor: float) -> Values:
    y = x * factor
    return y, y.sum(-1)


def scaled_in_place(x: Tensor, factor: float) -> Tensor:
    x.mul_(factor)
    return x.sum(-1)


SCALED = Operator(
    "tests::overscaled(Tensor x, float factor=2.0) -> (Tensor y, Tensor total)",
    scaled,
    reference=scaled,
    inplace=scaled_in_place,
)


def slope(grad_y: Tensor, x: Tensor) -> Tensor:
    return 2 * grad_y * x


def slope_in_place(grad_y: Tensor, x: Tensor) -> None:
    grad_y.mul_(2 * x)


SLOPE = Operator(
    "tests::overslope(Tensor grad_y, Tensor x) -> Tensor grad_x", slope, reference=slope, inplace=slope_in_place
)
SINE = Operator("tests::oversine(Tensor x) -> Tensor", torch.sin, reference=torch.sin, inplace=torch.sin_)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


CUBED = elementwise("y = x * x * x + z", backward="grad_x = grad_y * 3 * x * x", name="tests::overcubed")


def test_an_elementwise_program_writes_over_its_first_input() -> None:
    x, z, w = torch.randn(4, 8), torch.randn(8), torch.randn(8, 8)
    graph = torch.compile(lambda x, z: bridge.gelu(CUBED(x @ w, z) @ w))
    _, (code,) = codes_of(lambda: graph(x, z))
    calls = [line.split("'")[1] for line in lines_of(code, "= cupyops_direct(")]
    assert calls == ["tests::overcubed_", "cupyops::gelu_"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_programs_in_place_have_the_bits_of_those_that_allocate(dtype: torch.dtype) -> None:
    with cupyops.simulate():
        for shape, other in (((3, 40), (3, 40)), ((3, 40), (40,)), ((70,), (1,)), ((0, 4), (4,))):
            x, z = torch.randn(shape, dtype=dtype), torch.randn(other, dtype=dtype)
            wanted, found = CUBED(x, z), x.clone()
            assert CUBED.inplace is not None
            assert CUBED.inplace(found, z) is None
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("simulated", [False, True])
def test_an_argument_that_cannot_hold_the_result_is_refused_and_kept(simulated: bool) -> None:
    with cupyops.simulate() if simulated else nullcontext():
        for x, z in (
            (torch.ones(4), torch.ones(3, 4)),
            (torch.ones(3, 4, dtype=torch.float16), torch.ones(3, 4)),
            (torch.ones(1), torch.ones(0)),
        ):
            shape, dtype = str(tuple(torch.broadcast_shapes(x.shape, z.shape))), "float32"
            words = f"overcubed_: `x` must have the shape and dtype of the result, {shape} {dtype}, got"
            assert CUBED.inplace is not None
            with pytest.raises(ValueError, match=re.escape(words)):
                CUBED.inplace(x, z)
            assert x.eq(1).all()


@pytest.mark.parametrize(
    "operands",
    [
        lambda m: (m.view(8, 8), m.t()),
        lambda m: (m.view(8, 8), m[0]),
        lambda m: (m.view(64), m[0, :1]),  # each view has one reader
        lambda m: (m.view(64), m[1:2].view(8)[:1]),
    ],
)
def test_an_argument_beside_a_view_of_its_memory_is_not_written_over(operands: Callable[[Tensor], Any]) -> None:
    def run(x: Tensor) -> Tensor:
        y: Tensor = CUBED(*operands(x @ w))
        return y

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    found, (code,) = codes_of(lambda: torch.compile(run)(x))
    assert [line.split("'")[1] for line in lines_of(code, "= cupyops_direct(")] == ["tests::overcubed"]
    torch.testing.assert_close(found, run(x))


def chain(x: Tensor, w: Tensor) -> Any:
    y, total = SCALED(x @ w, 3.0)
    return y @ w, total


def one_result(x: Tensor, w: Tensor) -> Any:
    return SINE(x @ w).exp() @ w


def at_a_default(x: Tensor, w: Tensor) -> Any:
    return SCALED(x @ w)[0] @ w


def twice(x: Tensor, w: Tensor) -> Any:
    return SINE(SCALED(x @ w, 3.0)[0]) @ w


def a_view(x: Tensor, w: Tensor) -> Any:
    y, total = SCALED((x @ w).view(2, 2, 4), 3.0)
    return y.view(4, 4) @ w, total


def pointwise(x: Tensor, w: Tensor) -> Any:
    return SCALED((x + w).exp(), 3.0)[0] @ w


@pytest.mark.sample(3)
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("function", [chain, one_result, at_a_default, twice, a_view, pointwise])
def test_a_tensor_that_nothing_else_reads_is_written_over(function: Callable[..., Any], device: str) -> None:
    x, w = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    before, right = (x.clone(), w.clone()), function(x, w)
    compiled = torch.compile(function, fullgraph=True)
    found, (code,) = codes_of(lambda: compiled(x, w))
    assert lines_of(code, "_', '" + x.device.type)
    for _ in range(3):
        torch.testing.assert_close(found, right)
        found = compiled(x, w)
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])


def read_later(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    return SCALED(h, 3.0)[0] @ w + h


def read_by_a_fused_operation(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    z = h.cos()  # not computed before its reader is
    return SCALED(h, 3.0)[0] @ w, z + 1, h.sum()


def returned(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    return SCALED(h, 3.0)[0] @ w, h


def a_view_is_returned(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    return SCALED(h, 3.0)[0] @ w, h[1:3].t()


def a_view_is_read_later(x: Tensor, w: Tensor) -> Any:
    h = (x @ w).view(2, 8)
    return SCALED(h.view(4, 4), 3.0)[0] @ w, h.sum(0)


def another_part_is_read_later(x: Tensor, w: Tensor) -> Any:
    h = (x @ w).view(2, 2, 4)
    return SCALED(h[0], 3.0)[0] @ w, h[1] @ w


def an_input(x: Tensor, w: Tensor) -> Any:
    return SCALED(x, 3.0)[0] @ w


def a_view_of_an_input(x: Tensor, w: Tensor) -> Any:
    return SCALED(x.view(2, 8), 3.0)[0].view(4, 4) @ w


def strided(x: Tensor, w: Tensor) -> Any:
    return SCALED((x @ w).t(), 3.0)[0] @ w


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "function",
    [
        *(read_later, returned, a_view_is_returned, a_view_is_read_later, another_part_is_read_later),
        *(an_input, a_view_of_an_input, strided),
    ],
)
def test_a_tensor_that_is_needed_later_stays(function: Callable[..., Any]) -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    before, right = x.clone(), function(x, w)
    found, (code,) = codes_of(lambda: torch.compile(function, fullgraph=True)(x, w))
    assert lines_of(code, "'tests::overscaled'")
    assert not lines_of(code, "'tests::overscaled_'")
    torch.testing.assert_close(found, right)
    assert torch.equal(x, before)


def test_a_reader_before_the_call_reads_what_was_there() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    right = read_by_a_fused_operation(x, w)
    torch.testing.assert_close(torch.compile(read_by_a_fused_operation, fullgraph=True)(x, w), right)

    def before(x: Tensor, w: Tensor) -> Any:
        h = x @ w
        z = h.cos() + h.sum()
        return z, SCALED(h, 3.0)[0] @ w

    torch.testing.assert_close(torch.compile(before, fullgraph=True)(x, w), before(x, w))


def test_an_argument_that_is_given_twice_stays() -> None:
    def body(x: Tensor, z: Tensor) -> Tensor:
        return x + 2 * z.flip(0)

    def over(x: Tensor, z: Tensor) -> None:
        x.add_(2 * z.flip(0))

    op = Operator("tests::overadd(Tensor x, Tensor z) -> Tensor", body, reference=body, inplace=over)

    def run(x: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        return op(h, h) + 1

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    found, (code,) = codes_of(lambda: torch.compile(run, fullgraph=True)(x, w))
    assert not lines_of(code, "'tests::overadd_'")
    torch.testing.assert_close(found, run(x, w))


@pytest.mark.parametrize("body", [lambda x: x.double(), lambda x: x[:1] + 1], ids=["dtype", "shape"])
def test_a_result_that_does_not_fit_has_memory_of_its_own(body: Callable[[Tensor], Tensor]) -> None:
    op = Operator("tests::overfit(Tensor x) -> Tensor", body, reference=body, inplace=torch.sin_)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    code = code_of(lambda: torch.compile(lambda x, w: op(x @ w) + 1, fullgraph=True)(x, w))
    assert lines_of(code, "'tests::overfit'")


def test_a_result_keeps_no_memory_of_the_argument() -> None:
    def run(x: Tensor, w: Tensor) -> Any:
        y, total = SCALED(x @ w, 3.0)
        z = y @ w
        return z @ w, total

    code = code_of(lambda: torch.compile(run, fullgraph=True)(torch.randn(4, 4), torch.randn(4, 4)))
    (call,) = [line for line in lines_of(code, "cupyops_buf") if "= cupyops_buf" in line]
    buffer = call.partition("(")[2].partition(",")[0]
    lines = [line.strip() for line in code.splitlines()]
    last = max(i for i, line in enumerate(lines) if line.startswith("extern_kernels.mm"))
    assert f"del {buffer}" in lines[:last] or f"= {buffer}; del {buffer}" in "\n".join(lines[:last])


def test_symbolic_sizes() -> None:
    compiled = torch.compile(chain, fullgraph=True, dynamic=True)
    w = torch.randn(4, 4)
    for rows in (4, 5, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, w), chain(x, w))


def hold_gradients(
    operator: str, step: Callable[[Callable[..., Tensor]], list[Tensor]], model: Callable[..., Tensor]
) -> None:
    """The backward of the compiled model calls an operator in place, and ``step`` gives the gradients of the model in eager mode."""
    compiled = torch.compile(model, fullgraph=True)
    found, codes = codes_of(lambda: step(compiled))
    assert lines_of(codes[-1], f"{operator}'")
    for _ in range(3):
        torch.testing.assert_close(found, step(model))
        found = step(compiled)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_gradient_is_written_over_the_gradient_that_it_follows_from(device: str) -> None:
    op = Operator("tests::oversquare(Tensor x) -> Tensor y", torch.square, backward=SLOPE, reference=torch.square)
    w = torch.randn(16, 16, device=device, dtype=torch.float64, requires_grad=True)
    x = torch.randn(8, 16, device=device, dtype=torch.float64, requires_grad=True)

    def step(run: Callable[..., Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(run(x, w).sum(), [x, w]))

    def model(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = op(x @ w) @ w
        return y.sin()

    hold_gradients("tests::overslope_", step, model)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(bridge.linear_gelu(x, self.first.weight, self.first.bias))
        return y


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_gradient_of_linear_gelu_is_written_over_the_gradient_that_it_follows_from(device: str) -> None:
    model, x = Layers().to(device), torch.randn(8, 40, 16, device=device, requires_grad=True)

    def step(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        y = run(x).square().sum()
        return list(torch.autograd.grad(y, [x, *model.parameters()]))

    hold_gradients("gelu_bias_backward_", step, model)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(4096, 1024), (3, 50, 257), (64, 4096), (1, 8), (0, 8)], ids=str)
@pytest.mark.gpu
def test_the_kernel_in_place_gives_the_bits_of_the_other(
    shape: tuple[int, ...], dtype: torch.dtype, approximate: str
) -> None:
    hold_bits("cuda", shape, dtype, approximate, calls=40)  # the later calls repeat the steps of an earlier one


@pytest.mark.sample(2)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", [(40, 24), (3, 5, 33), (1, 8), (0, 8)], ids=str)
@pytest.mark.simulator
def test_the_simulated_kernel_in_place_gives_the_bits_of_the_other(shape: tuple[int, ...], approximate: str) -> None:
    with cupyops.simulate(sanitize=True):
        hold_bits("cpu", shape, torch.float32, approximate, calls=2)


def hold_bits(device: str, shape: tuple[int, ...], dtype: torch.dtype, approximate: str, calls: int) -> None:
    """The gradient in place has the bits of the gradient that is allocated, and leaves z as it is."""
    grad, z = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    kept = z.clone()
    assert _gelu_bias_backward.inplace is not None
    grad_z, grad_bias = _gelu_bias_backward(grad, z, approximate)
    for _ in range(calls):
        over = grad.clone()
        assert torch.equal(_gelu_bias_backward.inplace(over, z, approximate), grad_bias)
        assert torch.equal(over, grad_z)
        assert torch.equal(z, kept)


# The operator in place


def test_the_operator_in_place_is_called_like_any_other() -> None:
    op = SCALED.inplace
    assert op is not None
    assert str(op.op._schema) == "tests::overscaled_(Tensor(a!) x, float factor=2.) -> Tensor total"
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2]):
        (right, total), version = scaled(x, 3.0), x._version
        torch.testing.assert_close(op(x, 3.0), total)
        torch.testing.assert_close(x, right)
        assert x._version > version
    x = torch.ones(2)
    assert SINE.inplace is not None
    assert SINE.inplace(x) is None
    assert torch.equal(x, torch.ones(2).sin())
    with pytest.raises(RuntimeError, match="overscaled_ writes to `x`, and one of its tensors requires grad"):
        op(torch.ones(3, requires_grad=True), 3.0)


@pytest.mark.parametrize(
    "schema",
    [
        *("(Tensor? x) -> Tensor", "(Tensor(a!) x) -> Tensor", "(Tensor x) -> ()"),
        "(Tensor x) -> (Tensor y, Tensor? z)",
    ],
)
def test_what_has_no_first_result_or_argument_to_write_over_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="overwrong: `inplace` must be declared for an operator that writes to no arg"):
        Operator(f"tests::overwrong{schema}", torch.sin, inplace=torch.sin_)


@pytest.mark.parametrize("body", [0, "sin_"])
def test_a_body_in_place_is_a_function(body: Any) -> None:
    with pytest.raises(ValueError, match="overwrong: `inplace` must be a function of the operator's arguments, got"):
        Operator("tests::overwrong(Tensor x) -> Tensor", torch.sin, inplace=body)


def test_a_node_that_writes_may_have_no_value_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 has such nodes."""
    from torch._inductor.graph import GraphLowering

    def fill(x: Tensor, value: float) -> None:
        x.fill_(value)

    filling = Operator("tests::valueless(Tensor(a!) x, float value) -> ()", fill)
    lower, met = GraphLowering.call_function, []

    def without(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        if target is filling.op:
            met.append(self.current_node.meta.pop("val", None))
        return lower(self, target, args, kwargs)

    def run(x: Tensor) -> Tensor:
        filling(x, 3.0)
        return x + 1

    monkeypatch.setattr(GraphLowering, "call_function", without)
    code = code_of(lambda: torch.compile(run, fullgraph=True)(torch.zeros(6)))
    assert lines_of(code, "'tests::valueless'")
    assert met
