"""Operators on DTensors, jagged tensors, under FLOP counters and symbolic tracing, by what they declare."""

import dataclasses
import re
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autograd_bridge as ab
from cupyops import simulate
from cupyops.torch import Operator, check_op, elementwise, row_reduce
from cupyops.torch.check.scale import _end_forward_mode
from cupyops.torch.core.gradients import Schema
from cupyops.torch.core.operator import _DECLARED
from cupyops.torch.core.tensors import NoStorageError
from cupyops.torch.ops.layer_norm import _layer_norm
from cupyops.torch.scale.sharding import CHOICES, of_gradient
from tests import preloaded

pytestmark = pytest.mark.filterwarnings("ignore")
_numbers = count()


def placed(x: Tensor, mesh: Any, placement: Any) -> Any:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, mesh, [placement], src_data_rank=None)


def whole(x: Any) -> Tensor:
    """The tensor that every rank has in the end."""
    local = x.full_tensor() if hasattr(x, "full_tensor") else x
    return local.reconcile() if hasattr(local, "reconcile") else local


# Rules


def shapes(*sizes: tuple[int, ...] | None) -> list[Any]:
    return [None if s is None else torch.empty(s, device="meta") for s in sizes]


def test_a_broadcast_input_is_whole_where_it_has_one_element() -> None:
    rule = CHOICES["elementwise"](3, 1)
    assert list(rule(*shapes((4, 1, 5), (3, 5), (5,)), 2.0)) == [
        ((0,), [0, None, None]),
        ((1,), [None, 0, None]),
        ((2,), [2, 1, 0]),
    ]
    assert list(rule(*shapes((), (), None))) == []


def test_rows_take_a_square_for_neither_rows_nor_columns() -> None:
    rule = CHOICES["rows"](3, 2)
    assert list(rule(*shapes((4, 3, 5), (5,), (4, 3)))) == [((0, 0), [0, None, 0]), ((1, 1), [1, None, 1])]
    assert list(rule(*shapes((5, 5), (5,), None))) == []


def test_the_rule_of_a_gradient_is_the_transposed_rule() -> None:
    def product(x: Any, weight: Any, bias: Any) -> Any:
        return [((0,), (0, None, None)), ((1,), (None, 0, 0)), (("sum",), (1, 1, "sum"))]

    schema = Schema.parse("t::linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor y")
    rule = of_gradient(product, schema, ["grad_y", "x", "weight", "want_x"], ["x", "weight", "bias"])
    given = shapes((4, 3), (4, 5), (3, 5))
    assert list(rule(*given, True)) == [
        ([0, "sum", "sum"], [0, 0, None]),
        (["sum", 0, 0], [1, None, 0]),
        ([1, 1, None], [None, 1, 1]),
    ]
    assert next(iter(rule(*given, False)))[0] == [None, "sum", "sum"], "a gradient that is not wanted is no piece"


def test_a_gradient_that_reads_a_partial_result_has_no_split_of_that() -> None:
    def product(x: Any) -> Any:
        return [(("sum",), (0,)), ((0,), (1,))]

    schema = Schema.parse("t::squared(Tensor x) -> Tensor y")
    rule = of_gradient(product, schema, ["grad_y", "y"], ["x"])
    assert list(rule(*shapes((4,), (4,)))) == [([1], [0, 0])]
    reads = of_gradient(lambda x: [((0,), (x.ndim - 1,))], schema, ["grad_y", "y"], ["x"])
    assert list(reads(*shapes((4,), (4,)))) == [], "the rule reads x, which the backward does not take"


def test_every_shipped_operator_that_writes_to_no_argument_has_a_rule() -> None:
    shipped = [op for name, op in _DECLARED.items() if name.startswith("cupyops::") and not op._mutated]
    assert len(shipped) > 30
    # linear_cross_entropy computes the sum of the losses on plain tensors alone; of other tensors, it computes the loss of each row.
    of_sum = {
        name for name in (op.name for op in shipped) if re.fullmatch("linear_cross_entropy(_backward_[0-9a-f]+)?", name)
    }
    assert {op.name for op in shipped if op._scale.rule is None} == of_sum


def test_a_rule_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="`sharding` must be 'elementwise', 'rows' or a rule, got 'columns'"):
        Operator("t::none(Tensor x) -> Tensor", torch.sin, sharding="columns")
    with pytest.raises(ValueError, match="`sharding` must be None for an operator that writes to its arguments"):
        Operator("t::writes(Tensor(a!) x) -> ()", torch.sin_, sharding="rows")


# DTensor


def test_an_import_of_cupyops_does_not_import_dtensor() -> None:
    code = "import sys, cupyops.torch, autograd_bridge; sys.exit('torch.distributed.tensor' in sys.modules)"
    assert preloaded.run(["-c", code]).returncode == 0


def test_a_strategy_is_cached_for_its_normalized_shape_alone(mesh: Any) -> None:
    """DTensor's cache ignores arguments that are not tensors, unless the operator says that they count."""
    from torch.distributed.tensor import Replicate, Shard

    x = torch.randn(4, 8, 8)
    given = placed(x, mesh, Shard(1))
    first = _layer_norm(given, None, None, (8,), 1e-5)[0]
    second = _layer_norm(given, None, None, (8, 8), 1e-5)[0]
    assert (first.placements, second.placements) == ((Shard(1),), (Replicate(),))
    torch.testing.assert_close(whole(second), F.layer_norm(x, (8, 8)))


def test_a_name_that_is_declared_again_has_its_new_rule(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    def sine(sharding: str) -> Operator:
        return Operator("t::sine_again(Tensor x) -> Tensor", torch.sin, reference=torch.sin, sharding=sharding)

    x = placed(torch.randn(4, 8), mesh, Shard(1))
    kept = [sine("elementwise")(x).placements, sine("rows")(x).placements]
    assert kept == [(Shard(1),), (Replicate(),)]


def test_programs_and_functions_have_rules_without_a_word(mesh: Any) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode

    number = next(_numbers)
    softclip = row_reduce(
        "s = sum(abs(x)); y = x / s * weight",
        backward="""
            s = sum(abs(x))
            d = sum(grad_y * weight * x) / s
            grad_x = (grad_y * weight - (x > 0 ? d : -d)) / s
            grad_weight = column_sum(grad_y * x / s)
        """,
        name=f"t::softclip{number}",
        columns=["weight"],
        reference=lambda x, weight: x / x.abs().sum(-1, keepdim=True) * weight,
    )
    swish = elementwise(
        "y = x * weight", backward="grad_x = grad_y * weight; grad_weight = grad_y * x", name=f"t::scaled{number}",
        reference=lambda x, weight: x * weight,
    )  # fmt: skip

    def double(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight * 2

    def double_backward(grad_y: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return grad_y * weight * 2, (grad_y * x * 2).sum(0)

    doubled = Operator(
        f"t::doubled{number}(Tensor x, Tensor weight) -> Tensor y", double, backward=double_backward,
        reference=double, sharding="rows",
    )  # fmt: skip
    x, weight = torch.randn(10, 8), torch.rand(8)
    for op in (softclip, swish, doubled):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        right = op.reference(*leaves)  # type: ignore[misc]
        grads = torch.autograd.grad(right.square().sum(), leaves)
        shards = [placed(x, mesh, Shard(0)).requires_grad_(), placed(weight, mesh, Replicate()).requires_grad_()]
        with CommDebugMode() as counted:
            y = op(*shards)
            found = torch.autograd.grad(y, shards, 2 * y)
        assert counted.get_total_counts() == 0, op
        assert [t.placements for t in (y, *found)] == [(Shard(0),), (Shard(0),), (Partial(),)]
        for got, wanted in zip((y, *found), (right, *grads), strict=True):
            torch.testing.assert_close(whole(got.detach()), wanted.detach())


def test_a_kernel_that_is_launched_on_a_dtensor_is_an_error(mesh: Any) -> None:
    """A DTensor has no memory of its own: its address is 0."""
    from torch.distributed.tensor import Shard

    from tests.torch.faulty_ops import FORWARD

    x = placed(torch.randn(8, 4), mesh, Shard(0))
    with (
        simulate(),
        pytest.raises(NoStorageError, match="a DTensor has none: call the kernel in the body of an Operator"),
    ):
        FORWARD(x, x, x, 0.5, x.numel())


def test_second_derivatives_follow(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    x, weight = torch.randn(8, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)

    def second(x: Any, weight: Any) -> Any:
        y = ab.gelu(ab.layer_norm(x, 6, weight))
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (x, weight))

    right = second(x.requires_grad_(), weight.requires_grad_())
    x, weight = x.detach(), weight.detach()
    found = second(placed(x, mesh, Shard(0)).requires_grad_(), placed(weight, mesh, Replicate()).requires_grad_())
    for got, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(whole(got), wanted)


class Block(nn.Module):
    """A transformer's feed-forward block, of one of the two sets of modules."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.act, self.down = of.LayerNorm(8), of.Linear(8, 16), of.GELU(), of.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(self.norm(x))))


def trained(of: Any, mesh: Any) -> tuple[int, list[Tensor]]:
    """The collectives of a step, and what it computes."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    block = Block(of)
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(block, mesh, plan)
    x = placed(torch.linspace(-1, 1, 2 * 8 * 8).view(2, 8, 8).sin(), mesh, Shard(1)).requires_grad_()
    with CommDebugMode() as counted:
        y = block(x)
        y.square().sum().backward()
    found = [y.detach(), x.grad, *(p.grad for p in block.parameters())]
    return counted.get_total_counts(), [whole(t) for t in found]


def test_tensor_and_sequence_parallel_modules_compute_and_communicate_as_those_of_nn(mesh: Any) -> None:
    ours, theirs = trained(ab, mesh), trained(nn, mesh)
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)


# Jagged tensors


JAGGED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gelu": (ab.gelu, F.gelu),
    "layer_norm": (lambda x: ab.layer_norm(x, 4), lambda x: F.layer_norm(x, (4,))),
    "rms_norm": (lambda x: ab.rms_norm(x, 4), lambda x: F.rms_norm(x, (4,))),
    "linear": (lambda x: ab.linear(x, torch.eye(4)), lambda x: x),
    "two": (lambda x: ab.add2(x, x * 2, alpha=3.0), lambda x: x * 7),
}


@pytest.mark.parametrize("name", JAGGED)
def test_a_jagged_tensor_is_computed_sequence_by_sequence(name: str) -> None:
    ours, theirs = JAGGED[name]
    sequences = [torch.randn(n, 4) for n in (3, 1, 5)]
    x = torch.nested.nested_tensor(sequences, layout=torch.jagged, requires_grad=True)
    y = ours(x)
    y.values().square().sum().backward()
    for n, (got, grad, one) in enumerate(zip(y.unbind(), x.grad.unbind(), sequences, strict=True)):
        leaf = one.requires_grad_()
        right = theirs(leaf)
        right.square().sum().backward()
        torch.testing.assert_close(got, right, msg=lambda m, n=n: f"sequence {n}: {m}")
        torch.testing.assert_close(grad, leaf.grad)


def test_a_gradient_of_jagged_tensors_is_compiled() -> None:
    """The gradient was refused: while a graph is traced, jagged tensors of the same sequences have fake offsets of their own."""
    weight = torch.randn(8, 4)

    def ours(x: Tensor) -> Tensor:
        y: Tensor = ab.gelu(ab.layer_norm(ab.linear_gelu(x, weight), 8)) * 2
        return y

    def theirs(x: Tensor) -> Tensor:
        return F.gelu(F.layer_norm(F.gelu(F.linear(x, weight)), (8,))) * 2

    sequences, found = [torch.randn(n, 4) for n in (3, 0, 5)], []
    for f in (torch.compile(ours, backend="aot_eager"), theirs):
        x = torch.nested.nested_tensor(sequences, layout=torch.jagged, requires_grad=True)
        y = f(x)
        y.values().square().sum().backward()
        found.append((y.values().detach(), x.grad.values()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_jagged_tensors_with_holes_do_not_fit_if_they_begin_elsewhere() -> None:
    rows, lengths = torch.randn(9, 4), torch.tensor([2, 3])
    x, other = (
        torch.nested.nested_tensor_from_jagged(rows, torch.tensor(offsets), lengths)
        for offsets in ([0, 5, 9], [1, 4, 9])
    )
    torch.testing.assert_close(list(ab.add2(x, x, alpha=2.0).unbind()), [3 * rows[:2], 3 * rows[5:8]])
    with pytest.raises(RuntimeError, match="add2: jagged tensors must share their offsets"):
        ab.add2(x, other)


def test_jagged_tensors_that_do_not_fit_are_refused() -> None:
    x, other = (torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(n, 4)], layout=torch.jagged) for n in (3, 3))
    with pytest.raises(RuntimeError, match="add2: jagged tensors must share their offsets"):
        ab.add2(x, other)
    with pytest.raises(RuntimeError, match=r"add2: jagged tensors of shapes \(2, j\d+, 4\), \(2, 1, 4\)"):
        ab.add2(x, torch.randn(2, 1, 4))


# FLOPs and symbolic tracing


def test_a_weight_whose_specification_has_another_dtype_is_taken_as_it_is(mesh: Any) -> None:
    """FSDP of PyTorch 2.11 left the dtype of a parameter of tensor parallelism in float32, and cast its pieces."""
    from torch.distributed.tensor import Replicate, Shard

    x, weight, bias = torch.randn(3, 8).bfloat16(), torch.randn(4, 8).bfloat16(), torch.randn(4).bfloat16()
    stale = [placed(t, mesh, Shard(0)) for t in (weight, bias)]
    for t in stale:
        t._spec = dataclasses.replace(t._spec, tensor_meta=t._spec.tensor_meta._replace(dtype=torch.float32))
    found = whole(ab.linear_gelu(placed(x, mesh, Replicate()), *stale))
    torch.testing.assert_close(found, ab.linear_gelu(x, weight, bias))


def test_modules_count_the_flops_of_those_of_nn() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    for of in (ab, nn):
        with FlopCounterMode(display=False) as counter:
            Block(of)(torch.randn(2, 8, 8)).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_check_op_knows_that_the_gradient_of_a_reference_computes_the_reference_again() -> None:
    options: Any = {"reference": torch.matmul, "flops": lambda x, w: 2 * x[0] * x[1] * w[1]}
    op = Operator("scale_test::product(Tensor x, Tensor w) -> Tensor y", torch.matmul, **options)
    args = torch.randn(4, 6, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    check_op(op, args, checks=("flops",), dtypes=(torch.float32,))


def test_check_op_draws_the_gradient_of_one_of_several_results_once_for_all_ranks() -> None:
    """Each rank drew its own, so that a correct operator failed where a gradient is a rounded sum over ranks."""

    def both(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return x * weight, x + weight

    def rows(x: Any, weight: Any) -> Any:
        return [((0, 0), (0, None))]

    op = Operator("scale::both(Tensor x, Tensor weight) -> (Tensor y, Tensor z)", both, reference=both, sharding=rows)
    args = torch.randn(13, 11, dtype=torch.float64), torch.randn(11, dtype=torch.float64)
    check_op(op, args, checks="sharding", dtypes=(torch.float64,), backends=["reference"])


def test_kernels_count_the_flops_of_the_reference() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with simulate(), FlopCounterMode(display=False) as counter:
        ab.linear_gelu(torch.randn(3, 4), torch.randn(5, 4))
    assert counter.get_total_flops() == 2 * 3 * 4 * 5


class Traced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.add, self.linear, self.gelu = ab.LayerNorm(8), ab.AddLayerNorm(8), ab.Linear(8, 8), ab.GELU()
        self.both, self.rms = ab.LinearGELU(8, 8), ab.RMSNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y, s = self.add(self.norm(x), x)
        return self.rms(ab.add2(self.both(self.gelu(self.linear(y)) + s), x, alpha=2))


def test_modules_are_traced_symbolically() -> None:
    module, x = Traced(), torch.randn(3, 8)
    traced = torch.fx.symbolic_trace(module)
    torch.testing.assert_close(traced(x), module(x))
    called = {str(n.target) for n in traced.graph.nodes if n.op == "call_function"}
    assert {"cupyops.gelu.default", "cupyops.linear.default", "cupyops.layer_norm.default"} <= called
    grads = [torch.autograd.grad(m(x).square().sum(), list(module.parameters())) for m in (traced, module)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("module", [ab.LayerNorm(8), ab.AddLayerNorm(8)], ids=["LayerNorm", "AddLayerNorm"])
def test_a_norm_is_traced_alone_with_its_dtype(module: nn.Module, dtype: torch.dtype | None) -> None:
    """The trace of a module by itself was refused: the optional dtype is a proxy, too."""
    inputs = torch.randn(1 + isinstance(module, ab.AddLayerNorm), 3, 8).unbind()
    traced = torch.fx.symbolic_trace(module)
    torch.testing.assert_close(traced(*inputs, dtype=dtype), module(*inputs, dtype=dtype))


def test_jvp_in_a_compiled_program_is_right_and_through_torch_ops_an_error() -> None:
    def ours(x: Tensor, t: Tensor) -> Any:
        return torch.func.jvp(ab.gelu, (x,), (t,))[1]

    def through_ops(x: Tensor, t: Tensor) -> Any:
        return torch.func.jvp(lambda x: torch.ops.cupyops.gelu(x, "none"), (x,), (t,))[1]

    x, t = torch.randn(2, 5)
    torch.testing.assert_close(torch.compile(ours, backend="aot_eager")(x, t), torch.func.jvp(F.gelu, (x,), (t,))[1])
    try:
        with pytest.raises(Exception) as raised:
            torch.compile(through_ops, backend="aot_eager", fullgraph=True)(x, t)
    finally:
        _end_forward_mode()
    # PyTorch 2.11 raises an assertion of its own while it handles the error.
    chain, error = [], raised.value
    while error is not None:
        chain, error = [*chain, str(error)], error.__cause__ or error.__context__
    assert any("torch.ops has no forward-mode derivative of gelu: call the operator itself" in words for words in chain)
    torch.testing.assert_close(ours(x, t), torch.func.jvp(F.gelu, (x,), (t,))[1])
