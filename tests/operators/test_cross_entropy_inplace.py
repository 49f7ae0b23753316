"""cross_entropy with inplace_backward: the gradient in the logits' memory, and what autograd and the function refuse then."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cupyops
from autograd_bridge import CrossEntropyLoss, cross_entropy
from cupyops.torch import check_op
from cupyops.torch.ops.cross_entropy_programs import _cross_entropy
from cupyops.torch.programs.overwriting import overwriting
from tests.support import with_floats


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    with cupyops.simulate(request.param == "cpu", sanitize=True):
        yield request.param


def operands(device: str, rows: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    target = torch.arange(rows).mul(7919).remainder(n)
    target[1] = -100
    return torch.randn(rows, n).to(device, dtype).requires_grad_(), target.to(device)


# Rows of a few threads, of a block with accesses that are not whole, and of a cluster. The simulator compiles a program for
# each form of the loss; of 16 bits it compiles the plain one.
@pytest.mark.sample(1)
@pytest.mark.parametrize(("n", "dtype"), with_floats([40, 1030, 40_000], each=1))
def test_the_gradient_has_the_memory_of_the_logits_and_the_bits_of_the_ordinary_one(
    place: str, n: int, dtype: torch.dtype
) -> None:
    weight = torch.rand(n, device=place, dtype=torch.promote_types(dtype, torch.float32))
    forms: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}, {"weight": weight, "reduction": "sum"}]
    for options in forms if place == "cuda" or dtype.itemsize > 2 else forms[:1]:
        leaf, target = operands(place, 3, n, dtype)
        wanted = torch.autograd.grad(cross_entropy(leaf, target, **options), leaf)[0]
        x = leaf * 1
        address, found = x.data_ptr(), list[int]()
        x.register_hook(lambda grad, found=found: found.append(grad.data_ptr()))
        loss = cross_entropy(x, target, inplace_backward=True, **options)
        assert torch.equal(loss, cross_entropy(leaf, target, **options))
        loss.backward()
        assert found == [address]
        assert torch.equal(leaf.grad, wanted)
        assert torch.equal(x.detach(), wanted)


@pytest.mark.gpu
def test_the_backward_allocates_less_than_a_gradient() -> None:
    x, target = operands("cuda", 1024, 32_768, torch.bfloat16)
    loss = cross_entropy(x * 1, target, inplace_backward=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(loss, x)  # multiplies the gradient by 1, into memory of its own
    assert torch.cuda.max_memory_allocated() - before < 1.5 * x.nbytes


def test_on_a_cpu_without_the_simulator_the_logits_are_overwritten_too() -> None:
    """So that a test on a CPU finds what a GPU would refuse."""
    leaf, target = operands("cpu", 3, 40)
    x = leaf * 1
    wanted = torch.autograd.grad(F.cross_entropy(leaf, target), leaf)[0]
    cross_entropy(x, target, inplace_backward=True).backward()
    torch.testing.assert_close(x.detach(), wanted)
    torch.testing.assert_close(leaf.grad, wanted)


def test_classes_in_the_second_of_several_dimensions(place: str) -> None:
    leaf = torch.randn(2, 3, 7, device=place, requires_grad=True)
    target = torch.randint(7, (2, 3), device=place)
    x = leaf * 1
    with pytest.raises(
        ValueError, match=r"`x` must have its classes side by side .*, got strides \(21, 1, 3\) of the rows"
    ):
        cross_entropy(x.transpose(1, 2).contiguous(), target, inplace_backward=True)
    cross_entropy(x.transpose(1, 2), target, inplace_backward=True).backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, x.detach())


@pytest.mark.parametrize("each", [2, 2**24])
def test_rows_with_gaps_between_them_are_taken(place: str, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products whose rows begin at multiples of 16 bytes have such gaps. The values in the gaps do not change."""
    monkeypatch.setattr("cupyops.torch.programs.overwriting._AT_ONCE", each * 19)
    leaf, target = operands(place, 5, 19)
    weight = torch.rand(19, device=place)
    for options in ({}, {"weight": weight, "label_smoothing": 0.1}):
        wanted = torch.autograd.grad(cross_entropy(leaf, target, **options), leaf)[0]
        for shape in ((5, 19), (5, 1, 19)):
            padded = F.pad(leaf, (0, 5), value=7.0)
            x = padded[:, :19].view(shape)
            logits, targets = (x, target) if len(shape) == 2 else (x.transpose(1, 2), target[:, None])
            loss = cross_entropy(logits, targets, inplace_backward=True, **options)
            assert torch.equal(torch.autograd.grad(loss, leaf)[0], wanted)
            assert torch.equal(x.detach().view(5, 19), wanted)
            assert (padded[:, 19:] == 7).all()


def test_rows_that_overlap_are_refused(place: str) -> None:
    leaf, target = operands(place, 3, 40)
    row = leaf[0] * 1
    for x in (row.expand(3, 40), row.as_strided((3, 30), (5, 1))):
        with pytest.raises(ValueError, match="and rows that do not overlap, for inplace_backward=True, got strides"):
            cross_entropy(x, target.remainder(30), inplace_backward=True)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_parameter_is_not_overwritten(place: str, reduction: str) -> None:
    leaf, target = operands(place, 3, 40)
    other = torch.randn(3, 2, 40, device=place, requires_grad=True)
    before = leaf.detach().clone()
    for x, words in ((leaf, "a leaf"), (leaf[:], "a view of a leaf"), (leaf.view(-1).view(3, 40), "a view of a leaf"),
                     (other.transpose(1, 2)[..., 0], "a view of a leaf"), (nn.Parameter(before), "a leaf")):  # fmt: skip
        with pytest.raises(
            RuntimeError, match=f"{words} Variable that requires grad is being used in an in-place oper"
        ):
            cross_entropy(x, target, reduction=reduction, inplace_backward=True)
    assert torch.equal(leaf, before)
    cross_entropy(
        leaf.detach()[:], target, reduction=reduction, inplace_backward=True
    )  # no gradient, nothing is written
    with torch.no_grad():
        cross_entropy(leaf, target, reduction=reduction, inplace_backward=True)
    data = leaf.detach().clone()  # written in place, and so the result of an operation
    data.mul_(leaf)
    cross_entropy(data, target, inplace_backward=True).backward()


@pytest.mark.parametrize("how", ["a saved result", "a second loss", "a second run"])
def test_what_reads_the_logits_afterwards_is_refused(place: str, how: str) -> None:
    leaf, target = operands(place, 3, 40)
    x = leaf.tanh()  # its derivative reads its result
    loss = cross_entropy(x, target, inplace_backward=True)
    if how == "a second loss":
        loss = loss + cross_entropy(x, target)
    if how == "a second run":
        torch.autograd.grad(loss, x, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, x if how == "a second run" else leaf)


def test_a_second_derivative_is_refused_before_anything_is_overwritten(place: str) -> None:
    leaf, target = operands(place, 3, 40)
    x = leaf * 1
    loss = cross_entropy(x, target, inplace_backward=True)
    with pytest.raises(RuntimeError, match="cross_entropy: the gradient takes the memory of `x`, which a second deriv"):
        torch.autograd.grad(loss, leaf, create_graph=True)
    assert torch.equal(x, leaf)
    loss.backward()
    assert leaf.grad is not None


def test_where_it_cannot_be_the_gradient_has_memory_of_its_own(place: str) -> None:
    """Compiled graphs, transforms, and calls without a gradient."""
    leaf, target = operands(place, 3, 40)
    wanted = torch.autograd.grad(cross_entropy(leaf, target), leaf)[0]
    torch.compiler.reset()
    module = CrossEntropyLoss(inplace_backward=True)
    calls: list[Any] = [
        lambda x: torch.autograd.grad(torch.compile(module, fullgraph=True, backend="aot_eager")(x, target), x)[0],
        lambda x: torch.func.grad(lambda x: module(x, target))(x.detach()),
    ]
    for call in calls:
        x = leaf.detach().clone().requires_grad_()
        torch.testing.assert_close(call(x), wanted)
        assert torch.equal(x, leaf)
    with torch.no_grad():
        module(leaf.T.contiguous().T, target)


def test_the_module_overwrites_on_request_alone(place: str) -> None:
    for inplace in (False, True):
        leaf, target = operands(place, 3, 40)
        x = leaf * 1
        CrossEntropyLoss(reduction="sum", inplace_backward=inplace)(x, target).backward()
        assert torch.equal(x, leaf) != inplace


def saved(x: Tensor) -> tuple[Tensor, Tensor]:
    """The values that the forward saves for each row: max x and 1/Σ e^(x - max x)."""
    m = x.detach().amax(-1)
    return m, 1 / (x.detach() - m[:, None]).exp().sum(-1)


@pytest.mark.thorough
@pytest.mark.simulator
def test_the_operator_that_overwrites_passes_the_checks() -> None:
    over = overwriting(_cross_entropy, "x")
    x, target = operands("cpu", 5, 19)
    m, r = saved(x)
    # Not "sizes": m and r belong to x. Not "export": it compares results, and this operator has none.
    checks = ("sanitizer", "written", "inputs_kept", "values", "strides", "misaligned", "fakes", "opcheck", "compiles")
    check_op(over, (x.detach(), torch.randn(5), m, r, target, -100.0), checks=checks)


@pytest.mark.simulator
def test_rows_that_are_not_contiguous_are_copied_by_the_operator() -> None:
    over = overwriting(_cross_entropy, "x")
    x, target = operands("cpu", 5, 19)
    (m, r), grad = saved(x), torch.rand(5)
    given = [x.detach().clone(), x.detach().T.contiguous().T]
    with cupyops.simulate():
        for one in given:
            over(one, grad, m, r, target, -100.0)
    assert torch.equal(*given)
    assert not torch.equal(given[0], x)
