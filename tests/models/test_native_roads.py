"""With native(), every road of PyTorch behaves as without it: tracing, transforms, distributed and nested tensors, streams."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cupyops.torch import native
from cupyops.torch.models import aten

from .overriding import PLACES, inside


def both(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A layer norm and a GELU."""
    return F.gelu(F.layer_norm(x, (8,), weight, bias))


def operands(place: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((3, 4, 8), (8,), (8,))
    x, weight, bias = (torch.randn(shape, dtype=torch.float64, generator=generator).to(place) for shape in shapes)
    return x, weight, bias


# Differentiation and transforms -----------------------------------------------------------------------------------------


def gradients_of_gradients(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    given = [t.clone().requires_grad_() for t in (x, weight, bias)]
    first = torch.autograd.grad(both(*given).sin().sum(), given, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), given)


def batched_gradients(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    x = x.clone().requires_grad_()
    y = both(x, weight, bias)
    return torch.autograd.grad(y, x, torch.stack([torch.ones_like(y), y.detach()]), is_grads_batched=True)


def dual(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        return tuple(
            torch.autograd.forward_ad.unpack_dual(both(torch.autograd.forward_ad.make_dual(x, x.flip(0)), weight, bias))
        )


def jagged(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    nested = torch.nested.nested_tensor([x[0, :2], x[1, :3]], layout=torch.jagged, requires_grad=True)
    y = both(nested, weight, bias)
    y.values().sin().sum().backward()
    assert nested.grad is not None
    return y.values().detach(), nested.grad.values()


def inference(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    with torch.inference_mode():
        return both(x.clone(), weight, bias)


ROADS: dict[str, Callable[..., Any]] = {
    "jvp": lambda x, w, b: torch.func.jvp(both, (x, w, b), (x.flip(0), w.flip(0), b)),
    "vmap": lambda x, w, b: torch.vmap(both, (0, None, None))(x, w, b),
    "vmap of weights": lambda x, w, b: torch.vmap(both)(x, torch.stack([w, b, w]), torch.stack([b, w, b])),
    "grad": lambda x, w, b: torch.func.grad(lambda *a: both(*a).sin().sum(), (0, 1, 2))(x, w, b),
    "vmap of grad": lambda x, w, b: torch.vmap(torch.func.grad(lambda a: both(a, w, b).sin().sum()))(x),
    "hessian": lambda x, w, b: torch.func.hessian(lambda a: both(a, w, b).sum())(x[0, 0]),
    "a gradient of a gradient": gradients_of_gradients,
    "is_grads_batched": batched_gradients,
    "forward mode": dual,
    "jagged": jagged,
    "the negative bit": lambda x, w, b: both(torch.complex(b, x).conj().imag, w, b),
    "inference mode": inference,
    "a checkpoint": lambda x, w, b: torch.autograd.grad(
        torch.utils.checkpoint.checkpoint(both, x.clone().requires_grad_(), w.requires_grad_(), b, use_reentrant=False)
        .sin()
        .sum(),
        [w],
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("road", ROADS)
def test_a_road_gives_what_it_gives_without(place: str, road: str) -> None:
    wanted = tree_leaves(ROADS[road](*operands(place)))
    with inside(place) as launches:
        found = tree_leaves(ROADS[road](*operands(place)))
    assert launches, "no kernel of this project's ran"
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_strided_nested_tensors_stay_pytorchs_where_they_are_not_plain() -> None:
    x, weight, bias = operands("cpu")
    with pytest.warns(UserWarning, match="prototype"):
        nested = torch.nested.nested_tensor([x[0, :2], x[1, :3]])
    wanted = both(nested, weight, bias).unbind()
    with inside("cpu"):
        found = both(nested, weight, bias).unbind()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


# Graphs -----------------------------------------------------------------------------------------------------------------


class Never(AssertionError):
    """A kernel of this project's was reached."""


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of native() raise."""

    def raises(*args: Any) -> Any:
        raise Never

    for name in ("gelu_body", "gelu_backward_body", "layer_norm_body", "layer_norm_backward_body"):
        monkeypatch.setattr(aten, name, raises)


def graphs(x: Tensor, weight: Tensor, bias: Tensor, dynamic: bool) -> list[str]:
    """The forward and the backward graph that AOTAutograd hands to a compiler."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found: list[str] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(module.print_readable(print_output=False))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, dynamic=dynamic, backend=aot_autograd(fw_compiler=compiler))
    given = [t.clone().requires_grad_() for t in (x, weight, bias)]
    compiled(*given).sum().backward()
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_graphs_are_the_same(dynamic: bool) -> None:
    wanted = graphs(*operands("cpu"), dynamic)
    assert len(wanted) == 2
    with inside("cpu"):
        found = graphs(*operands("cpu"), dynamic)
    assert found == wanted


@pytest.mark.parametrize("place", PLACES)
def test_inductor_generates_its_own_kernels(place: str) -> None:
    from torch._inductor.utils import run_and_get_code

    def code() -> tuple[Tensor, str]:
        torch._dynamo.reset()
        y, (text,) = run_and_get_code(torch.compile(both, fullgraph=True), *operands(place))
        torch._dynamo.reset()
        return y, text.partition("\n")[2].partition("async_compile.wait")[0]  # the first line counts compilations

    with torch._inductor.config.patch(fx_graph_cache=False):
        wanted, expected = code()
        with inside(place) as launches:
            found, text = code()
    assert not launches
    assert text == expected
    torch.testing.assert_close(found, wanted, atol=0, rtol=0)


def test_a_compiled_function_may_open_a_block() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def inner(x: Tensor) -> Tensor:
        with native(["cpu"]):
            return F.gelu(x)

    x = torch.randn(5)
    torch.testing.assert_close(inner(x), F.gelu(x))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_exported_programs_are_the_same() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.rms, self.act = nn.LayerNorm(8), nn.RMSNorm(8), nn.GELU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.rms(self.norm(x)))

    x, model = torch.randn(3, 8), Model()

    def exported() -> list[str]:
        program = torch.export.export(model, (x,))
        return [str(program.graph), str(program.run_decompositions().graph)]

    wanted = exported()
    with inside("cpu") as launches:
        assert exported() == wanted
    assert not launches


@pytest.mark.usefixtures("unreachable")
def test_fake_and_meta_tensors_never_reach_a_kernel() -> None:
    from torch._subclasses import FakeTensorMode

    with inside("cpu"), native():
        with FakeTensorMode():
            x, weight = torch.randn(3, 8, requires_grad=True), torch.ones(8)
            y = both(x, weight, weight)
            y.sum().backward()
            assert y.shape == (3, 8)
            # A build of PyTorch without CUDA has no fake layer norm on a GPU.
            assert F.gelu(torch.randn(3, 8, device="cuda")).device.type == "cuda"
        meta = [t.to("meta") for t in operands("cpu")]
        assert both(*meta).is_meta
        with pytest.raises(Never):
            both(*operands("cpu"))


def test_a_dispatch_mode_sees_the_same_operators() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def seen() -> list[str]:
        x, weight, bias = (t.requires_grad_() for t in operands("cpu"))
        with Seen() as mode:
            both(x, weight, bias).sum().backward()
        return mode.names

    wanted = seen()
    with inside("cpu") as launches:
        found = seen()
    assert len(launches) >= 4
    # Inside a kernel the mode is off, so that it sees ATen's operators alone, and not what the kernel calls.
    assert found == wanted


# Distributed tensors ------------------------------------------------------------------------------------------------------


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two ranks of which this process is one, and whose collectives do nothing."""
    import torch.distributed as dist
    from torch.distributed.tensor import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def test_dtensors_keep_their_placements(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def sharded() -> list[Any]:
        of = [Shard(0)], [Replicate()], [Replicate()]
        # Without a source rank, each rank has its piece of its own tensor. The group communicates nothing.
        given = [distribute_tensor(t, mesh, p, src_data_rank=None) for t, p in zip(operands("cpu"), of, strict=True)]
        x, weight, bias = (t.detach().requires_grad_() for t in given)
        y = both(x, weight, bias)
        y.to_local().sin().sum().backward()
        found = [y, x.grad, weight.grad, bias.grad]
        return [*(t.placements for t in found), *(t.to_local().detach() for t in found)]

    wanted = sharded()
    with inside("cpu") as launches:
        found = sharded()
    assert len(launches) >= 4
    assert found[:4] == wanted[:4]
    for a, b in zip(found[4:], wanted[4:], strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


class FirstPart:
    """Leaves the first rank its part of its own gradients. PyTorch 2.11's fake group would not write the result."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *_: Any, **__: Any) -> None:
        output_tensor.copy_(input_tensor[: output_tensor.numel()])


def test_fsdp_trains_alike(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    def step() -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)).double()
        fully_shard(model, mesh=mesh).set_custom_reduce_scatter(FirstPart())
        y = model(operands("cpu")[0][0]) + 0.0
        y.sin().sum().backward()
        return [y.detach(), *(p.grad.to_local() for p in model.parameters())]

    wanted = step()
    with inside("cpu") as launches:
        found = step()
    assert len(launches) >= 4
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_many_ranks_in_one_process_agree(mesh: Any) -> None:
    local = pytest.importorskip("torch.distributed._local_tensor")
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def gathered() -> Tensor:
        whole = operands("cpu")  # made here: each rank would draw numbers of its own
        with local.LocalTensorMode(2):
            of = [Shard(1)], [Replicate()], [Replicate()]
            given = [distribute_tensor(t, mesh, p, src_data_rank=None) for t, p in zip(whole, of, strict=True)]
            found: Tensor = both(*given).full_tensor().reconcile()
            return found

    with inside("cpu") as launches:
        torch.testing.assert_close(gathered(), both(*operands("cpu")), atol=1e-12, rtol=1e-12)
    assert launches
