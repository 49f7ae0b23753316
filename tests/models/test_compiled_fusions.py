"""Fusions, the backend that finds operations which one operator computes together, in models that nobody edited."""

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

import autograd_bridge as bridge
from cupyops.torch import Fusions
from cupyops.torch.fusions.rewrite import FUSIONS, rewrite
from cupyops.torch.ops.add_layer_norm import add_layer_norm
from cupyops.torch.ops.linear_gelu import linear_gelu
from tests.models.test_compiled import codes_of, lines_of, targets_of

N = 8


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


class PreNorm(nn.Module):
    """A block as of a vision transformer: the sum goes on beside its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.act, self.fc2 = nn.LayerNorm(N), nn.Linear(N, 16), nn.GELU(), nn.Linear(16, N)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.sin(x)
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


class PostNorm(nn.Module):
    """BERT's block: only the norm reads the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(N, N), nn.LayerNorm(N)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(torch.add(self.dense(x), x))
        return y


class PostRMSNorm(nn.Module):
    """The sum is used again after its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(N, N), nn.RMSNorm(N, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dense(x)
        y: Tensor = x + self.norm(x)
        return y


class TwoNorms(nn.Module):
    """GPT-NeoX's block: two norms read one sum, which is used again."""

    def __init__(self, *kinds: type[nn.Module]) -> None:
        super().__init__()
        self.dense = nn.Linear(N, N)
        self.first, self.second = (kind(N, eps=1e-3) for kind in kinds)
        nn.init.normal_(self.second.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dense(x)
        y: Tensor = x + self.first(x).sin() * self.second(x)
        return y


def spelled_tanh(z: Tensor) -> Tensor:
    return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * torch.pow(z, 3.0))))


def spelled_fast(z: Tensor) -> Tensor:
    return 0.5 * z * (1.0 + torch.tanh(z * 0.7978845608 * (1.0 + 0.044715 * z * z)))


def spelled_erf(z: Tensor) -> Tensor:
    return z * 0.5 * (1.0 + torch.erf(z / math.sqrt(2.0)))


class Conv1D(nn.Module):
    """GPT-2's layer: addmm with the transposed weight, and a view of its result."""

    def __init__(self, gelu: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.gelu = nn.Parameter(torch.randn(N, 16)), nn.Parameter(torch.randn(16)), gelu

    def forward(self, x: Tensor) -> Tensor:
        z = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return self.gelu(z.view(*x.shape[:-1], 16))


class Gated(nn.Module):
    """Llama's gated unit, and the halves of one tensor as in ModernBERT."""

    def __init__(self, act: Callable[[Tensor], Tensor], halves: bool = False) -> None:
        super().__init__()
        self.act, self.halves = act, halves
        self.gate, self.up = nn.Linear(N, 2 * N if halves else N), nn.Linear(N, N)

    def forward(self, x: Tensor) -> Tensor:
        if self.halves:
            input, gate = self.gate(x).chunk(2, dim=-1)
            return self.act(input) * gate
        return self.up(x) * self.act(self.gate(x))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Diffusion(nn.Module):
    """DiT's block, and FLUX's, which multiplies in a statement of its own. A sum is the last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(N, elementwise_affine=False) for _ in range(2))
        self.attn, self.mlp, self.condition = nn.Linear(N, N), nn.Linear(N, N), nn.Linear(N, 6 * N)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(3, -1, N)
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.condition(x.mean(1)).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift, scale))
        y = self.norm2(x)
        y = y * (1 + scale_mlp[:, None]) + shift_mlp[:, None]
        y = gate_mlp.unsqueeze(1) * self.mlp(y)
        return (y + x).view(-1, N)


MODELS = {
    "diffusion": (Diffusion, ["add_1: adaptive_layer_norm", "y_1: add_adaptive_layer_norm"]),
    "SwiGLU": (lambda: Gated(nn.SiLU()), ["mul: swiglu"]),
    "SwiGLU, halves": (lambda: Gated(F.silu, halves=True), ["mul: swiglu"]),
    "ReGLU": (lambda: Gated(torch.relu), ["mul: reglu"]),
    "GeGLU": (lambda: Gated(nn.GELU("tanh")), ["mul: geglu"]),
    "GeGLU, erf, halves": (lambda: Gated(spelled_erf, halves=True), ["mul_2: geglu"]),
    "pre-norm": (PreNorm, ["norm: add_layer_norm", "act: linear_gelu"]),
    "post-norm": (PostNorm, ["norm: add_layer_norm"]),
    "RMS norm": (PostRMSNorm, ["norm: add_rms_norm"]),
    "two layer norms": (
        lambda: TwoNorms(nn.LayerNorm, nn.LayerNorm),
        ["first: add_layer_norm", "second: add_layer_norm"],
    ),
    "two RMS norms": (lambda: TwoNorms(nn.RMSNorm, nn.RMSNorm), ["first: add_rms_norm", "second: add_rms_norm"]),
    "RMS, layer norm": (lambda: TwoNorms(nn.RMSNorm, nn.LayerNorm), ["first: add_rms_norm", "second: add_layer_norm"]),
    "Conv1D, tanh": (lambda: Conv1D(spelled_tanh), ["mul_3: linear_gelu"]),
    "Conv1D, tanh, fast": (lambda: Conv1D(spelled_fast), ["mul_5: linear_gelu"]),
    "Conv1D, erf": (lambda: Conv1D(spelled_erf), ["mul_1: linear_gelu"]),
}


def trained(function: Any, model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = function(x)
    y.float().sin().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def close(found: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    assert len(found) == len(right)
    for a, b in zip(found, right, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_they_did(name: str) -> None:
    """Results and all gradients in float64, forward and backward of the found operators among them."""
    make, sites = MODELS[name]
    model = make().double()
    x = torch.randn(2, 3, N, dtype=torch.float64)
    fusions = Fusions(devices="cpu", backend="aot_eager")
    found = trained(torch.compile(model, backend=fusions, fullgraph=True), model, x)
    assert str(fusions).splitlines() == sites
    close(found, trained(model, model, x), 1e-10)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_has_the_dtypes_of_the_two_operations(inside: bool) -> None:
    """Autocast around the compiled call, and autocast in the compiled code."""
    model = nn.Sequential(PreNorm(), PostNorm())
    x = torch.randn(2, 3, N)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y: Tensor = model(x)
        return y

    fusions = Fusions(devices="cpu", backend="aot_eager")
    if inside:
        compiled = torch.compile(run, backend=fusions, fullgraph=True)
    else:
        whole = torch.compile(model, backend=fusions, fullgraph=True)

        def compiled(x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y: Tensor = whole(x)
            return y

    found = trained(compiled, model, x)
    assert [s.where for s in fusions.sites if not s.refusal][-1].endswith("norm")
    assert len(fusions.sites) == 3
    close(found, trained(run, model, x), 2e-2)


def test_symbolic_sizes() -> None:
    model = PreNorm()
    fusions = Fusions(devices="cpu", backend="aot_eager")
    compiled = torch.compile(model, backend=fusions, fullgraph=True, dynamic=True)
    for rows in (2, 5):
        x = torch.randn(rows, 3, N)
        close(trained(compiled, model, x), trained(model, model, x), 1e-5)
    assert len(fusions.sites) == 2, "other sizes are other graphs of the same places"


def test_checkpointed_blocks_are_found() -> None:
    """Dynamo keeps the graph of a checkpointed block apart."""
    model = PreNorm()

    def run(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(model, x, use_reentrant=False)
        return y

    fusions = Fusions(devices="cpu", backend="aot_eager")
    x = torch.randn(2, 3, N)
    close(trained(torch.compile(run, backend=fusions, fullgraph=True), model, x), trained(run, model, x), 1e-5)
    assert len(fusions.sites) == 2


class ModulationsApart(nn.Module):
    """Sums and products that look like those of a diffusion transformer."""

    def forward(self, x: Tensor) -> Tensor:
        g = x[:, :1]
        n = F.layer_norm(x, (N,))
        again = n * (1 + g) + g + n
        other = F.layer_norm(x, (N,)) * (2 + g) + g
        weighted = F.layer_norm(x, (N,), g[0, 0]) * (1 + g) + g
        by_row = F.layer_norm(x, (N,)) * (1 + x) + x
        short = x + g[..., :1] * x
        double = x + g.double() * x
        two = F.layer_norm(x, (3, N)) * (1 + g) + g
        return again + other + weighted + by_row + short + double.to(x.dtype) + two


def test_what_is_no_modulation_stays_apart_and_is_said() -> None:
    model = ModulationsApart()
    fusions = Fusions(devices="cpu", backend="aot_eager")
    x = torch.randn(2, 3, N)
    compiled = torch.compile(model, backend=fusions, fullgraph=True)
    close(trained(compiled, model, x), trained(model, model, x), 1e-5)
    assert [s.refusal for s in fusions.sites] == [
        "the norm or the product is used again",
        "scale and shift have no row for each sample",
        f"its norm is of (3, {N}) and torch.float32",
    ]


class GatesApart(nn.Module):
    """Products of activations that must not become one operation."""

    def forward(self, x: Tensor) -> Tensor:
        again = F.silu(x)
        y = again * x + again
        broadcast = F.gelu(x) * x[0]
        z = x * 1
        act = F.silu(z)
        z.add_(1)
        changed = act * z
        inside = F.relu(x * 1, inplace=True) * x
        same = F.silu(x) * 2 + F.relu(x).square()
        w = x * 2
        squared = (act_of_w := F.silu(w)) * act_of_w
        return y + broadcast + changed + inside + same + squared


def test_products_that_must_stay_apart_stay_and_are_said() -> None:
    model, fusions, x = GatesApart(), Fusions(devices="cpu", backend="aot_eager"), torch.randn(2, 3, N)
    with torch.no_grad():
        found = torch.compile(model, backend=fusions, fullgraph=True)(x)
        torch.testing.assert_close(found, model(x))
    assert [(s.fusion, s.refusal) for s in fusions.sites] == [
        ("swiglu", "the activation is used again"),
        ("geglu", "the product broadcasts"),
        ("swiglu", "something is changed in place between the activation and the product"),
    ]


class Apart(nn.Module):
    """Operations that must not become one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(N, N), nn.LayerNorm(N)

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc(x)
        again = F.gelu(z) + z  # the product is used again
        broadcast = self.norm(x + self.fc.bias)
        scaled = self.norm(torch.add(x, z, alpha=2))
        number = self.norm(x + 1)
        late = F.layer_norm(sum_ := x + z, (N,), (sum_ * 2).mean((0, 1)))
        quick = self.fc(x) * torch.sigmoid(1.702 * self.fc(x))
        beta = F.gelu(torch.addmm(self.fc.bias, x[0], self.fc.weight, beta=2))
        matrix = F.gelu(torch.addmm(x[0][:, :1].expand(-1, N), x[0], self.fc.weight))
        return again + broadcast + scaled + number + late + quick + beta + matrix


def test_what_must_stay_apart_stays_and_is_said() -> None:
    model = Apart()
    fusions = Fusions(devices="cpu", backend="aot_eager")
    x = torch.randn(2, 3, N)
    compiled = torch.compile(model, backend=fusions, fullgraph=True)
    close(trained(compiled, model, x), trained(model, model, x), 1e-5)
    assert [s.refusal for s in fusions.sites] == [
        "the product is used again",
        "the addition broadcasts",
        "its parameters are computed after another use of the sum",
        "it adds a matrix, and not a bias",
    ]
    assert "linear_gelu, left alone: the product is used again" in str(fusions)
    assert repr(fusions) == f"<Fusions: {', '.join(FUSIONS)}; 0 found>"


def test_tensors_that_the_operators_do_not_take_are_left_alone() -> None:
    def refusals(**options: Any) -> set[str]:
        torch.compiler.reset()
        fusions = Fusions(backend="aot_eager", **options)
        torch.compile(PostNorm(), backend=fusions)(torch.randn(2, N))
        return {s.refusal for s in fusions.sites}

    assert refusals() == {"a tensor is on cpu"}, "on a CPU, Inductor's own code is faster"
    assert refusals(devices=("cpu", "cuda")) == {""}
    assert refusals(devices=("cpu",), fusions="linear_gelu") == set()
    names = ", ".join(FUSIONS)
    with pytest.raises(ValueError, match=f"Fusions: `fusions` must be among {names}, got 'gelu'"):
        Fusions("gelu")


def test_nothing_is_computed_twice() -> None:
    """The operations leave the graph, and other uses of the sum read the operator's second result."""
    found = []

    def backend(graph: GraphModule, inputs: Any) -> Any:
        rewrite(graph, ["add_layer_norm", "linear_gelu"], ["cpu"])
        found.extend(n.target for n in graph.graph.nodes if n.op == "call_function")
        return graph

    torch.compile(nn.Sequential(PreNorm(), Conv1D(spelled_erf)), backend=backend, fullgraph=True)(torch.randn(2, 3, N))
    item = operator.getitem
    assert found == [torch.sin, add_layer_norm, item, item, linear_gelu, F.linear, operator.add, linear_gelu]


def test_a_model_without_such_operations_says_so() -> None:
    fusions = Fusions(devices="cpu", backend="aot_eager")
    torch.compile(nn.Linear(N, N), backend=fusions)(torch.randn(2, N))
    assert str(fusions) == "No operations found that an operator computes together."
    assert not fusions.sites


def test_inductor_calls_the_operators_and_other_compilations_do_not() -> None:
    """The code of the fused graph calls the operators directly; the same model without the backend keeps PyTorch's."""
    model, x = PreNorm(), torch.randn(2, 3, N)
    compiled = torch.compile(model, backend=Fusions(devices="cpu"), options={"max-fusion-size": 32}, fullgraph=True)
    with torch.no_grad():
        found, (code,) = codes_of(lambda: compiled(x))
        names = [line.split("'")[1] for line in lines_of(code, "= cupyops_direct(")]
        assert names == ["cupyops::add_layer_norm", "cupyops::linear_gelu"]
        assert not lines_of(code, "torch.ops.cupyops")
        torch.testing.assert_close(found, model(x))
    targets = targets_of(model, x)
    assert F.layer_norm in targets
    assert F.gelu in targets


def test_the_cache_of_graphs_keeps_fused_graphs_apart() -> None:
    """AOTAutograd's cache on disk takes the changed graph, and gives it for the changed graph alone."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    model, x = PostNorm(), torch.randn(2, N)

    def hits(backend: Any) -> tuple[int, int, Tensor]:
        torch.compiler.reset()
        counters.clear()
        with torch.no_grad():
            y = torch.compile(model, backend=backend, fullgraph=True)(x)
        return counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_bypass"], y

    with fresh_cache():
        for backend, right in (
            ("inductor", 0),
            (Fusions(devices="cpu"), 0),
            (Fusions(devices="cpu"), 1),
            ("inductor", 1),
        ):
            hit, bypass, y = hits(backend)
            assert (hit, bypass) == (right, 0)
            torch.testing.assert_close(y, model(x))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("autocast", [False, True])
def test_on_a_gpu_models_train_as_they_did(mode: str, autocast: bool) -> None:
    twins, mixed = TwoNorms(nn.LayerNorm, nn.LayerNorm), TwoNorms(nn.RMSNorm, nn.LayerNorm)
    model = nn.Sequential(PreNorm(), twins, mixed, PostNorm(), Conv1D(spelled_tanh)).cuda()
    fusions = Fusions()
    compiled = torch.compile(model, backend=fusions, mode=mode, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 16, N, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            torch.compiler.cudagraph_mark_step_begin()
            found = [t.clone() for t in trained(compiled, model, x)]
            right = trained(model, model, x)
        if autocast:
            # Gradients of weights are sums with cancellation: bfloat16 moves both results, so float32 is the judge.
            exact = trained(model, model, x)
            assert [t.dtype for t in found] == [t.dtype for t in right]
            for a, b, c in zip(found, right, exact, strict=True):
                assert (a - c).norm() <= 2 * (b - c).norm() + 1e-3 * c.norm()
        else:
            close(found, right, 1e-3)
    assert len([s for s in fusions.sites if not s.refusal]) == 8


def test_operators_stand_for_pytorchs() -> None:
    """Fused graphs compute the same as the operators with the same arguments."""
    model, x = PostNorm(), torch.randn(2, N)
    fusions = Fusions(devices="cpu", backend="aot_eager")
    with torch.no_grad():
        y = torch.compile(model, backend=fusions, fullgraph=True)(x)
        right, _ = bridge.add_layer_norm(model.dense(x), x, N, model.norm.weight, model.norm.bias)
    assert torch.equal(y, right)


SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
PUBLISHED = {
    "Bert": (
        SMALL,
        [
            "embeddings.LayerNorm: add_layer_norm, left alone: the addition broadcasts",
            "encoder.layer.0.attention.output.LayerNorm: add_layer_norm",
            "encoder.layer.0.intermediate.intermediate_act_fn: linear_gelu",
            "encoder.layer.0.output.LayerNorm: add_layer_norm",
        ],
    ),
    "GPT2": (
        {"vocab_size": 99, "n_embd": 32, "n_layer": 1, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0},
        ["h.0.ln_2: add_layer_norm", "h.0.mlp.act: linear_gelu", "ln_f: add_layer_norm"],
    ),
    "Esm": (
        {**SMALL, "pad_token_id": 1, "position_embedding_type": "rotary"},
        [
            "encoder.layer.0.LayerNorm: add_layer_norm",
            "encoder.layer.0.intermediate: linear_gelu",
            "encoder.emb_layer_norm_after: add_layer_norm",
        ],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.filterwarnings("ignore")
def test_models_of_transformers(name: str) -> None:
    """Models with Conv1D and with spellings of GELU of their own, as they are published."""
    transformers = pytest.importorskip("transformers")
    options, sites = PUBLISHED[name]
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options)).eval()
    fusions, tokens = Fusions(devices="cpu", backend="aot_eager"), torch.randint(0, 90, (2, 8))
    with torch.no_grad():
        found, right = torch.compile(model, backend=fusions)(tokens)[0], model(tokens)[0]
    torch.testing.assert_close(found, right)
    assert str(fusions).splitlines() == sites
