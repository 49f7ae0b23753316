"""optimize() after parallelize_module, on two processes: modules computed by local tensors, beside the whole model in float64."""

import copy
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.utils.parametrize
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import results_file
from benchmarks.scale.models import images
from cupyops.torch import optimize
from cupyops.torch.models import fused
from cupyops.torch.models.classes import is_optimised
from tests import preloaded
from tests.benchmarks.tiny_scale import SIZE, VisionTransformer
from tests.models.stand_ins import FlaggedNorm, RootNorm
from tests.support import fork_ranks

RANKS, WIDTH, HIDDEN = 2, 8, 16
VIT = images(2, "vit", VisionTransformer, SIZE)
NEAR: Any = {"rtol": 1e-5, "atol": 1e-5}  # a module of the whole model computes in float32
HOOKS = "FromTorchTensor"  # the node of a tensor that a hook makes a DTensor of
MOVES = "moved_between_ranks"


class Layer(nn.Module):
    """A norm, an addition and a norm, and two linear layers with GELU between them or after an operation."""

    def __init__(self, norm: Callable[..., nn.Module], act: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.act = nn.GELU() if act else nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(x).tanh()
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


def layer(norm: Callable[..., nn.Module] = nn.LayerNorm, act: bool = True) -> Any:
    torch.manual_seed(0)
    made = Layer(norm, act).double()
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn_like(p))
    return made


def over_the_sequence(module: Any, mesh: Any) -> Any:
    norms, columns = SequenceParallel(use_local_output=True), ColwiseParallel(input_layouts=Shard(1))
    rows = RowwiseParallel(output_layouts=Shard(1))
    return parallelize_module(module, mesh, {"norm1": norms, "norm2": norms, "fc1": columns, "fc2": rows})


def over_the_features(module: Any, mesh: Any) -> Any:
    return parallelize_module(module, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})


def nodes(y: Tensor) -> Counter[str]:
    """The names of the autograd nodes of a result."""
    found: dict[Any, str] = {}
    stack = [y.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            stack += [n for n, _ in node.next_functions]
    return Counter(found.values())


def count(y: Tensor, name: str) -> int:
    return sum(n for key, n in nodes(y).items() if name in key)


def whole(x: Any) -> Tensor:
    found: Tensor = x.full_tensor() if isinstance(x, DTensor) else x
    return found


def given(mesh: Any, split: Any) -> tuple[Tensor, Tensor]:
    """An argument, and the piece of it that a rank has."""
    torch.manual_seed(1)
    x = torch.randn(3, 4, WIDTH, dtype=torch.float64)
    own = x.chunk(RANKS, 1)[mesh.get_local_rank()] if split is over_the_sequence else x
    return x.requires_grad_(), own.detach().clone().requires_grad_()


def results(module: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    y = module(x)
    return y, [*torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]


def same_as_the_whole(mesh: Any, module: Any, split: Any, wanted: Any) -> Tensor:
    """Compares results and gradients with those of the whole model; returns the result."""
    x, own = given(mesh, split)
    y, (of_x, *grads) = results(module, own)
    of_whole, (of_whole_x, *of_parameters) = results(wanted, x)
    if split is over_the_sequence:
        of_whole, of_whole_x = (t.chunk(RANKS, 1)[mesh.get_local_rank()] for t in (of_whole, of_whole_x))
    torch.testing.assert_close([y, of_x], [of_whole, of_whole_x], **NEAR)
    for p, grad, of in zip(module.parameters(), grads, of_parameters, strict=True):
        assert (type(grad), grad.shape, grad.dtype) == (type(p.data), p.shape, p.dtype)
        torch.testing.assert_close(whole(grad), of, **NEAR)
    return y


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the calls of fused operators."""
    calls: Counter[str] = Counter()
    own = {name: getattr(fused, name) for name in ("add_layer_norm", "add_rms_norm", "linear_gelu")}

    def counting(name: str) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            calls[name] += 1
            return own[name](*args)

        return called

    for name in own:
        setattr(fused, name, counting(name))
    try:
        yield calls
    finally:
        for name, function in own.items():
            setattr(fused, name, function)


# A norm, and the operator that computes it with the addition before it. 1 + weight is float32, and the rows are float64.
NORMS: list[tuple[Callable[..., nn.Module], str]] = [
    (nn.LayerNorm, "add_layer_norm"),
    (FlaggedNorm, "add_layer_norm"),
    (nn.RMSNorm, "add_rms_norm"),
    (RootNorm, "add_rms_norm"),
    (partial(RootNorm, shift=1.0), ""),
]


def every_style_is_computed_by_local_tensors(mesh: Any) -> None:
    for (norm, fused_norm), act, split, before in itertools.product(
        NORMS, (True, False), (over_the_sequence, over_the_features), (True, False)
    ):
        module = layer(norm, act)
        if before:
            optimize(module)
        split(module, mesh)
        optimize(module)
        with counted() as calls:
            y = same_as_the_whole(mesh, module, split, layer(norm, act))
        assert count(y, HOOKS) == 0
        assert count(y, MOVES) == 2
        assert calls == Counter([fused_norm] * bool(fused_norm) + ["linear_gelu"] * act)


class Observer(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented if DTensor in types else function(*args, **(kwargs or {}))


def the_hooks_compute_what_a_hook_observes(mesh: Any) -> None:
    """A hook, a replaced forward, a DTensor, a keyword, a dispatch mode, and pieces of unequal size."""
    split = over_the_sequence
    module = split(layer(), mesh)
    optimize(module)
    _, own = given(mesh, split)
    seen: list[Any] = []
    for name in ("norm1", "norm2", "fc1", "fc2"):
        inner = getattr(module, name)
        for register in (inner.register_forward_hook, inner.register_forward_pre_hook):
            handle = register(lambda *a: seen.append(a))
            y = same_as_the_whole(mesh, module, split, layer())
            handle.remove()
            assert len(seen) == 1
            assert type(seen.pop()[1][0]) is DTensor
            assert count(y, HOOKS) == 1
        handle = inner.register_full_backward_hook(lambda *a: seen.append(a))
        same_as_the_whole(mesh, module, split, layer())
        handle.remove()
        assert seen.pop()
        assert not seen
    handle = nn.modules.module.register_module_forward_hook(lambda *a: seen.append(a))
    module(own)
    handle.remove()
    assert len(seen) == 6  # four modules, GELU and the layer
    forward = module.fc1.forward
    module.fc1.forward = lambda x: seen.append(x) or forward(x)
    same_as_the_whole(mesh, module, split, layer())
    assert type(seen.pop()) is DTensor
    del module.fc1.forward
    placed = DTensor.from_local(own.detach(), mesh, [Shard(1)], run_check=False)
    torch.testing.assert_close(module.norm1(placed), module.norm1(own))
    torch.testing.assert_close(module.fc1(placed), module.fc1(own))
    with Observer():
        y = module(own)
    assert count(y, HOOKS) == 4
    assert count(module(own), HOOKS) == 0
    h, rank = torch.randn(3, 3, HIDDEN, dtype=torch.float64), mesh.get_local_rank()
    y = module.fc2(h.chunk(RANKS, 2)[rank])
    torch.testing.assert_close(y, layer().fc2(h).chunk(RANKS, 1)[rank])


def results_may_stay_dtensors(mesh: Any) -> None:
    norms, columns = SequenceParallel(), ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
    module = parallelize_module(layer(), mesh, {"norm1": norms, "fc1": columns})
    optimize(module)
    x, own = given(mesh, over_the_sequence)
    for name in ("norm1", "fc1"):
        y = getattr(module, name)(own)
        assert type(y) is DTensor
        torch.testing.assert_close(y.full_tensor(), getattr(layer(), name)(x))


def a_collective_may_still_compute_an_argument(mesh: Any) -> None:
    x, own = given(mesh, over_the_features)
    for place, argument in ((over_the_features, own), (over_the_sequence, x.chunk(RANKS, 1)[mesh.get_local_rank()])):
        module = place(layer(), mesh)
        optimize(module)
        pending = AsyncCollectiveTensor(argument.detach()).requires_grad_()
        y = module.fc1(pending)
        torch.testing.assert_close(y, layer().fc1(x).chunk(RANKS, 2)[mesh.get_local_rank()])
        assert count(y, HOOKS) == 0
        torch.testing.assert_close(module.norm1(pending), layer().norm1(argument))


class Out(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc2, self.act = layer().fc2, nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc2(x))


def gelu_of_a_sum_is_computed_of_the_sum(mesh: Any) -> None:
    module = parallelize_module(Out(), mesh, {"fc2": RowwiseParallel()})
    optimize(module)
    h = torch.randn(3, 4, HIDDEN, dtype=torch.float64)
    y = module(h.chunk(RANKS, 2)[mesh.get_local_rank()])
    torch.testing.assert_close(y, Out()(h))
    assert count(y, HOOKS) == 0


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def a_parametrised_module_has_the_hooks(mesh: Any) -> None:
    module, wanted = over_the_features(layer(), mesh), layer()
    optimize(module)
    for m in (module, wanted):
        nn.utils.parametrize.register_parametrization(m.fc1, "weight", Halved())
    x, own = given(mesh, over_the_features)
    y = module(own)
    torch.testing.assert_close(y, wanted(x))
    assert count(y, HOOKS) == 1


def a_gradient_has_a_gradient(mesh: Any) -> None:
    for split in (over_the_sequence, over_the_features):
        module = split(layer(), mesh)
        optimize(module)
        found = []
        for of, x in ((layer(), given(mesh, split)[0]), (module, given(mesh, split)[1])):
            grads = results_with_graph(of, x)
            # Each rank has a piece of the sum, or the sum.
            total = sum(g.full_tensor().square().sum() if isinstance(g, DTensor) else g.square().sum() for g in grads)
            found.append([whole(g) for g in torch.autograd.grad(total, [*of.parameters()])])
        torch.testing.assert_close(found[1], found[0])


def results_with_graph(module: Any, x: Tensor) -> list[Any]:
    return [*torch.autograd.grad(module(x).square().sum(), [*module.parameters()], create_graph=True)]


def autocast_gives_the_numbers_of_the_hooks(mesh: Any) -> None:
    for split in (over_the_sequence, over_the_features):
        modules = [split(layer().float(), mesh) for _ in range(2)]
        optimize(modules[0])
        own = given(mesh, split)[1].detach().float().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            found, wanted = (m.fc2(m.fc1(own)) for m in modules)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        of = [torch.autograd.grad(y.float().square().sum(), own)[0] for y in (found, wanted)]
        assert of[0].dtype is torch.float32
        torch.testing.assert_close(*of, rtol=0, atol=0)


def one_rank_may_have_a_hook(mesh: Any) -> None:
    """The ranks call the same collectives, of the same dtypes, with hooks and without them."""
    for split in (over_the_sequence, over_the_features):
        module, lower = split(layer(), mesh), split(layer().float(), mesh)
        optimize(module)
        optimize(lower)
        own = given(mesh, split)[1].detach().float().requires_grad_()
        for both in zip(module.children(), lower.children(), strict=True):
            handles = [m.register_forward_hook(lambda *_: None) for m in both if mesh.get_local_rank()]
            same_as_the_whole(mesh, module, split, layer())
            with torch.autocast("cpu", torch.bfloat16):
                y = lower(own)
            (grad,) = torch.autograd.grad(y.float().square().sum(), own)
            assert grad.isfinite().all()
            for handle in handles:
                handle.remove()


def fully_shard_may_shard_the_pieces(mesh: Any) -> None:
    both = dist.init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("data", "tensor"))
    found = []
    for optimises in (True, False):
        module = over_the_sequence(layer().float(), both["tensor"])
        if optimises:
            optimize(module)
        fully_shard(module, mesh=both["data"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        own = given(mesh, over_the_sequence)[1].detach().bfloat16().requires_grad_()
        y = module(own)
        y.float().square().sum().backward()
        found.append([y, *(whole(p.grad) for p in module.parameters())])
        assert count(y, HOOKS) == (0 if optimises else 4)
    torch.testing.assert_close(*found, rtol=0, atol=0)


def a_compiled_module_has_the_hooks(mesh: Any, split: Any = over_the_sequence) -> None:
    module = split(layer(), mesh)
    optimize(module)
    compiled = torch.compile(module.forward, backend="aot_eager", fullgraph=True, dynamic=False)
    own = given(mesh, split)[1]
    torch.testing.assert_close(compiled(own), module(own))


def a_compiled_module_over_the_features_has_the_hooks(mesh: Any) -> None:
    a_compiled_module_has_the_hooks(mesh, over_the_features)


def a_vision_transformer_trains_as_pytorchs(mesh: Any) -> None:
    losses = []
    for variant in ("torch", "cupyops"):
        model: Any = VIT.build(variant)
        VIT.split(model, mesh)
        if variant == "cupyops":
            optimize(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batch = VIT.draw(2, torch.Generator().manual_seed(0))
        for _ in range(3):
            loss = VIT.loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        # What is left is the argument of the blocks, that of each attention, and that of the last norm, a DTensor then.
        left = count(loss, HOOKS)
    assert left == 4
    torch.testing.assert_close(*losses)


def undo_and_a_second_call_of_optimize(mesh: Any) -> None:
    module = layer()
    first = optimize(module)
    over_the_sequence(module, mesh)
    second = optimize(module)
    assert {site.name for site in second.replaced} == {"norm1", "norm2", "fc1", "fc2"}
    assert not optimize(module).replaced
    copied = copy.deepcopy(module)
    assert count(same_as_the_whole(mesh, copied, over_the_sequence, layer()), HOOKS) == 0
    second.undo()
    first.undo()
    assert not any(is_optimised(type(m)) for m in module.modules())
    assert count(same_as_the_whole(mesh, module, over_the_sequence, layer()), HOOKS) == 4


CLAIMS = {
    "by default": [
        every_style_is_computed_by_local_tensors,
        the_hooks_compute_what_a_hook_observes,
        results_may_stay_dtensors,
        a_collective_may_still_compute_an_argument,
        gelu_of_a_sum_is_computed_of_the_sum,
        a_parametrised_module_has_the_hooks,
        a_gradient_has_a_gradient,
        autocast_gives_the_numbers_of_the_hooks,
        one_rank_may_have_a_hook,
        fully_shard_may_shard_the_pieces,
        a_compiled_module_has_the_hooks,
        a_vision_transformer_trains_as_pytorchs,
        undo_and_a_second_call_of_optimize,
    ],
    "thorough": [a_compiled_module_over_the_features_has_the_hooks],
}


def _ranks(rank: int, folder: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    for claim in CLAIMS[names[0]]:
        claim(mesh)
    dist.destroy_process_group()


@pytest.mark.parametrize("claims", ["by default", pytest.param("thorough", marks=pytest.mark.thorough)])
def test_modules_that_ranks_divide_are_computed_by_local_tensors(claims: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(results_file.ROOT), "OMP_NUM_THREADS": "1"}
    done = preloaded.run(["-m", __name__, claims], cwd=results_file.ROOT, env=environment)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fork_ranks(_ranks, (folder, sys.argv[1:]), RANKS)
