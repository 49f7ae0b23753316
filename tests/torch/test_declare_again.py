"""Declaring a name again, and names whose operators are no longer alive."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import cupyops
from cupyops import Kernel, Threads
from cupyops.torch import Operator
from tests import preloaded

TEXT = """
extern "C" __global__ void times(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(2 * acc_t(x[i]));
}
"""


def test_declaring_again_replaces_and_the_old_object_says_so() -> None:
    def declared(factor: float) -> Operator:
        return Operator(
            "declare_test::again(Tensor x) -> Tensor y",
            lambda x: x * factor,
            backward=lambda grad_y: grad_y * factor,
            reference=lambda x: x * factor,
        )

    old = declared(2.0)
    assert old.op(torch.ones(1)).item() == 2.0
    new = declared(3.0)
    x = torch.ones(1, requires_grad=True)
    with cupyops.simulate():
        assert new(x).item() == torch.ops.declare_test.again(x).item() == 3.0
        assert old(x).item() == 2.0
        for op, factor in ((old, 2.0), (new, 3.0)):
            assert torch.autograd.grad(op(x), x)[0].item() == factor, "the gradients of the two are mixed up"
    assert torch.compile(lambda x: new(x), fullgraph=True, backend="aot_eager")(x).item() == 3.0
    with pytest.raises(RuntimeError, match="declare_test::again has been declared again since"), FakeTensorMode():
        old(torch.ones(1))
    del old
    gc.collect()
    assert new.op(torch.ones(1)).item() == 3.0, "the old one's end has taken the name with it"


def test_a_declaration_that_fails_leaves_the_one_of_before() -> None:
    old = Operator("declare_test::kept(Tensor x) -> Tensor y", lambda x: x * 2, reference=lambda x: x * 2)
    with pytest.raises(ValueError, match="asks for `grad_z`"):
        Operator("declare_test::kept(Tensor x) -> Tensor y", lambda x: x * 3, backward=lambda grad_z: grad_z)
    assert old.op(torch.ones(1)).item() == 2.0


@pytest.mark.simulator
def test_two_texts_of_one_name_never_mix() -> None:
    results = []
    for word in ("2 *", "5 *"):
        kernel = Kernel(TEXT.replace("2 *", word), "times", Threads("n"))

        def body(x: Tensor, kernel: Kernel = kernel) -> Tensor:
            y = torch.empty_like(x)
            kernel(x, y, x.numel())
            return y

        results.append(Operator("declare_test::same(Tensor x) -> Tensor y", body))
    assert [op(torch.ones(1)).item() for op in results] == [2.0, 5.0]
    assert torch.ops.declare_test.same(torch.ones(1)).item() == 5.0


def test_a_backward_of_other_arguments_has_another_name() -> None:
    """Compilers keep graphs on disk under operators' names: one of before must not be run with other arguments."""

    def declared(backward: object) -> str:
        op = Operator("declare_test::hashed(Tensor x) -> Tensor y", lambda x: x.exp(), backward=backward)
        assert op.backward is not None
        return op.backward.qualified_name

    by_input, by_result = declared(lambda grad_y, x: grad_y * x.exp()), declared(lambda grad_y, y: grad_y * y)
    assert by_input != by_result
    assert by_input == declared(lambda grad_y, x: x.exp() * grad_y)


# What PyTorch keeps of a name

# Overloads and compiled programs of operators that have died, or whose names were declared again. The names are declared
# again in another order, after others, so that no entry that the dispatcher freed is at its former address.
OVERLOADS_OF_EARLIER_OPERATORS = """
import gc, sys
import torch
from cupyops.torch import Operator

def declared(name, factor):
    def body(x):
        return x * factor
    return Operator(f"declare_again::{name}(Tensor x) -> Tensor y", body, backward=lambda grad_y: grad_y, reference=body)

def program(overload):
    return torch.compile(lambda x: overload(x), backend="aot_eager")

names = [f"n{i}" for i in range(6)]
earlier = [declared(name, 2.0) for name in names]
overloads = [operator.op for operator in earlier]
compiled = [program(overload) for overload in overloads]
x = torch.ones(3)
assert all(call(x).tolist() == [2.0] * 3 for call in overloads + compiled)
if sys.argv[1] == "dead":
    earlier = None
    torch.compiler.reset()
    gc.collect()
    for overload in overloads:
        try:
            overload(x)
        except RuntimeError as error:
            assert "is not declared any more: its Operator has been garbage collected" in str(error), error
        else:
            raise AssertionError("an operator without a definition ran")
else:
    for operator in earlier:
        operator._withdraw()
others = [declared(f"other{i}", 5.0) for i in range(9)]
newest = [declared(name, 10.0 + i) for i, name in reversed(list(enumerate(names)))]
for calls in overloads, compiled, [getattr(torch.ops.declare_again, name) for name in names]:
    assert [call(x)[0].item() for call in calls] == [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ["dead", "declared again"])
def test_overloads_of_earlier_operators_call_the_newest(end: str) -> None:
    """Runs in another process: PyTorch would read freed memory."""
    done = preloaded.run(["-c", OVERLOADS_OF_EARLIER_OPERATORS, end], cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_operator_that_dies_takes_its_overload_out_of_torch_ops() -> None:
    """The next operator of the name has an overload of its own, with its own schema."""
    for results, body in (("Tensor y", lambda x: x * 2), ("(Tensor y, Tensor z)", lambda x: (x * 2, x * 3))):
        op = Operator(f"declare_again::dies(Tensor x) -> {results}", body, backward=lambda grad_y: grad_y * 2)
        assert str(op.op._schema) == f"declare_again::dies(Tensor x) -> {results}"
        assert op.op is torch.ops.declare_again.dies.default
        assert len(list(op.op(torch.ones(1)))) == (1 if results == "Tensor y" else 2)
        del op
        gc.collect()
        assert not hasattr(torch.ops.declare_again, "dies")


def test_the_end_of_the_earlier_operator_leaves_the_newest_in_torch_ops() -> None:
    def declared(flops: int) -> Operator:
        return Operator("declare_again::stays(Tensor x) -> Tensor y", lambda x: x * 2, flops=lambda x: flops)

    old = declared(3)
    new = declared(4)
    del old
    gc.collect()
    assert torch.ops.declare_again.stays.default is new.op
    assert new.op._defined_in_python
    assert "declare_again::stays" in torch.library._defs
    with FlopCounterMode(display=False) as counter:
        new(torch.ones(1))
    assert counter.get_total_flops() == 4


@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")
def test_an_operator_may_end_during_an_export() -> None:
    """torch.export keeps all composite operators in a dictionary while it decomposes a program."""

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    held = [Operator("tests::ends_in_an_export(Tensor x) -> Tensor y", torch.sin, reference=torch.sin)]
    x = torch.randn(3)
    program = torch.export.export(Module(), (x,))

    def add(x: Any, y: Any) -> Any:
        held.clear()
        gc.collect()
        return torch.ops.aten.sub(x, -y)

    decomposed = program.run_decompositions({torch.ops.aten.add.Tensor: add})
    assert not held
    torch.testing.assert_close(decomposed.module()(x), x + 1)
