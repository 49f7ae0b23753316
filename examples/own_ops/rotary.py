"""Rotary embedding: the halves (u, v) of x (B, S, H, D) become (u·c - v·s, v·c + u·s), with float32 tables c, s (S, D/2).
The backward is the same with -s in place of s; the tables have no gradient. Source: Su et al., "RoFormer", 2021."""

import torch
from torch import Tensor

from cupyops import Kernel, Rows
from cupyops.torch import Operator

TEXT = r"""
#include "strided.cuh"
extern "C" __global__ void rotary(const scalar_t* x /* (M, H, D) */, const float* c /* (S, half) */, const float* s /* (S, half) */,
                                  scalar_t* y /* (M, H, D) */, float sign, long long M, int S, int H, int D, int half) {
    const long long row = blockIdx.x, table = row % S * half;
    for (int pair = threadIdx.x * EACH; pair < H * half; pair += BLOCK_THREADS * EACH) {
        const int head = pair / half, i = pair - head * half;
        const long long at = (row * H + head) * D + i;
        auto u = load_vector<EACH>(x + at, 1), v = load_vector<EACH>(x + at + half, 1);
        const auto cs = load_vector<EACH>(c + table + i, 1), sn = load_vector<EACH>(s + table + i, 1);
        for (int k = 0; k < EACH; ++k) {
            const acc_t a = u.element[k], b = v.element[k], t = sign * sn.element[k];
            u.element[k] = scalar_t(a * cs.element[k] - b * t), v.element[k] = scalar_t(b * cs.element[k] + a * t);
        }
        *(Vector<scalar_t, EACH>*)(y + at) = u, *(Vector<scalar_t, EACH>*)(y + at + half) = v;
    }
}"""
KERNELS = {each: Kernel(TEXT, "rotary", Rows("M", 128), constants={"EACH": each}) for each in (1, 8)}


def turn(x: Tensor, c: Tensor, s: Tensor, sign: float = 1.0) -> Tensor:
    (B, S, H, D), x = x.shape, x.contiguous()
    kernel = KERNELS[1 if D % 16 else 8]
    kernel(x, c.contiguous(), s.contiguous(), y := torch.empty_like(x), sign, B * S, S, H, D, D // 2)
    return y


schema = "own::rotary{}(Tensor {}, Tensor c, Tensor s) -> Tensor y"
turned_back = Operator(schema.format("_back", "grad_y"), lambda grad_y, c, s: turn(grad_y, c, s, -1.0))
rotary = Operator(schema.format("", "x"), turn, backward=turned_back, wrt=["x"])


if __name__ == "__main__":
    from ..showing import DEVICE, run, show

    def peer(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        (u, v), c, s = x.chunk(2, -1), c[:, None], s[:, None]
        return torch.cat((u * c - v * s, v * c + u * s), -1)

    says = "A text of its own: an access loads 8 elements, and one kernel is forward and, with -s, backward."
    angle = torch.outer(torch.arange(16.0), 10000 ** -(torch.arange(32) / 32)).to(DEVICE)
    x, c, s = torch.randn(2, 16, 4, 64, device=DEVICE), angle.cos(), angle.sin()
    run("own_ops.rotary", lambda: show(rotary, peer, says, wrt=["x"], x=x, c=c, s=s))
