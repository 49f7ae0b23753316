"""Modules are recognised by their results; and the recorded sweep over a library's models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.torch import optimize
from cupyops.torch.models.recognise import (
    Norm,
    Rotary,
    gate_form,
    gelu_candidate,
    gelu_form,
    is_conv1d,
    norm_candidate,
    norm_of,
)
from cupyops.torch.models.rotary import own_rotary

from .stand_ins import (
    WIDTH,
    ChannelsNorm,
    ClippedGELU,
    Conv1D,
    FastGELU,
    HalfMoreRMSNorm,
    HeldGELU,
    NewGELU,
    NoWeightLayerNorm,
    OneMoreRMSNorm,
    QuickGELU,
    RootNorm,
    SiLUActivation,
    apply_rotary_in_float32,
    apply_rotary_pos_emb,
    gelu,
    rotate_half,
)

pytestmark = pytest.mark.usefixtures("one_thread")
SWEEP = json.loads(Path(__file__).with_name("sweep.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (F.gelu, ("none", True)),
        (gelu, ("none", True)),
        (nn.GELU("tanh"), ("tanh", True)),
        (HeldGELU(), ("none", True)),
        (HeldGELU(tanh=True), ("tanh", True)),
        (NewGELU(), ("tanh", True)),
        (FastGELU(), ("tanh", False)),
        (QuickGELU(), None),
        (ClippedGELU(), None),
        (F.silu, None),
        (torch.erf, None),
        (lambda x: F.gelu(x).float(), None),
        (lambda x: F.gelu(x) + 1e-8, None),
        (lambda x: F.gelu(x[:5]), None),
        (lambda x, y: F.gelu(x), None),
        (lambda x: None, None),
    ],
)
def test_a_form_of_gelu_is_known_by_its_values(function: Any, form: Any) -> None:
    assert gelu_form(function)[0] == form


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()


class HeldSiLU(nn.Module):
    """An attribute decides what it computes, and may change."""

    def __init__(self) -> None:
        super().__init__()
        self.function = F.silu

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class LeakySwish(Swish):
    def forward(self, x: Tensor) -> Tensor:
        return x * (0.99 * x).sigmoid()


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (nn.SiLU(), F.silu),
        (nn.ReLU(), F.relu),
        (SiLUActivation(), F.silu),
        (Swish(), F.silu),
        (HeldSiLU(), None),
        (LeakySwish(), None),
        (nn.ReLU(inplace=True), None),
        (nn.ReLU6(), None),
        (nn.LeakyReLU(), None),
        (nn.GELU(), None),
        (nn.Identity(), None),
    ],
)
def test_silu_and_relu_are_known_by_the_values_of_their_class(module: nn.Module, function: Any) -> None:
    assert gate_form(module) is function


class LearnedGELU(nn.Module):
    """A GELU with a parameter, so that its values may change."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) * self.scale


def test_a_module_whose_values_may_change_is_no_candidate() -> None:
    assert gelu_candidate(NewGELU())
    assert not gelu_candidate(LearnedGELU())
    assert not norm_candidate(nn.BatchNorm1d(4))
    assert not norm_candidate(nn.GroupNorm(2, 4))


class WideNorm(RootNorm):
    """Returns float32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states.float())


class LowerUnderAutocastNorm(RootNorm):
    """Returns the dtype of autocast, as timm's fast normalisations."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        y = super().forward(hidden_states)
        return y.bfloat16() if torch.is_autocast_enabled("cpu") else y


class EpsOutsideNorm(RootNorm):
    """Adds eps to the root, not to the square."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        root = hidden_states.pow(2).mean(-1, keepdim=True).sqrt()
        return self.weight * hidden_states / (root + self.variance_epsilon)


class HandLayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = 1e-12

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return self.weight * (x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + self.eps) + self.bias


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (RootNorm(WIDTH), Norm("rms_norm", "variance_epsilon")),
        (RootNorm(WIDTH, eps=1e-3), Norm("rms_norm", "variance_epsilon")),
        (NoWeightLayerNorm(), Norm("layer_norm", 1e-5)),
        (HandLayerNorm(WIDTH), Norm("layer_norm", "eps")),
        (OneMoreRMSNorm(WIDTH), Norm("rms_norm", "eps", one_more=True)),
        (HalfMoreRMSNorm(WIDTH), None),
        (ChannelsNorm(WIDTH), None),
        (WideNorm(WIDTH), None),
        (LowerUnderAutocastNorm(WIDTH), None),
        (EpsOutsideNorm(WIDTH, eps=1e-3), None),
    ],
)
def test_a_normalisation_is_known_by_its_values(module: nn.Module, found: Norm | None) -> None:
    assert norm_candidate(module)
    assert norm_of(module) == found
    with torch.device("meta"):
        assert norm_of(module.to("meta")) == found


class ConvolvedConv1D(nn.Module):
    """A module with the parameters of a Conv1D that computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


def test_a_conv1d_is_known_by_its_values() -> None:
    assert is_conv1d(Conv1D(5, 3))
    other = ConvolvedConv1D()
    type(other).__name__ = "Conv1D"
    assert not is_conv1d(other)


def opposite_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """nanochat turns in the other direction."""
    return apply_rotary_pos_emb(q, k, cos, -sin, unsqueeze_dim)


def rotary_of_last_queries(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return apply_rotary_pos_emb(q, k * 2, cos, sin)


def rotary_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q[:], k[:] = apply_rotary_pos_emb(q, k, cos, sin)
    return q, k


def rotary_scaled(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return apply_rotary_pos_emb(q * scale, k * scale, cos, sin)


def rotary_of_any(*args: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return apply_rotary_pos_emb(*args, cos, sin)


def rotary_of_pairs(tensor: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """GPT-J's: each pair has its angle once."""
    sin, cos = (t[:, :, None, :].repeat_interleave(2, 3) for t in (sin, cos))
    return tensor * cos + torch.stack((-tensor[..., 1::2], tensor[..., ::2]), -1).flatten(-2) * sin


def rotary_of_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """GPT-OSS's."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rotary_of_the_first_columns(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """MiniMax's for images: tables (T, n) of rows (B, T, H, D)."""
    n, given = cos.shape[-1], (cos[None, :, None, :], sin[None, :, None, :])
    turned = [x[..., :n] * given[0] + rotate_half(x[..., :n]) * given[1] for x in (q, k)]
    a, b = (torch.cat((y, x[..., n:]), -1) for x, y in zip((q, k), turned, strict=True))
    return a, b


def apply_rotary_of_complex(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    a, b = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) * freqs_cis for x in (xq, xk))
    return torch.view_as_real(a).flatten(3), torch.view_as_real(b).flatten(3)


def apply_rotary_to_the_rest(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """DINOv3's, without the first rows, and DeepSeek's, with the columns in another order."""
    a, b = apply_rotary_pos_emb(q, k, cos, sin)
    return a.flip(-1), b.flip(-1)


ROWS = Rotary(1, False, "", promotes=True)
HALVES = {(1, 4, 3): ROWS, (2, 4, 3): ROWS._replace(unsqueeze=2)}


@pytest.mark.parametrize(
    ("function", "forms"),
    [
        (apply_rotary_pos_emb, {**HALVES, (1, 3, 2): ROWS, (1, 4, 2): ROWS}),
        (
            apply_rotary_in_float32,
            {
                key: form._replace(promotes=False, keeps_dtype=True)
                for key, form in {**HALVES, (1, 3, 2): ROWS, (1, 4, 2): ROWS}.items()
            },
        ),
        (rotary_of_pairs, {(4, 3): Rotary(2, True, "all", promotes=True)}),
        (rotary_of_halves, {(4, d): Rotary(None, False, "all", promotes=True) for d in (2, 4)}),
        (rotary_of_the_first_columns, {(4, 2): Rotary(1, False, "", partial=True, promotes=True)}),
        (opposite_rotary, None),
        (rotary_of_last_queries, None),
        (rotary_in_place, None),
        (rotary_of_any, None),
        (rotary_scaled, None),
        (rotate_half, None),
        (torch.rot90, None),
    ],
)
def test_a_function_for_rotary_embedding_is_known_by_its_values(function: Any, forms: Any) -> None:
    call: Any = own_rotary(function.__name__, function)
    assert (call.__globals__["cupyops_forms"] if callable(call) else None) == forms


def test_a_rotary_embedding_that_is_left_alone_has_a_reason_in_the_report() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, q: Tensor, cos: Tensor, sin: Tensor) -> Any:
            x = self.norm(q)
            return apply_rotary_of_complex(x, x, cos), apply_rotary_to_the_rest(x, x, cos, sin), rotate_half(x)

    left = {site.what: site.reason for site in optimize(Rows()).skipped}
    assert left == {
        "apply_rotary_of_complex": "its arguments are not rows and tables of cos and sin",
        "apply_rotary_to_the_rest": "it computes another function than rotary_embedding of rows and their tables",
    }


def test_a_call_of_rotary_embedding_that_the_operator_does_not_compute_is_the_function_s() -> None:
    """Other dtypes, dimensions and options."""
    call: Any = own_rotary("apply_rotary_pos_emb", apply_rotary_pos_emb)
    q, k, table = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8), torch.randn(2, 5, 8)
    given: list[tuple[Any, ...]] = [
        (q, k, table, table),
        (q.bfloat16(), k, table, table),
        (q, k, table.double(), table.double()),
        (q, k, table.double(), table),
        (q[:1], k[:1], table, table),
        (q.bfloat16(), k.bfloat16(), table, table),
        (q.half(), k.half(), table.bfloat16(), table.bfloat16()),
        (q, k, table.bfloat16(), table.bfloat16()),
        (q[0], k[0], table[0, 0], table[0, 0], 0),
        (q, k, table, table, -3),
        (q, k, table[..., :1], table[..., :1]),
        (q, k, torch.ones(2, 5, 8, dtype=torch.int64), table),
        (q.long(), k, table, table),
    ]
    for args in given:
        for got, want in zip(call(*args), apply_rotary_pos_emb(*args), strict=True):
            assert got.dtype is want.dtype
            torch.testing.assert_close(got, want)
    with pytest.raises(RuntimeError, match="must match the size"):
        call(q, k, table[..., :4], table[..., :4])
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'sin'"):
        call(q, k, table)


# The sweep ------------------------------------------------------------------------------------------------------------


def test_the_sweep_matches_nineteen_sites_of_twenty_and_names_the_others() -> None:
    from .sweep import summary

    models = SWEEP["models"]
    assert SWEEP["summary"] == summary(models)
    assert len(models) > 300
    assert SWEEP["summary"]["built"] >= 0.95 * len(models)
    assert SWEEP["summary"]["share"] >= 0.95
    for name, found in models.items():
        if "error" in found:
            assert found["error"], name
            continue
        missing = sum(found[k][1] - found[k][0] for k in ("norm", "gelu"))
        assert missing == sum(found["left"].values()), name
        assert all("no reason given" not in words for words in found["left"]), name


def test_the_page_has_the_figures_of_the_sweep() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").split())
    found = SWEEP["summary"]
    matched, total = (found["norm"][i] + found["gelu"][i] for i in (0, 1))
    version = ".".join(SWEEP["transformers"].split(".")[:2])
    counts = f"{matched} of {total} normalisations and GELUs in {found['built']} models"
    assert f"Of transformers {version}, {counts} are matched" in page
