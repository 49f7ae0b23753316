"""Small modules as model libraries write them, for tests that need none of the libraries."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HIDDEN = 16, 32


class Conv1D(nn.Module):
    """A linear layer with a transposed weight, as GPT-2 has it."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) / 4)
        self.bias = nn.Parameter(torch.randn(nf) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], self.nf)


class NewGELU(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return 0.5 * input * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (input + 0.044715 * torch.pow(input, 3.0))))


class FastGELU(nn.Module):
    """Its constant has ten digits."""

    def forward(self, input: Tensor) -> Tensor:
        return 0.5 * input * (1.0 + torch.tanh(input * 0.7978845608 * (1.0 + 0.044715 * input * input)))


class HeldGELU(nn.Module):
    """Calls a function that it holds."""

    def __init__(self, tanh: bool = False) -> None:
        super().__init__()
        self.act: Callable[..., Tensor] = functools.partial(F.gelu, approximate="tanh") if tanh else F.gelu

    def forward(self, input: Tensor) -> Tensor:
        return self.act(input)


class QuickGELU(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return input * torch.sigmoid(1.702 * input)


class ClippedGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.clip(F.gelu(x), -10, 10)


class RootNorm(nn.Module):
    """Root mean square normalisation in elementary operations, computed in float32."""

    def __init__(self, width: int, eps: float = 1e-6, shift: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.variance_epsilon, self.shift = eps, shift

    def forward(self, hidden_states: Tensor) -> Tensor:
        dtype = hidden_states.dtype
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.shift + self.weight) * wide.to(dtype)


class OneMoreRMSNorm(nn.Module):
    """Scales by 1 + weight, and rounds once, as Gemma's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(dim)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class HalfMoreRMSNorm(RootNorm):
    """Scales by 1/2 + weight."""

    def __init__(self, width: int) -> None:
        super().__init__(width, shift=0.5)


class NoWeightLayerNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), x.shape[-1:], None, None, eps=1e-5).to(x.dtype)


class ChannelsNorm(nn.LayerNorm):
    """Normalises the channels of a picture, by the forward of its base class."""

    def forward(self, features: Tensor) -> Tensor:
        features = features.permute(0, 2, 3, 1)
        features = super().forward(features)
        return features.permute(0, 3, 1, 2)


class NamedChannelsNorm(nn.LayerNorm):
    """Names its base class."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.LayerNorm.forward(self, x.permute(0, 2, 3, 1))
        return x.permute(0, 3, 1, 2)


class FlaggedNorm(nn.LayerNorm):
    """Calls PyTorch's function after a branch, as timm's does."""

    fast = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fast:
            x = F.layer_norm(x, self.normalized_shape)
        else:
            x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x


class CastNorm(nn.LayerNorm):
    """Computes in float32 and returns the dtype of its argument, as CLIP's does."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        y = super().forward(x.type(self.weight.dtype))
        return y.type(dtype)


class Mlp(nn.Module):
    """A vision transformer's."""

    def __init__(self, act: nn.Module | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, HIDDEN)
        self.act = act or nn.GELU()
        self.drop1 = nn.Dropout(dropout)
        self.norm: nn.Module = nn.Identity()
        self.fc2 = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop1(x)
        x = self.norm(x)
        return self.fc2(x)


class ConvBlock(nn.Module):
    """ConvNeXt's: under autocast, its norm reads a 16-bit result of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.norm, self.mlp = FlaggedNorm(WIDTH, eps=1e-6), Mlp()
        self.gamma = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.conv_dw(x.unsqueeze(1).permute(0, 3, 1, 2))
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.mlp(x)
        return shortcut + x.squeeze(1) * self.gamma


class PreNorm(nn.Module):
    """A vision transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, eps=1e-6, bias=False)
        self.attn, self.mlp, self.drop = nn.Linear(WIDTH, WIDTH), Mlp(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x)))
        x = x + self.drop(self.mlp(self.norm2(x)))
        return x  # noqa: RET504 - as it is written in models


class PostNorm(nn.Module):
    """BERT's output and its next intermediate layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dense, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, HIDDEN)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.intermediate_act_fn = HeldGELU()

    def forward(self, input_tensor: Tensor) -> Tensor:
        hidden_states = self.dense(input_tensor)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.LayerNorm(hidden_states + input_tensor)
        intermediate = self.up(hidden_states)
        return self.intermediate_act_fn(intermediate)


class EncoderLayer(nn.Module):
    """Whisper's: residuals with a name of their own, a function for dropout, a branch on the dtype."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.final_layer_norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2, self.activation_fn = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), nn.GELU("tanh")
        self.dropout = dropout

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.attention(hidden_states)
        hidden_states = F.dropout(hidden_states, p=self.dropout, training=self.training)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = self.activation_fn(self.fc1(hidden_states))
        hidden_states = self.fc2(hidden_states)
        hidden_states = residual + hidden_states
        if hidden_states.dtype == torch.float16 and bool(hidden_states.isinf().any()):
            hidden_states = hidden_states.clamp(-6e4, 6e4)
        return hidden_states


class DecoderLayer(nn.Module):
    """Llama's: residuals with a name of their own, and RMS norms in elementary operations."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.input_layernorm, self.post_attention_layernorm = RootNorm(WIDTH), RootNorm(WIDTH)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.attention(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return self.norm(residual + hidden_states)


class Gpt2Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.act = Conv1D(HIDDEN, WIDTH), Conv1D(WIDTH, HIDDEN), NewGELU()

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.c_fc(hidden_states)
        hidden_states = self.act(hidden_states)
        return self.c_proj(hidden_states)


class SiLUActivation(nn.Module):
    """A library's own class for SiLU."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.silu(input)


class GatedMlp(nn.Module):
    """Llama's, and with another activation Gemma's."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj, self.act_fn = nn.Linear(HIDDEN, WIDTH), act

    def forward(self, x: Tensor) -> Tensor:
        down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down_proj  # noqa: RET504 - as it is written in models


class GatedDense(nn.Module):
    """T5's: another linear layer stands between the activation and the product."""

    def __init__(self) -> None:
        super().__init__()
        self.wi_0, self.wi_1, self.wo = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.act, self.dropout = NewGELU(), nn.Identity()

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_gelu = self.act(self.wi_0(hidden_states))
        hidden_linear = self.wi_1(hidden_states)
        hidden_states = hidden_gelu * hidden_linear
        hidden_states = self.dropout(hidden_states)
        return self.wo(hidden_states)  # type: ignore[no-any-return]


class PackedMlp(nn.Module):
    """Phi-3's: the gate is the first half of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(WIDTH, 2 * HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.activation_fn = nn.SiLU()

    def forward(self, hidden_states: Tensor) -> Tensor:
        up_states = self.gate_up_proj(hidden_states)
        gate, up_states = up_states.chunk(2, dim=-1)
        up_states = up_states * self.activation_fn(gate)
        return self.down_proj(up_states)  # type: ignore[no-any-return]


class GluMlp(nn.Module):
    """ModernBERT's and timm's: an attribute says which half is the gate."""

    def __init__(self, *, gate_last: bool) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 2 * HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)
        self.Wi, self.gelu, self.gate_last = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), gate_last

    def forward(self, x: Tensor) -> Tensor:
        input, gate = self.Wi(x).chunk(2, dim=-1)
        x = x + self.gelu(input) * gate
        x = self.fc1(x)
        x1, x2 = x.chunk(2, -1)
        x = x1 * self.act(x2) if self.gate_last else self.act(x1) * x2
        return self.fc2(x)  # type: ignore[no-any-return]


class GatedFunction(nn.Module):
    """DINOv2's and LFM2's: PyTorch's function, and one that an attribute holds."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3, self.act = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH), F.relu

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = torch.chunk(self.w1(x), 2, dim=-1)
        hidden = nn.functional.silu(x1) * x2
        return self.act(self.w3(hidden)) * self.w3(x)


def gelu(x: Tensor) -> Tensor:
    """A model's own function, as ESM-2 has it."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, HIDDEN)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.dense(hidden_states)
        return gelu(hidden_states)


def rotate_half(x: Tensor) -> Tensor:
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Llama's."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def apply_rotary_in_float32(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """ModernBERT's."""
    dtype = q.dtype
    q, k = apply_rotary_pos_emb(q.float(), k.float(), cos.float(), sin.float(), unsqueeze_dim)
    return q.to(dtype), k.to(dtype)


def apply_rotary_to_pairs(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """GLM's: a part of the columns, in pairs of neighbours, with tables of halves."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    cos, sin = (t[..., : t.shape[-1] // 2].repeat_interleave(2, dim=-1) for t in (cos, sin))
    n = cos.shape[-1]
    q_embed, k_embed = (x[..., :n] * cos + rotate_pairs(x[..., :n]) * sin for x in (q, k))
    return torch.cat([q_embed, q[..., n:]], dim=-1), torch.cat([k_embed, k[..., n:]], dim=-1)


def apply_rot_embed_cat(x: Tensor, emb: Tensor, half: bool = False) -> Tensor:
    """timm's: an argument says how the pairs lie."""
    sin, cos = emb.chunk(2, -1)
    turned = x * cos + (rotate_half(x) if half else rotate_pairs(x)) * sin
    return turned.to(x.dtype)


class Attention(nn.Module):
    """The rows of two heads, turned in several ways."""

    def __init__(self, columns: int = WIDTH // 2) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.columns, self.half = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            columns,
            True,
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        q, k = (f(hidden_states).unflatten(-1, (2, -1)) for f in (self.q_proj, self.k_proj))
        angles = hidden_states[..., : self.columns].detach()
        cos, sin = angles.cos(), angles.sin()
        if self.columns < WIDTH // 2:
            q, k = apply_rotary_to_pairs(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
            return torch.cat((q, k), -1).transpose(1, 2).flatten(2)
        q, k = apply_rotary_in_float32(q, k, cos, sin, unsqueeze_dim=2)
        q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        emb = torch.cat((sin, cos), -1)[:, None]
        q, k = apply_rot_embed_cat(q, emb), apply_rot_embed_cat(k, emb=emb, half=self.half)
        return torch.cat((q, k), -1).transpose(1, 2).flatten(2)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    """A block of a diffusion transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attn, self.mlp, self.modulation = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 6 * WIDTH),
        )
        self.norm_out = NoWeightLayerNorm()

    def forward(self, x: Tensor) -> Tensor:
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.modulation(x.mean(1)).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift, scale))
        x = gate_mlp[:, None] * self.mlp(self.norm2(x) * (1 + scale_mlp[:, None]) + shift_mlp[:, None]) + x
        norm_x = self.norm_out(x)
        norm_x = norm_x * (1 + scale_mlp[:, None]) + shift[:, None]
        return norm_x + x


class FluxBlock(DiTBlock):
    """A block of FLUX, with one of its two streams."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        emb = self.modulation(hidden_states.mean(1))
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = emb.chunk(6, dim=1)
        norm_hidden_states = self.norm1(hidden_states) * (1 + scale_msa[:, None]) + shift_msa[:, None]
        attn_output = self.attn(norm_hidden_states)
        attn_output = gate_msa.unsqueeze(1) * attn_output
        hidden_states = hidden_states + attn_output
        norm_hidden_states = self.norm2(hidden_states)
        norm_hidden_states = norm_hidden_states * (1 + scale_mlp[:, None]) + shift_mlp[:, None]
        ff_output = self.mlp(norm_hidden_states)
        ff_output = gate_mlp.unsqueeze(1) * ff_output
        hidden_states = hidden_states + ff_output
        return hidden_states  # noqa: RET504 - as it is written in models


class WanBlock(DiTBlock):
    """A block of Wan: modulated in float32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        e = self.modulation(hidden_states.mean(1)).float().unflatten(1, (6, -1))
        shift_msa, scale_msa, gate_msa, c_shift_msa, c_scale_msa, c_gate_msa = e.chunk(6, dim=1)
        norm_hidden_states = (self.norm1(hidden_states.float()) * (1 + scale_msa) + shift_msa).type_as(hidden_states)
        attn_output = self.attn(norm_hidden_states)
        hidden_states = (hidden_states.float() + attn_output * gate_msa).type_as(hidden_states)
        norm_hidden_states = (self.norm2(hidden_states.float()) * (1 + c_scale_msa) + c_shift_msa).type_as(
            hidden_states
        )
        ff_output = self.mlp(norm_hidden_states)
        hidden_states = (hidden_states.float() + ff_output.float() * c_gate_msa).type_as(hidden_states)
        return hidden_states  # noqa: RET504


class Functions(nn.Module):
    """Calls PyTorch's functions, and one that an attribute holds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.activation = nn.Linear(WIDTH, WIDTH), F.gelu
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.fc(x), approximate="tanh")
        x = F.layer_norm(x, (WIDTH,), self.weight)
        x = nn.functional.rms_norm(self.activation(self.fc(x)), (WIDTH,), self.weight, eps=1e-6)
        return self.activation(x)


class Picture(nn.Module):
    """A block on channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other, self.act = ChannelsNorm(4), NamedChannelsNorm(4), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.other(self.norm(x.reshape(-1, 4, 2, 2)))).reshape(x.shape)


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU("tanh"), nn.Linear(HIDDEN, WIDTH), nn.RMSNorm(WIDTH))


def norms() -> nn.Module:
    return nn.Sequential(
        RootNorm(WIDTH), OneMoreRMSNorm(WIDTH), NoWeightLayerNorm(), nn.LayerNorm((3, WIDTH), elementwise_affine=False)
    )


# A model by name, and the operators that it calls then, with the number of the calls. PyTorch's addmm is a linear layer
# that stands alone.
MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "mlp": (Mlp, {"linear_gelu": 1, "aten.addmm": 1}),
    "convolutions": (ConvBlock, {"layer_norm": 1, "linear_gelu": 1, "aten.addmm": 1}),
    "pre-norm": (PreNorm, {"layer_norm": 1, "add_layer_norm": 1, "aten.addmm": 2, "linear_gelu": 1}),
    "post-norm": (PostNorm, {"aten.addmm": 1, "add_layer_norm": 1, "linear_gelu": 1}),
    "encoder layer": (EncoderLayer, {"aten.addmm": 2, "add_layer_norm": 1, "linear_gelu": 1}),
    "decoder layer": (DecoderLayer, {"rms_norm": 1, "aten.addmm": 2, "add_rms_norm": 2}),
    "conv1d": (Gpt2Mlp, {"linear_gelu": 1, "aten.addmm": 1}),
    "swiglu": (lambda: GatedMlp(SiLUActivation()), {"aten.addmm": 1, "swiglu": 1}),
    "geglu": (lambda: GatedMlp(HeldGELU(tanh=True)), {"aten.addmm": 1, "geglu_tanh": 1}),
    "t5": (GatedDense, {"aten.addmm": 3, "geglu_tanh": 1}),
    "phi": (PackedMlp, {"aten.addmm": 2, "swiglu_of_halves": 1}),
    "gate last": (lambda: GluMlp(gate_last=True), {"aten.addmm": 3, "geglu_of_halves": 1, "reglu": 1}),
    "gate first": (lambda: GluMlp(gate_last=False), {"aten.addmm": 3, "geglu_of_halves": 1, "reglu": 1}),
    "gated functions": (GatedFunction, {"aten.addmm": 3, "swiglu_of_halves": 1, "reglu": 1}),
    "attention": (Attention, {"aten.addmm": 2, "rotary_embedding": 6}),
    "partial rotary": (lambda: Attention(4), {"aten.addmm": 2, "rotary_embedding": 2}),
    "diffusion": (DiTBlock, {"aten.addmm": 3, "adaptive_layer_norm": 1, "add_adaptive_layer_norm": 2}),
    "diffusion in two streams": (
        FluxBlock,
        {"aten.addmm": 3, "adaptive_layer_norm": 1, "add_adaptive_layer_norm": 1, "gated_add": 1},
    ),
    "diffusion in float32": (WanBlock, {"aten.addmm": 3, "adaptive_layer_norm": 2, "gated_add": 2}),
    "own function": (OwnFunction, {"linear_gelu": 1}),
    "functions": (Functions, {"linear_gelu": 2, "layer_norm": 1, "rms_norm": 1, "gelu": 1}),
    "channels first": (Picture, {"layer_norm": 2, "gelu": 1}),
    "sequential": (sequential, {"linear_gelu": 1, "aten.addmm": 1, "rms_norm": 1}),
    "norms": (norms, {"rms_norm": 2, "layer_norm": 2}),
}


def model(name: str, **where: Any) -> nn.Module:
    return MODELS[name][0]().to(**where)
