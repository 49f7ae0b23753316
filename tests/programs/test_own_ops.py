"""The operators of the examples, on every backend: values, gradients, layouts, errors; and that each is one screen."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.torch import Operator
from examples.own_op import swiglu as own_swiglu
from examples.own_ops.cross_entropy import cross_entropy
from examples.own_ops.dropout import dropout
from examples.own_ops.rms_norm import rms_norm
from examples.own_ops.rotary import rotary
from examples.own_ops.softmax import softmax
from examples.own_ops.swiglu import swiglu
from tests import preloaded
from tests.support import EACH_FLOAT, alike, with_floats

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 4e-6, torch.float64: 1e-13}


def turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    u, v = x.chunk(2, -1)
    return torch.cat((u * c[:, None] - v * s[:, None], v * c[:, None] + u * s[:, None]), -1)


def target(x: Tensor) -> Tensor:
    return torch.arange(x[..., 0].numel(), device=x.device).reshape(x.shape[:-1]) * 7 % x.shape[-1]


def tables(x: Tensor) -> tuple[Tensor, Tensor]:
    angles = torch.arange(x.shape[1] * x.shape[3] // 2, device=x.device).reshape(x.shape[1], -1) * 0.3
    return angles.cos(), angles.sin()


# By name: the operator and the same in float64, of tensors; and how many tensors.
OPERATORS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], int]] = {
    "own_op": (own_swiglu, lambda a, b: F.silu(a) * b, 2),
    "swiglu": (swiglu, lambda a, b: F.silu(a) * b, 2),
    "softmax": (softmax, lambda x: x.softmax(-1), 1),
    "cross_entropy": (
        lambda x: cross_entropy(x, target(x)),
        lambda x: -x.log_softmax(-1).gather(-1, target(x)[..., None])[..., 0],
        1,
    ),
    "rms_norm": (
        lambda x, like: rms_norm(x, like.flatten()[: x.shape[-1]].contiguous(), 1e-5),
        lambda x, like: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * like.flatten()[: x.shape[-1]],
        2,
    ),
    "rotary": (
        lambda x: rotary(x.reshape(1, 2, -1, x.shape[-1]), *tables(x.reshape(1, 2, -1, x.shape[-1]))),
        lambda x: turned(x.reshape(1, 2, -1, x.shape[-1]), *tables(x.reshape(1, 2, -1, x.shape[-1]))),
        1,
    ),
}
EACH = pytest.mark.parametrize("name", OPERATORS)
# A row of a few threads, which it fills, and one over warps that it does not fill.
SIZES = [*with_floats((pytest.param(name, (6, 64), id=f"{name}-few") for name in OPERATORS), each=1)]
MANY = dict.fromkeys(OPERATORS, torch.float32) | {
    "cross_entropy": torch.bfloat16
}  # float32 is tested with few elements
SIZES += [pytest.param(name, (2, 1030), dtype, id=f"{name}-many") for name, dtype in MANY.items()]


def assert_near(got: Tensor, wanted: Tensor) -> None:
    """Within the tolerance of the dtype, relative to the value and to the largest."""
    scale = wanted.abs() + wanted.abs().max()
    assert got.shape == wanted.shape
    error = ((got.double() - wanted).abs() / scale).max().item()
    assert error <= TOLERANCE[got.dtype], error


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "shape", "dtype"), SIZES)
def test_values_and_gradients_against_float64(
    device: str, name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    ours, exact, count = OPERATORS[name]
    inputs = [torch.randn(shape, device=device).to(dtype).requires_grad_() for _ in range(count)]
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    y, wanted = ours(*inputs), exact(*doubles)
    assert y.dtype == dtype
    assert_near(y, wanted.detach())
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, grad)
    for g, w in zip(found, torch.autograd.grad(wanted, doubles, grad.double()), strict=True):
        assert g.dtype == dtype
        assert_near(g, w)


@pytest.mark.sample(3)
@EACH
def test_a_gradient_of_stride_0_and_of_a_view(device: str, name: str) -> None:
    ours, exact, count = OPERATORS[name]
    # The kernels of gradcheck.
    inputs = [torch.randn(6, 4, device=device, dtype=torch.double).t().requires_grad_() for _ in range(count)]
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    found = torch.autograd.grad(ours(*inputs).sum(), inputs)
    for g, w in zip(found, torch.autograd.grad(exact(*doubles).sum(), doubles), strict=True):
        assert ((g - w).abs() / (1 + w.abs())).max() < 1e-5


@pytest.mark.sample(7)
@EACH
def test_gradcheck(device: str, name: str) -> None:
    if name == "rotary":  # whose tables are float32
        return
    ours, _, count = OPERATORS[name]
    inputs = [torch.randn(2, 6, device=device, dtype=torch.double, requires_grad=True) for _ in range(count)]
    assert torch.autograd.gradcheck(ours, inputs)
    if name != "own_op":  # which has no reference
        assert torch.autograd.gradgradcheck(ours, inputs)


@pytest.mark.sample(4)
@pytest.mark.parametrize("op", [swiglu, softmax, own_swiglu], ids=lambda op: op.qualified_name)
def test_opcheck(device: str, op: Operator) -> None:
    inputs = [torch.randn(4, 8, device=device, requires_grad=True) for _ in op._tensors]
    torch.library.opcheck(op.op, tuple(inputs))


# With static and with dynamic sizes: the operator of a CUDA text with both, and the programs in turn.
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "dynamic"),
    [("own_op", False), ("own_op", True), *((name, i % 2 == 0) for i, name in enumerate([*OPERATORS][1:]))],
)
def test_compile_fullgraph(device: str, name: str, dynamic: bool) -> None:
    torch.compiler.reset()
    ours, _, count = OPERATORS[name]

    def program(*inputs: Tensor) -> Tensor:
        return ours(*(2 * x for x in inputs)) + 1

    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (2, 4):
        inputs = [torch.randn(rows, 16, device=device, requires_grad=True) for _ in range(count)]
        got, wanted = compiled(*inputs), program(*inputs)
        torch.testing.assert_close(got, wanted)
        for g, w in zip(torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs), strict=True):
            torch.testing.assert_close(g, w)


@pytest.mark.gpu
@EACH
def test_a_graph_replays_with_new_data(name: str) -> None:
    ours, _, count = OPERATORS[name]
    inputs = [torch.randn(4, 64, device="cuda") for _ in range(count)]
    ours(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ours(*inputs)
    for x in inputs:
        x.normal_()
    graph.replay()
    assert alike(y, ours(*inputs))


@EACH
def test_the_bits_of_a_row_do_not_depend_on_the_others(device: str, kernels: bool, name: str) -> None:
    if not kernels or name in ("rotary", "cross_entropy"):  # their results depend on the position of a row
        return
    ours, _, count = OPERATORS[name]
    inputs = [torch.randn(37, 100, device=device) for _ in range(count)]
    whole = ours(*inputs)
    rest = inputs[1:] if name == "rms_norm" else [x[5:6] for x in inputs[1:]]
    assert alike(ours(inputs[0][5:6], *rest), whole[5:6])


@pytest.mark.parametrize("op", [own_swiglu, swiglu], ids=["own_op", "program"])
def test_swiglu_broadcasts_and_sums_the_gradients(device: str, op: Operator) -> None:
    shapes = ((5, 1, 8), (3, 1)), ((4, 6), (6,)), ((), (3, 2)), ((2, 3, 4, 5), (3, 1, 5))
    for shape_a, shape_b in shapes:
        a, b = (torch.randn(s, device=device, dtype=torch.double, requires_grad=True) for s in (shape_a, shape_b))
        y, wanted = op(a, b), F.silu(a) * b
        torch.testing.assert_close(y, wanted)
        for g, w in zip(torch.autograd.grad(y.sum(), (a, b)), torch.autograd.grad(wanted.sum(), (a, b)), strict=True):
            torch.testing.assert_close(g, w)
    with pytest.raises(RuntimeError, match="must match|broadcast"):
        op(torch.ones(2, 3, device=device), torch.ones(4, device=device))


def test_broadcasting_compiles_for_any_size(device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda a, b: swiglu(a, b + 1), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5, 8):
        a, b = (torch.randn(s, device=device, dtype=torch.double, requires_grad=True) for s in ((rows, 6), (6,)))
        y, wanted = compiled(a, b), F.silu(a) * (b + 1)
        torch.testing.assert_close(y, wanted)
        found, exact = torch.autograd.grad(y.sum(), (a, b)), torch.autograd.grad(wanted.sum(), (a, b))
        torch.testing.assert_close(found, exact)
    mixed = torch.randn(3, 6, device=device, dtype=torch.bfloat16, requires_grad=True), torch.randn(6, device=device)
    (grad,) = torch.autograd.grad(compiled(*mixed).sum(), mixed[0])
    assert grad.dtype == torch.bfloat16


def test_opcheck_of_a_backward_that_broadcasts(device: str) -> None:
    assert swiglu.backward is not None
    shapes, dtypes = ((2, 3), (2, 3), (3,)), (torch.float32, torch.bfloat16, torch.float32)
    tensors = [torch.randn(s, device=device).to(d) for s, d in zip(shapes, dtypes, strict=True)]
    for wants in ((True, True), (False, True), (False, False)):
        torch.library.opcheck(swiglu.backward.op, (*tensors, *wants))


def test_programs_promote_as_pytorch_does(device: str, kernels: bool) -> None:
    a, b = torch.randn(4, 8, device=device, dtype=torch.bfloat16), torch.randn(8, device=device)
    y = swiglu(a, b)
    assert y.dtype == torch.float32
    rounded = None if kernels else 1e-2  # PyTorch's own rounds between its two operations
    torch.testing.assert_close(y, F.silu(a.float()) * b, rtol=rounded, atol=rounded)
    alike = swiglu(a, b.expand(4, 8).contiguous())
    assert alike.dtype == torch.float32
    torch.testing.assert_close(alike, y)
    assert swiglu(a, torch.tensor(2.0, device=device)).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,)])
def test_nothing_gives_nothing(device: str, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, device=device, requires_grad=True)
    for y in (swiglu(x, x), own_swiglu(x, x), softmax(x)):
        assert y.shape == shape
    if shape[0] == 0 and len(shape) == 2:
        weight = torch.ones(5, device=device, requires_grad=True)
        rms_norm(x, weight, 1e-5).sum().backward()
        assert weight.grad.tolist() == [0.0] * 5, "a sum over no rows"


def test_special_values_of_a_row(kernels: bool, device: str) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1.0, inf, 2.0], [1.0, nan, 2.0], [-inf, 0.0, 0.0], [3e38, -3e38, 3e38]], device=device)
    torch.testing.assert_close(softmax(x), x.softmax(-1), equal_nan=True)
    where = torch.tensor([0, 0, 1, 0], device=device)
    theirs = F.cross_entropy(x, where, reduction="none")
    torch.testing.assert_close(cross_entropy(x, where), theirs, equal_nan=True)


def test_wrong_tensors_are_refused_by_name(kernels: bool, device: str) -> None:
    if not kernels:
        return  # PyTorch's own words
    x = torch.randn(3, 8, device=device)
    with pytest.raises(
        ValueError, match=r"rms_norm: `weight` must have a value for each column of `x`, \(8,\), got \(3,\)"
    ):
        rms_norm(x, torch.ones(3, device=device), 1e-5)
    with pytest.raises(
        ValueError, match=r"cross_entropy: `target` must have a value for each row of `x`, \(3,\), got \(8,\)"
    ):
        cross_entropy(x, torch.zeros(8, dtype=torch.int64, device=device))
    with pytest.raises(TypeError, match=r"cross_entropy: `target` must have dtype int64, got int32"):
        cross_entropy(x, torch.zeros(3, dtype=torch.int32, device=device))
    with pytest.raises(
        TypeError, match=r"softmax: `x` must have dtype float16 or bfloat16 or float32 or float64, got int64"
    ):
        softmax(torch.ones(3, 4, dtype=torch.int64, device=device))
    with pytest.raises(ValueError, match=r"softmax: `x` must have rows, at least one dimension"):
        softmax(torch.tensor(1.0, device=device))


# Dropout

DEVICES = pytest.mark.parametrize(
    "where", [pytest.param("cpu", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)]
)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 of Salmon et al., 2011, in Python's own integers."""
    c, k, word = list(counter), list(key), 2**32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b // word ^ c[1] ^ k[0], b % word, a // word ^ c[3] ^ k[1], a % word]
        k = [(k[0] + 0x9E3779B9) % word, (k[1] + 0xBB67AE85) % word]
    return c


def test_the_tests_philox_is_the_papers() -> None:
    """Its known answer, which the authors' library ships."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@DEVICES
def test_dropout_draws_philox(where: str) -> None:
    seed, p, n = 0x1234567_89ABCDEF, 0.375, 61
    y = dropout(torch.ones(n, device=where), torch.tensor([seed], device=where), p)
    words = [philox([i, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]) for i in range(8)]
    halves = [word >> shift & 0xFFFF for four in words for word in four for shift in (0, 16)]
    kept = torch.tensor([half >= p * 65536 for half in halves[:n]], device=where)
    torch.testing.assert_close(y, kept / (1 - p))


@DEVICES
@pytest.mark.parametrize("dtype", EACH_FLOAT)
def test_dropout_has_one_mask_both_ways(where: str, dtype: torch.dtype) -> None:
    key = torch.tensor([5], device=where)
    for x in (torch.randn(1003, device=where), torch.randn(8, 40, device=where).t(), torch.randn(17, device=where)[1:]):
        x = x.to(dtype).requires_grad_()
        y = dropout(x, key, 0.5)
        assert torch.equal(y != 0, dropout(torch.ones_like(x), key, 0.5) != 0)
        torch.testing.assert_close(y, torch.where(y != 0, 2 * x, torch.zeros_like(x)))
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert torch.equal(grad, torch.where(y != 0, 2.0, 0.0).to(dtype))
    assert not dropout(torch.ones(9, device=where), key, 1.0).any()


@pytest.mark.gpu
def test_a_replayed_graph_drops_others() -> None:
    x = torch.ones(4096, device="cuda")
    dropout(x, torch.randint(2**63 - 1, (1,), device="cuda"), 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dropout(x, torch.randint(2**63 - 1, (1,), device="cuda"), 0.5)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


# Each file, run where no C++ compiler is: the references run; an operator without a reference says what it needs.
SHOW = """
import contextlib, io, runpy, sys
from cupyops.simulator import host
host.missing = lambda: "there is no compiler"
for name in sys.argv[1:]:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            runpy.run_module(f"examples.own_ops.{name}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
    print(name, status, repr(told.getvalue()))
"""


def test_each_file_shows_its_operator_beside_pytorchs() -> None:
    names = [path.stem for path in sorted((ROOT / "examples" / "own_ops").glob("[a-z]*.py"))]
    done = preloaded.run(["-c", SHOW, *names], cwd=ROOT)
    assert not done.returncode, done.stderr
    shown = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in shown] == names
    assert len(names) == 6
    for name, status, text in shown:
        if name in ("dropout", "rotary") and not torch.cuda.is_available():
            assert status == "2"
            assert f"error: without a GPU, {name} needs the simulator: there is no compiler" in text
            continue
        assert (name, status) == (name, "0"), text
        assert f"own::{name} of " in text
        errors = re.findall(r"(\d\.\de[-+]\d+), (\d\.\de[-+]\d+)", text)
        assert len(errors) >= 2
        assert all(float(e) < 1e-6 for pair in errors for e in pair), text
