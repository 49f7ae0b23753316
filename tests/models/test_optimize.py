"""optimize(): a model computes the same results by the operators, and is otherwise unchanged."""

import copy
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cupyops.torch import optimize
from tests import preloaded
from tests.support import alike

from .calls import Calls, in_graph
from .stand_ins import (
    HIDDEN,
    MODELS,
    WIDTH,
    CastNorm,
    ChannelsNorm,
    EncoderLayer,
    FlaggedNorm,
    Mlp,
    PostNorm,
    PreNorm,
    RootNorm,
    model,
)

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN_GATES = ("swiglu", "swiglu_of_halves", "reglu")  # without them, PyTorch computes SiLU and ReLU
ROOT = Path(__file__).parents[2]


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, the gradient of the input, and those of the parameters."""
    x = x.detach().requires_grad_()
    y = module(x)
    wanted = [x, *module.parameters()]
    return [y, *torch.autograd.grad((y * y.detach().cos()).sum(), wanted)]


@contextmanager
def autocast_of_both() -> Iterator[None]:
    """Autocast to bfloat16 on a CPU, whose code asks about autocast on a GPU, too."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            yield
    finally:
        torch.set_autocast_enabled("cuda", before)


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_it_computed(name: str, backend: str, device: str) -> None:
    module = model(name, device=device, dtype=torch.float64)
    x = torch.randn(4, 3, WIDTH, device=device, dtype=torch.float64)
    wanted = gradients(module, x)
    optimize(module)
    for got, want in zip(gradients(module, x), wanted, strict=True):
        # A stand-in computes its root mean square in float32.
        torch.testing.assert_close(
            got,
            want,
            **(
                {"rtol": 1e-5, "atol": 1e-5}
                if name in ("norms", "decoder layer", "attention") or "diffusion" in name
                else {}
            ),
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_model_calls_the_operators_and_no_other(name: str) -> None:
    """An operator that is found and not called, or called compared with PyTorch's own."""
    module = model(name)
    optimize(module)
    with Calls() as calls, torch.no_grad():
        module(torch.randn(4, 3, WIDTH))
    assert dict(calls.counts) == MODELS[name][1]


@pytest.mark.parametrize("name", MODELS)
def test_without_fuse_each_module_calls_its_own_operator(name: str) -> None:
    module = model(name)
    report = optimize(module, fuse=False)
    fused = {"linear_gelu", "add_layer_norm", "add_rms_norm", "swiglu", "geglu", "reglu", "adaptive_layer_norm"}
    fused |= {"gated_add", "add_adaptive_layer_norm"}
    assert not {site.operator for site in report.replaced} & fused
    with Calls() as calls, torch.no_grad():
        module(torch.randn(4, 3, WIDTH))
    wanted = Counter(MODELS[name][1])
    norms = (("add_layer_norm", ("layer_norm",)), ("add_rms_norm", ("rms_norm",)))
    norms = (*norms, *((f"{add}adaptive_layer_norm", ("layer_norm",)) for add in ("", "add_")), ("gated_add", ()))
    gates = (("geglu_tanh", ("gelu",)), ("geglu_of_halves", ("gelu",)), *((f, ()) for f in PLAIN_GATES))
    for operator, parts in (("linear_gelu", ("aten.addmm", "gelu")), *norms, *gates):
        wanted.update(dict.fromkeys(parts, wanted.pop(operator, 0)))
    assert calls.counts == +wanted


@pytest.mark.parametrize("made", [lambda: Mlp(dropout=0.5), lambda: PostNorm(0.5), lambda: EncoderLayer(0.5)])
def test_dropout_follows_the_mode_after_the_change(made: Any) -> None:
    """A traced graph would keep the mode that the model had while it was traced."""
    module, x = made().double(), torch.randn(4, 3, WIDTH, dtype=torch.float64)
    results = []
    for optimised in (False, True):
        if optimised:
            optimize(module.train())
        for mode in (True, False):
            torch.manual_seed(1)
            results.append(module.train(mode)(x))
    torch.testing.assert_close(results[2:], results[:2])
    assert not torch.equal(results[2], results[3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_the_dtype_of_the_result_stays(name: str, dtype: torch.dtype) -> None:
    module, x = model(name, dtype=dtype), torch.randn(4, 3, WIDTH, dtype=dtype)
    wanted = module(x)
    optimize(module)
    got = module(x)
    assert got.dtype is wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=4 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("rows", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("made", [nn.RMSNorm, RootNorm])
def test_a_weight_of_another_dtype_promotes_the_result_as_before(made: Any, rows: torch.dtype) -> None:
    """The operator keeps the dtype of the rows. A module in elementary operations promotes, and PyTorch's own in some versions."""
    weight = torch.float32 if rows is torch.bfloat16 else torch.bfloat16
    module, x = made(WIDTH).to(weight), torch.randn(2, WIDTH, dtype=rows)
    wanted = module(x)
    optimize(module)
    assert alike(module(x), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_under_autocast_results_have_the_dtypes_they_had(name: str, dtype: torch.dtype) -> None:
    module, x = model(name, device="cuda"), torch.randn(4, 3, WIDTH, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype):
        wanted = module(x)
        optimize(module)
        got = module(x)
    assert got.dtype is wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=8 * torch.finfo(dtype).eps, atol=16 * torch.finfo(dtype).eps)
    for a, b in zip(*(torch.autograd.grad(y.float().sum(), x) for y in (got, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("made", [FlaggedNorm, CastNorm, ChannelsNorm, nn.LayerNorm])
def test_under_autocast_a_norm_of_16_bits_calls_the_operator_as_its_forward_calls_pytorchs(made: Any) -> None:
    """The dtype of the result depends on its forward: PyTorch's function returns float32 under autocast."""
    module, x = made(WIDTH), torch.randn(2, WIDTH, 3, WIDTH, dtype=torch.bfloat16)
    with autocast_of_both():
        wanted = gradients(module, x)
        optimize(module)
        with Calls() as calls:
            got = gradients(module, x)
    assert calls.ours["layer_norm"] == 1
    assert not calls.counts["aten.native_layer_norm"]
    assert [y.dtype for y in got] == [y.dtype for y in wanted]
    for a, b in zip(got, wanted, strict=True):
        # On a CPU, PyTorch rounds the statistics to 16 bits.
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 * float(b.detach().abs().max()))


AUTOCAST = ["convolutions", "pre-norm", "post-norm", "encoder layer", "channels first", "attention", "partial rotary"]


@pytest.mark.parametrize("name", AUTOCAST)
def test_under_autocast_a_model_calls_the_operators_and_no_other(name: str) -> None:
    module, x = model(name), torch.randn(4, 3, WIDTH)
    with autocast_of_both():
        wanted = gradients(module, x)
        optimize(module)
        with Calls() as calls:
            got = gradients(module, x)
    assert {operator for operator in calls.counts if "." in operator} <= {"aten.addmm"}
    assert calls.ours["rotary_embedding"] == MODELS[name][1].get("rotary_embedding", 0)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


# What stays -----------------------------------------------------------------------------------------------------------


def inside(module: nn.Module) -> Iterator[Any]:
    """Everything that the modules of a model hold, by identity."""
    for m in module.modules():
        yield (
            m,
            type(m),
            {k: (v, {i: id(x) for i, x in v.items()} if isinstance(v, dict) else v) for k, v in vars(m).items()},
        )


def tied() -> nn.Module:
    module = nn.Sequential(PreNorm(), PreNorm(), nn.Linear(WIDTH, WIDTH, dtype=torch.float64))
    module[1].attn.weight = module[0].attn.weight
    module[0].norm1.register_forward_hook(lambda *_: None)
    module[0].norm2.register_buffer("more", torch.zeros(1))
    module[1].eval()
    return module


def test_nothing_but_classes_changes_and_undo_leaves_no_trace() -> None:
    module = tied()
    before, keys, text = list(inside(module)), list(module.state_dict()), repr(module)
    report = optimize(module)
    for (m, cls, content), (same, old, held) in zip(inside(module), before, strict=True):
        assert m is same
        assert isinstance(m, old)
        assert (cls.__name__, cls.__qualname__, cls.__module__) == (old.__name__, old.__qualname__, old.__module__)
        assert content == held
    assert list(module.state_dict()) == keys
    assert repr(module) == text
    assert report.replaced
    report.undo()
    assert list(inside(module)) == before
    report.undo()
    assert list(inside(module)) == before


def test_a_with_block_undoes_the_change_also_after_an_error() -> None:
    module = Mlp()
    before = list(inside(module))
    with pytest.raises(KeyError), optimize(module):
        assert list(inside(module)) != before
        raise KeyError
    assert list(inside(module)) == before


def test_undo_names_classes_that_something_else_has_changed_and_restores_the_others() -> None:
    module = Mlp()
    module.norm = nn.LayerNorm(HIDDEN)
    report = optimize(module)
    module.act.__class__ = type("Other", (type(module.act),), {})
    with pytest.raises(RuntimeError, match=r"^undo: something else has changed the class of 1 modules .*: Other; "):
        report.undo()
    assert type(module) is Mlp
    assert type(module.norm) is nn.LayerNorm


PLAIN = """
import sys, io
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cupyops", "autograd_bridge", "kernels_cu"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import pickle, torch
for file in sys.argv[1:]:
    for protocol in (0, 2, 5):
        module = pickle.load(open(f"{file}.{protocol}", "rb"))
        assert type(module) is torch.nn.Sequential and type(module[0]) is torch.nn.Linear, module
        assert type(module[1]) is torch.nn.GELU and module[1].approximate == "tanh"
    print(module(torch.ones(1, 16)).sum().item())
print(torch.load(f"{file}.pt", weights_only=False))
"""


def test_a_pickled_model_is_read_without_this_package(tmp_path: Path) -> None:
    module = model("sequential")
    wanted = module(torch.ones(1, WIDTH)).sum().item()
    optimize(module)
    file = tmp_path / "model"
    for protocol in (0, 2, 5):
        (tmp_path / f"model.{protocol}").write_bytes(pickle.dumps(module, protocol))
    torch.save(module, f"{file}.pt")
    ran = preloaded.run(["-c", PLAIN, str(file)])
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout.split()[0]) == pytest.approx(wanted, rel=1e-5)


def test_a_deep_copy_is_optimised_and_shares_nothing() -> None:
    module = tied()
    optimize(module)
    twin = copy.deepcopy(module)
    assert [type(m) for m in twin.modules()] == [type(m) for m in module.modules()]
    assert twin[0].attn.weight is twin[1].attn.weight
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in module.parameters()}
    assert [m.training for m in twin.modules()] == [m.training for m in module.modules()]


class WithCopies(nn.LayerNorm):
    """A module that copies itself in its own way."""

    def __deepcopy__(self, memo: Any) -> "WithCopies":
        twin = WithCopies(self.normalized_shape)
        twin.copied = True
        return twin


def test_a_deep_copy_follows_the_module_s_own_way() -> None:
    module = nn.Sequential(WithCopies(2))
    optimize(module)
    twin = copy.deepcopy(module)
    assert twin[0].copied
    assert type(twin[0]) is type(module[0]) is not WithCopies


# Around it ------------------------------------------------------------------------------------------------------------


def test_a_model_on_the_meta_device_is_optimised_and_gets_its_weights_later() -> None:
    with torch.device("meta"):
        module = PreNorm()
        optimize(module)
        assert module(torch.empty(2, WIDTH)).is_meta
    plain = PreNorm()
    module.to_empty(device="cpu").load_state_dict(plain.state_dict())
    x = torch.randn(2, WIDTH)
    torch.testing.assert_close(module(x), plain(x))


def test_a_fake_mode_and_a_default_dtype_do_not_hide_what_a_module_computes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        module = MODELS["conv1d"][0]()
        wanted = [site.operator for site in optimize(module).replaced]
    assert "linear_gelu" in wanted
    torch.set_default_dtype(torch.float64)
    try:
        assert [site.operator for site in optimize(model("conv1d")).replaced] == wanted
    finally:
        torch.set_default_dtype(torch.float32)


class NoisyGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x) + torch.rand_like(x)


def test_recognising_leaves_the_generator_as_it_was() -> None:
    module = nn.Sequential(*(model(name) for name in MODELS), NoisyGELU())
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    optimize(module)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("name", ["pre-norm", "post-norm", "conv1d", "functions", "sequential"])
def test_a_compiled_model_has_one_graph_and_calls_the_operators(name: str) -> None:
    module, x = model(name), torch.randn(4, 3, WIDTH)
    wanted, graphs = module(x), []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    optimize(module)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend=backend)(x), wanted)
    (graph,) = graphs
    # Inductor fuses a function for rotary embedding with the operations beside it.
    wanted_calls = {o: n for o, n in MODELS[name][1].items() if "." not in o and o != "rotary_embedding"}
    assert Counter(in_graph(graph)) == wanted_calls


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("encoder layer", "norms", "channels first")])
def test_fx_and_export_see_the_module_as_it_was_written(name: str) -> None:
    """A proxy is not a tensor of PyTorch: an operator called with a proxy raises."""
    module, x = model(name), torch.randn(4, 3, WIDTH)
    wanted = module(x)
    optimize(module)
    if name not in ("conv1d",):  # its sizes are not known to a proxy
        torch.testing.assert_close(torch.fx.symbolic_trace(module)(x), wanted)
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), wanted)


def test_transforms_differentiate_and_batch_an_optimised_model() -> None:
    module, x = model("pre-norm", dtype=torch.float64), torch.randn(2, 3, WIDTH, dtype=torch.float64)
    parameters = dict(module.named_parameters())

    def loss(parameters: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, (x,)).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))
    wanted = per_sample(parameters, x)
    optimize(module)
    torch.testing.assert_close(per_sample(parameters, x), wanted)


def test_data_parallel_is_looked_through_and_names_are_the_model_s() -> None:
    module = PreNorm()
    report = optimize(nn.DataParallel(module), include="mlp*")
    assert {site.name for site in report.replaced} == {"mlp", "mlp.act"}
    assert report.notes == ()
