"""Results that operators of a compiled graph share by ``common=``: saved bytes, values, and wrong declarations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autograd_bridge as bridge
from cupyops.torch import Operator
from cupyops.torch.fusions.rewrite import FUSIONS, rewrite

from . import stand_ins
from .test_recompute import WIDTH, backward_of, saved_tensors
from .test_recomputed_results import gradients, halves, halves_backward
from .test_saved_bytes import ROWS, Stack, counted
from .test_saved_bytes import WIDTH as WIDE


class Norms(nn.Module):
    """Two norms of the same rows, whose results matrix products read."""

    def __init__(self, *norms: nn.Module) -> None:
        super().__init__()
        self.first, self.norms = nn.Linear(WIDTH, WIDTH), nn.ModuleList(norms)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in norms)
        for parameter in self.norms.parameters():
            nn.init.normal_(parameter)

    def results(self, x: Tensor) -> list[Tensor]:
        return [norm(x) for norm in self.norms]

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        y, z = (branch(result) for branch, result in zip(self.branches, self.results(x), strict=True))
        return x + y.sin() + z.cos()


class Sums(Norms):
    """The first of the norms adds, and the other one reads the sum."""

    def results(self, x: Tensor) -> list[Tensor]:
        y, s = self.norms[0](x, x.tanh())
        return [y, self.norms[1](s)]


class Scaled(Norms):
    """The backward recomputes the results of the norms."""

    def results(self, x: Tensor) -> list[Tensor]:
        y, z = super().results(x)
        return [y * self.branches[0](x), z * self.branches[1](x)]


class Checkpointed(Norms):
    """The second norm is within a checkpoint."""

    def results(self, x: Tensor) -> list[Tensor]:
        return [self.norms[0](x), checkpoint(self.norms[1], x, use_reentrant=False)]  # type: ignore[list-item]


def norm(**options: Any) -> nn.Module:
    return bridge.LayerNorm(WIDTH, **options)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "layer_norm twice": lambda: Norms(norm(), norm()),
    "one without parameters": lambda: Norms(norm(), norm(elementwise_affine=False)),
    "add_layer_norm and layer_norm": lambda: Sums(bridge.AddLayerNorm(WIDTH), norm()),
}


def statistics(module: nn.Module, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [x for x in saved_tensors(module, dtype) if x.size(-1) == 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_norms_of_the_same_rows_save_their_statistics_once(name: str, dtype: torch.dtype) -> None:
    """The forward saved a pair for each of them, 3 MiB in Pythia."""
    assert len(statistics(MODULES[name](), dtype)) == 1


def test_results_that_the_backward_recomputes_have_statistics_of_their_own() -> None:
    assert len(statistics(Scaled(norm(), norm()))) == 2


# Inductor gets the graph that the partitioner makes. Its code is run by test_recomputed_results.py and test_compiled_own_norms.py.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "backend", [pytest.param("inductor", marks=pytest.mark.thorough), "aot_eager_decomp_partition"]
)
@pytest.mark.parametrize("name", MODULES)
def test_values_and_gradients_are_those_of_eager_mode(name: str, backend: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name]().double(), torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend, dynamic=backend == "inductor")
    torch.testing.assert_close(gradients(compiled, module, x), gradients(module, module, x))


class Pairs(Norms):
    """Norms of rows, and of pairs of rows."""

    def results(self, x: Tensor) -> list[Tensor]:
        return [norm(x.view(-1, 2, WIDTH)).view(x.shape) for norm in self.norms]


class OtherRows(Norms):
    def results(self, x: Tensor) -> list[Tensor]:
        return [self.norms[0](x), self.norms[1](x.tanh())]


@pytest.mark.parametrize(
    "module",
    [
        lambda: Norms(norm(), norm(eps=0.5)),
        lambda: Pairs(norm(), bridge.LayerNorm((2, WIDTH))),
        lambda: OtherRows(norm(), norm()),
    ],
    ids=["eps", "normalized_shape", "rows"],
)
def test_other_statistics_are_not_shared(module: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    assert len(statistics(module())) == 2
    x, double = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True), module().double()
    torch.compiler.reset()
    compiled = torch.compile(double, fullgraph=True, backend="aot_eager_decomp_partition")
    torch.testing.assert_close(gradients(compiled, double, x), gradients(double, double, x))


def test_a_norm_within_a_checkpoint_has_its_own_statistics() -> None:
    """They are computed again in the backward, as the checkpoint's policy says."""
    torch.manual_seed(0)
    module = Checkpointed(norm(), norm())
    nodes = [n for n in backward_of(module, torch.float32).nodes if "layer_norm_backward" in str(n.target)]
    assert len({n.args[2] for n in nodes}) == 2
    x, double = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True), module.double()
    torch.compiler.reset()
    compiled = torch.compile(double, fullgraph=True, backend="aot_eager_decomp_partition")
    torch.testing.assert_close(gradients(compiled, double, x), gradients(double, double, x))


def neox() -> nn.Module:
    """Two blocks of GPT-NeoX, x + attention(norm(x)) + mlp(norm(x)), without the last norm of the model."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": WIDE, "num_attention_heads": 2, "intermediate_size": 4 * WIDE, "vocab_size": 8}
    config = transformers.GPTNeoXConfig(num_hidden_layers=2, use_cache=False, **sizes)
    model = transformers.GPTNeoXModel(config)
    model.final_layer_norm = nn.Identity()

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Any:
            return self.model(inputs_embeds=x).last_hidden_state

    return Blocks()


@pytest.mark.parametrize("mode", ["float32", "bfloat16", "autocast"])
def test_blocks_with_parallel_branches_save_what_pytorchs_save(mode: str) -> None:
    ours, theirs = counted(mode, neox)
    assert ours.activations <= theirs.activations
    # On a CPU, PyTorch saves mean and rstd of 16-bit rows in 16 bits. In float32, it saves one of the two in the last block.
    more = 2 * ROWS * 2 * 2 if mode == "bfloat16" else ROWS * 4
    assert ours.statistics == theirs.statistics + more


class Parallel(nn.Module):
    """A block as of GPT-NeoX, x + attention(first(x)) + mlp(second(x))."""

    def __init__(self, first: type[nn.Module], second: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.mlp = first(WIDE), second(WIDE), stand_ins.Mlp()
        self.query, self.value = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        q, v = (part(y).unsqueeze(1) for part in (self.query, self.value))
        attended = nn.functional.scaled_dot_product_attention(q, q, v).squeeze(1)
        total: Tensor = self.mlp(self.second(x)) + attended + x
        return total


@pytest.mark.sample(1)
@pytest.mark.parametrize("kinds", [(nn.LayerNorm, nn.LayerNorm), (nn.RMSNorm, nn.RMSNorm), (nn.RMSNorm, nn.LayerNorm)])
def test_norms_of_one_sum_save_the_sum_alone_with_fusions(
    kinds: tuple[type[nn.Module], type[nn.Module]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For PyTorch's norm of an operator's result, the forward saved float32 rows: 1.4 GiB in Pythia."""
    monkeypatch.setattr(stand_ins, "WIDTH", WIDE)
    monkeypatch.setattr(stand_ins, "HIDDEN", 4 * WIDE)

    def saved(before: Callable[[Any], Any] = lambda graph: None) -> int:
        torch.manual_seed(0)
        blocks = Stack(False, *(Parallel(*kinds) for _ in range(3)))
        tensors = saved_tensors(blocks, torch.bfloat16, WIDE, before)
        return sum(x.nbytes for x in tensors if x.numel() >= ROWS * WIDE)

    assert saved(lambda graph: rewrite(graph, FUSIONS, ("cpu",))) <= saved()


def scaled(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    y, largest = halves(x)
    return y * factor, largest


def scaled_backward(grad_y: Tensor, x: Tensor, largest: Tensor, factor: float) -> Tensor:
    return halves_backward(grad_y * factor, x, largest)


def own(name: str, **options: Any) -> Operator:
    schema = f"{name}(Tensor x, float factor) -> (Tensor y, Tensor largest)"
    return Operator(schema, scaled, reference=scaled, backward=scaled_backward, **options)


class Own(nn.Module):
    def __init__(self, op: Operator, factor: float) -> None:
        super().__init__()
        self.op, self.factor = op, factor

    def forward(self, x: Tensor) -> Any:
        return self.op(x, self.factor)[0]


LARGEST = {"largest": ("largest", "x")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, {"recompute": lambda x, factor, largest: x / largest * factor}], ids=["", "recompute"]
)
def test_operators_of_a_user_share_their_results(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ops = [own(f"tests::scaled_{i}", common=LARGEST, **options) for i in range(2)]
    other = own("tests2::scaled", common=LARGEST, **options)
    silent = own("tests::scaled_silent", **options)
    for kind in (Norms, Scaled):
        module = kind(Own(ops[0], 2.0), Own(ops[1], 3.0))
        # A result that the backward recomputes reads the result of its own operator.
        assert len(statistics(module)) == 1 + (kind is Scaled and "recompute" in options)
        assert len(statistics(kind(Own(ops[0], 2.0), Own(other, 3.0)))) == 2, "the namespaces differ"
        assert len(statistics(kind(Own(ops[0], 2.0), Own(silent, 3.0)))) == 2
        x = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True)
        module.double()
        torch.compiler.reset()
        compiled = torch.compile(module, fullgraph=True)
        torch.testing.assert_close(gradients(compiled, module, x), gradients(module, module, x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_a_call_in_a_backward_computes_its_own_result() -> None:
    """The forward would save one more tensor for it."""

    def weighted(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, largest = halves(x)
        return y * weight, largest

    schema = "(Tensor x, Tensor weight) -> (Tensor y, Tensor largest)"
    declared = Operator(f"tests::weighted{schema}", weighted, reference=weighted, common=LARGEST)
    op = declared.op  # Dynamo of PyTorch 2.10 knows no Operator within a Function

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            y, largest = op(x, torch.ones_like(x))
            return y * largest

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            y, largest = op(x, grad)
            return y * largest

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Any:
            return Twice.apply(self.first(x)).sin()  # type: ignore[no-untyped-call]

    assert not statistics(Module())


def test_a_result_of_another_dtype_is_not_shared() -> None:
    def double(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        y, largest = scaled(x, factor)
        return y, largest.double()

    schema = "tests::scaled_double(Tensor x, float factor) -> (Tensor y, Tensor largest)"
    wide = Operator(schema, double, reference=double, backward=scaled_backward, common=LARGEST)
    assert len(statistics(Norms(Own(own("tests::scaled_single", common=LARGEST), 2.0), Own(wide, 3.0)))) == 2


def test_a_forward_may_read_a_shared_result() -> None:
    """It reads the first one, which stands in front of every reader of the others."""
    op = own("tests::scaled_read", common=LARGEST)

    class Read(Norms):
        def results(self, x: Tensor) -> list[Tensor]:
            y, m = op(x, 2.0)
            y = y * m.sin()
            z, n = op(x, 3.0)
            return [y, z * n.cos()]

    torch.manual_seed(0)
    module, x = (
        Read(nn.Identity(), nn.Identity()).double(),
        torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True),
    )
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager_decomp_partition")
    torch.testing.assert_close(gradients(compiled, module, x), gradients(module, module, x))


def test_a_result_that_the_program_gets_has_memory_of_its_own() -> None:
    op = own("tests::scaled_returned", common=LARGEST)
    x = torch.randn(4, WIDTH, requires_grad=True)

    def both(x: Tensor) -> Any:
        x = x.sin()
        (y, a), (z, b) = op(x, 2.0), op(x, 3.0)
        return y * z, a, b

    torch.compiler.reset()
    _, a, b = torch.compile(both, fullgraph=True, backend="aot_eager_decomp_partition")(x)
    expected = b.clone()
    a.zero_()
    torch.testing.assert_close(b, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "common",
    [
        {"biggest": ("largest", "x")},
        {"largest": ("largest", "z")},
        {"largest": ("largest", "largest")},
        {"largest": ("largest",)},
        {"largest": ()},
        {"largest": "largest"},
        {"largest": 3},
        ["largest"],
        {"largest": ("largest", 3)},
    ],
    ids=["no result", "no input", "itself", "no values", "empty", "text", "number", "list", "number of an input"],
)
def test_wrong_declarations_are_refused(common: Any) -> None:
    words = (
        "scaled_wrong: `common` must name one of several results, a computation, and the inputs and other results that"
    )
    with pytest.raises(ValueError, match=words):
        own("tests::scaled_wrong", common=common)


def test_an_operator_with_one_result_has_nothing_to_share() -> None:
    with pytest.raises(ValueError, match="`common` must name one of several results, a computation, and"):
        Operator("tests::single(Tensor x) -> Tensor y", torch.sin, common={"y": ("sine", "x")})


@pytest.mark.parametrize(
    "wrong", [{"version": 1}, {"common": {"m": ("k", "x")}}, {"recompute": lambda q: q}, {"inplace": 3}]
)
def test_a_refused_declaration_leaves_the_operator_of_that_name(wrong: dict[str, Any]) -> None:
    op, x = own("tests::scaled_kept"), torch.randn(4, WIDTH)
    with pytest.raises(ValueError, match=f"scaled_kept: `{next(iter(wrong))}` must"):
        own("tests::scaled_kept", **wrong)
    assert torch.equal(torch.ops.tests.scaled_kept(x, 2.0)[0], op(x, 2.0)[0])
