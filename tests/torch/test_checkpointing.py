"""Selective activation checkpointing: which results of this project's modules policies for PyTorch's operators save."""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import autograd_bridge as bridge
from cupyops.torch import CheckFailed, Operator, check_op, optimize
from cupyops.torch.core import checkpoints
from cupyops.torch.core import operator as core
from examples.gpt.model import build_model
from tests.models.stand_ins import WIDTH, PreNorm

pytestmark = pytest.mark.usefixtures("one_thread")

PRODUCTS = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}


class Seen:
    """A policy that saves the operators in `saved`, and records the forward's operators.

    Attributes:
        bytes: the size of the saved results of the forward; :func:`step` writes it.
    """

    def __init__(self, saved: set[Any]) -> None:
        self.saved = saved
        self.bytes = 0
        self.forward: Counter[str] = Counter()

    def __call__(self, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if not ctx.is_recompute:
            self.forward[op.name()] += 1
        return CheckpointPolicy.MUST_SAVE if op in self.saved else CheckpointPolicy.PREFER_RECOMPUTE


class Products(TorchDispatchMode):
    """Counts the products with a bias that are computed, and the bytes of all results of each operator.

    The products of a backward have no bias. FlopCounterMode would not do: optimised modules call one another if PyTorch's
    hooks of all modules are set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.bytes: Counter[Any] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name()
        self.count += name == "aten::addmm" or name in ("cupyops::linear", "cupyops::linear_gelu")
        found = function(*args, **(kwargs or {}))
        results = found if isinstance(found, tuple) else (found,)
        self.bytes[function] += sum(x.nbytes for x in results if isinstance(x, Tensor))
        return found


def step(module: Any, *inputs: Tensor, saved: set[Any]) -> tuple[Seen, int, list[Tensor]]:
    """Returns the saved tensors, the number of computed products with a bias, and the results and gradients."""
    seen = Seen(saved)
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    with Products() as products:
        contexts = partial(create_selective_checkpoint_contexts, seen)
        found = checkpoint(module, *inputs, use_reentrant=False, context_fn=contexts)
        found = found if isinstance(found, tuple) else (found,)
        seen.bytes = sum(products.bytes[op] for op in saved)
        sum(y.square().sum() for y in found).backward()
    grads = [p.grad for p in (*inputs, *module.parameters()) if p.grad is not None]
    return seen, products.count, [*(y.detach() for y in found), *grads]


def block_of_gpt(backend: str) -> nn.Module:
    sizes = {"context": 8, "layers": 1, "heads": 2, "width": WIDTH}
    block: nn.Module = build_model(32, Namespace(**sizes, seed=0, backend=backend)).blocks[0]
    return block


def pre_norm(optimised: bool) -> nn.Module:
    torch.manual_seed(0)
    module = PreNorm()
    if optimised:
        assert "linear_gelu" in str(optimize(module))
    return module


def of_modules(norm: Any, *layers: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(norm(WIDTH), *(make() for make in layers))


PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], int]] = {
    "LinearGELU": (
        lambda: of_modules(nn.LayerNorm, lambda: nn.Linear(WIDTH, 40), lambda: nn.GELU(), lambda: nn.Linear(40, 3)),
        lambda: of_modules(bridge.LayerNorm, lambda: bridge.LinearGELU(WIDTH, 40), lambda: bridge.Linear(40, 3)),
        1,
    ),
    "optimize()": (lambda: pre_norm(False), lambda: pre_norm(True), 1),
    "the block of char_gpt": (lambda: block_of_gpt("torch"), lambda: block_of_gpt("kernels"), 2),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_policy_for_products_saves_the_bytes_of_nn_and_computes_no_product_again(name: str) -> None:
    make, ours, count = PAIRS[name]
    inputs = list(torch.randn(count, 2, 8, WIDTH, generator=torch.Generator().manual_seed(1)))
    wanted, products, values = step(make(), *inputs, saved=PRODUCTS)
    seen, found, got = step(ours(), *inputs, saved=PRODUCTS)
    assert seen.bytes == wanted.bytes > 0
    assert seen.forward["aten::addmm"] == wanted.forward["aten::addmm"] > 0
    assert not any("linear" in op for op in seen.forward), "a product that the policy does not name"
    assert found == products == wanted.forward["aten::addmm"], "a product was computed again"
    torch.testing.assert_close(got, values)


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The operators that enter the modes of selective checkpoints, in the forward and again in the backward."""
    found: Counter[str] = Counter()

    def counting(mode: Any) -> None:
        enter = mode.__torch_dispatch__

        def counted(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            found[function.name()] += 1
            return enter(self, function, *args, **kwargs)

        monkeypatch.setattr(mode, "__torch_dispatch__", counted)

    counting(torch.utils.checkpoint._CachingTorchDispatchMode)
    counting(torch.utils.checkpoint._CachedTorchDispatchMode)
    return found


def entered(
    module: nn.Module, *inputs: Tensor, found: Counter[str], autocast: bool
) -> tuple[Counter[str], list[Tensor]]:
    """Returns the operators that enter the modes in one step, and the results and gradients. No other mode is
    active."""
    found.clear()
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        results = checkpoint(
            module,
            *inputs,
            use_reentrant=False,
            context_fn=partial(create_selective_checkpoint_contexts, Seen(PRODUCTS)),
        )
    results = results if isinstance(results, tuple) else (results,)
    sum(y.square().sum() for y in results).backward()
    grads = [p.grad for p in (*inputs, *module.parameters()) if p.grad is not None]
    return Counter(found), [*(y.detach().float() for y in results), *grads]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_fewer_operators_enter_the_modes_than_of_nn(name: str, autocast: bool, entries: Counter[str]) -> None:
    """Each of them takes the host some microseconds, which bound the step of a checkpointed model."""
    make, ours, count = PAIRS[name]
    inputs = list(torch.randn(count, 2, 8, WIDTH, generator=torch.Generator().manual_seed(1)))
    wanted, values = entered(make(), *inputs, found=entries, autocast=autocast)
    found, got = entered(ours(), *inputs, found=entries, autocast=autocast)
    assert found.total() < wanted.total()
    assert found["aten::addmm"] == wanted["aten::addmm"]
    torch.testing.assert_close(got, values, **({"rtol": 0.05, "atol": 0.05} if autocast else {}))


@pytest.mark.parametrize("shape", [(6, WIDTH), (2, 3, WIDTH)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_policy_decides_about_products_and_not_about_views(
    shape: tuple[int, ...], bias: bool, entries: Counter[str]
) -> None:
    product = "aten::addmm" if bias else "aten::mm"
    # PyTorch ends the second run at the last tensor that it needs: an operand of the product, or z.
    for module, expected in ((bridge.Linear, {product: 1}), (bridge.LinearGELU, {product: 2, "cupyops::gelu": 2})):
        given, x = module(WIDTH, 8, bias=bias), torch.randn(shape)
        found, got = entered(given, x, found=entries, autocast=False)
        del found["aten::detach"]
        assert found == expected
        assert got[0].shape == (*shape[:-1], 8)
        x = x.requires_grad_()
        y = given(x)
        wanted = torch.autograd.grad(y.square().sum(), [x, *given.parameters()])
        torch.testing.assert_close(got, [y.detach(), *wanted])


def test_autocast_copies_parameters_without_the_policy(entries: Counter[str]) -> None:
    found, _ = entered(bridge.Linear(WIDTH, 8), torch.randn(2, 3, WIDTH), found=entries, autocast=True)
    assert found["aten::_to_copy"] == 2, "x, in the forward and in the backward"


def test_the_general_dispatch_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = nn.Sequential(bridge.LayerNorm(WIDTH), bridge.LinearGELU(WIDTH, 8, bias=False), bridge.Linear(8, 3))
    x = torch.randn(2, 3, WIDTH)
    _, wanted = entered(modules, x, found=Counter(), autocast=False)
    modules.zero_grad()

    def refuse(*_: Any) -> Any:
        raise AssertionError("the conditions of the general dispatch")

    monkeypatch.setattr(core, "any_autocast", refuse)
    with pytest.raises(AssertionError, match="general dispatch"):
        modules(x)
    contexts = partial(create_selective_checkpoint_contexts, Seen(PRODUCTS))
    torch.testing.assert_close(checkpoint(modules, x, use_reentrant=False, context_fn=contexts), wanted[0])


def test_an_argument_that_is_missing_has_the_error_of_other_calls() -> None:
    x = torch.randn(2, WIDTH)
    for given in ((x, None), (None, x)):
        with create_selective_checkpoint_contexts(Seen(PRODUCTS))[0], pytest.raises(TypeError, match="be a Tensor"):
            bridge.linear(*given)  # type: ignore[arg-type]


def test_no_question_about_dtypes_enters_the_modes(entries: Counter[str]) -> None:
    """A branch in bfloat16 is added to a stream in float32, and the fused norm asks for the dtype of the sum."""
    entered(pre_norm(True), torch.randn(2, 8, WIDTH), found=entries, autocast=True)
    entered(pre_norm(True), torch.randn(2, 8, WIDTH), found=entries, autocast=True)
    assert entries["cupyops::add_layer_norm"] > 0
    assert entries["aten::promote_types"] == 0


@pytest.mark.parametrize("shape", [(6, WIDTH), (2, 3, WIDTH)])
def test_a_saved_product_must_not_be_overwritten(shape: tuple[int, ...]) -> None:
    module = nn.Sequential(bridge.Linear(WIDTH, 8), nn.ReLU(inplace=True))
    with pytest.raises(RuntimeError, match="cached during selective activation checkpoint has been mutated"):
        entered(module, torch.randn(shape), found=Counter(), autocast=False)


@pytest.mark.parametrize("strides", ["columns", "none", "one"])
def test_products_that_are_no_product_of_rows_are_those_of_nn(strides: str) -> None:
    x = {
        "columns": torch.randn(3, WIDTH, 4).transpose(1, 2),
        "none": torch.randn(0, 4, WIDTH),
        "one": torch.randn(WIDTH),
    }[strides]
    module = bridge.Linear(WIDTH, 8)
    _, got = entered(module, x, found=Counter(), autocast=False)
    module.zero_grad()
    plain = nn.Linear(WIDTH, 8)
    plain.load_state_dict(module.state_dict())
    _, wanted = entered(plain, x, found=Counter(), autocast=False)
    torch.testing.assert_close(got, wanted)


@pytest.mark.gpu
def test_kernels_under_autocast_save_the_bytes_of_nn_and_give_gradients_as_close() -> None:
    inputs = [torch.randn(64, 128, 512, device="cuda")]

    def modules(first: list[nn.Module], last: type[nn.Linear], norm: type[nn.LayerNorm]) -> nn.Module:
        made = nn.Sequential(norm(512), *first, last(2048, 512)).cuda()
        state = dict(zip(made.state_dict(), weights.values(), strict=True))
        made.load_state_dict(state)
        return made

    weights = nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(2048, 512)).state_dict()
    theirs = modules([nn.Linear(512, 2048), nn.GELU()], nn.Linear, nn.LayerNorm)
    ours = modules([bridge.LinearGELU(512, 2048)], bridge.Linear, bridge.LayerNorm)
    exact = modules([nn.Linear(512, 2048), nn.GELU()], nn.Linear, nn.LayerNorm).double()
    _, _, right = step(exact, inputs[0].double(), saved=set())
    with torch.autocast("cuda", torch.bfloat16):
        wanted, products, values = step(theirs, *inputs, saved=PRODUCTS)
        seen, found, got = step(ours, *inputs, saved=PRODUCTS)
    assert seen.bytes == wanted.bytes > 0
    assert found == products == 2
    for ours_, theirs_, exactly in zip(got, values, right, strict=True):
        error, allowed = ((x.double() - exactly).norm() for x in (ours_, theirs_))
        assert error <= 1.5 * allowed


def test_a_policy_decides_about_the_product_and_gelu_apart() -> None:
    module, x = bridge.LinearGELU(WIDTH, 40), torch.randn(6, WIDTH)
    both, _, _ = step(module, x, saved={*PRODUCTS, torch.ops.cupyops.gelu.default})
    product, _, _ = step(module, x, saved=PRODUCTS)
    neither, products, _ = step(module, x, saved=set())
    assert (both.bytes, product.bytes, neither.bytes) == (2 * 6 * 40 * 4, 6 * 40 * 4, 0)
    assert product.forward["cupyops::gelu"] == 1
    assert products == 2


def test_an_operator_without_parts_is_called_whole() -> None:
    seen, _, _ = step(bridge.LayerNorm(WIDTH), torch.randn(6, WIDTH), saved={torch.ops.cupyops.layer_norm.default})
    assert seen.forward["cupyops::layer_norm"] == 1
    assert seen.bytes == 6 * WIDTH * 4 + 2 * 6 * 4


def test_calls_without_a_gradient_are_seen_too() -> None:
    seen = Seen(PRODUCTS)
    module, x = bridge.LinearGELU(WIDTH, 40).requires_grad_(False), torch.randn(6, WIDTH)
    forward, _ = create_selective_checkpoint_contexts(seen)
    with torch.no_grad(), forward:
        y = module(x)
    torch.testing.assert_close(y, module(x))
    assert set(seen.forward) >= {"aten::addmm", "cupyops::gelu"}


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fits", [True, False], ids=["placed as a split", "placed otherwise"])
def test_a_policy_finds_the_products_of_dtensors(mesh: Any, fits: bool) -> None:
    """Pieces are PyTorch's products, and tensors that DTensor has to move are the operator."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    module = nn.Sequential(bridge.LinearGELU(WIDTH, 40), nn.Linear(40, 3))
    x = torch.randn(2, 6, WIDTH)
    plain, products, wanted = step(module, x, saved=PRODUCTS)
    module.zero_grad()
    first = ColwiseParallel()
    if not fits:
        first.input_layouts = first.desired_input_layouts = (Shard(2),)
    parallelize_module(module, mesh, {"0": first, "1": RowwiseParallel()})
    seen, found, got = step(module, x, saved={*PRODUCTS, torch.ops.cupyops.linear.default})
    assert seen.bytes == plain.bytes
    assert seen.forward["cupyops::gelu"] == 1
    assert (seen.forward["aten::addmm"], seen.forward["cupyops::linear"]) == ((2, 0) if fits else (1, 1))
    assert found == products == 2
    local = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in got]
    torch.testing.assert_close(local, wanted)


def test_check_op_finds_an_operator_that_is_not_called_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: Tensor) -> Tensor:
        return x.sin() * 2

    op = Operator("cupyops_test::in_parts(Tensor x) -> Tensor y", doubled, reference=doubled, parts=doubled)
    options = {"checks": "checkpointing", "backends": ["reference"]}
    check_op(op, (torch.randn(3, 4),), **options)
    monkeypatch.setattr(core, "selective", lambda: False)
    monkeypatch.setattr(checkpoints, "alone", lambda: False)
    with pytest.raises(
        CheckFailed, match="a selective checkpoint calls cupyops_test.in_parts.default and not its parts"
    ) as raised:
        check_op(op, (torch.randn(3, 4),), **options)
    x = torch.randn(3, requires_grad=True)
    x.sin().sum().backward()  # not of a checkpoint that the check has begun
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert raised.value is not None
