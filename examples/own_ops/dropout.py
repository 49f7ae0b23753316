"""Dropout: y = x/(1 - p) where kept, else 0: element i by 16 bits of Philox4x32-10 (Salmon et al., 2011) at counter i/8.
The backward makes the same mask from the key, one int64: torch.randint draws it, anew at each replay of a CUDA graph."""

import torch
from torch import Tensor

from cupyops import Kernel, Threads
from cupyops.torch import Operator

TEXT = r"""
#include "strided.cuh"
extern "C" __global__ void dropout(const scalar_t* x /* (n) */, const long long* key /* (1) */, scalar_t* y /* (n) */,
                                   int dropped, acc_t scale, long long n, long long packs) {
    const long long pack = blockIdx.x * (long long)blockDim.x + threadIdx.x, left = n - pack * 8;
    if (left <= 0) return;
    unsigned c[4] = {(unsigned)pack, (unsigned)(pack >> 32), 0, 0}, k[2] = {(unsigned)*key, (unsigned)(*key >> 32)};
    for (int round = 0; round < 10; ++round, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
        const unsigned a = __umulhi(0xD2511F53u, c[0]), b = 0xD2511F53u * c[0];
        const unsigned d = __umulhi(0xCD9E8D57u, c[2]), e = 0xCD9E8D57u * c[2];
        c[0] = d ^ c[1] ^ k[0], c[1] = e, c[2] = a ^ c[3] ^ k[1], c[3] = b;
    }
    auto v = load_vector<8>(x + pack * 8, left < 8 ? 0 : 1);
    for (int l = 0; l < 8; ++l) {
        if (l && l < left && left < 8) v.element[l] = x[pack * 8 + l];
        v.element[l] = scalar_t((int)(c[l / 2] >> l % 2 * 16 & 0xffff) < dropped ? acc_t(0) : scale * acc_t(v.element[l]));
        if (l < left && left < 8) y[pack * 8 + l] = v.element[l];
    }
    if (left >= 8) *(Vector<scalar_t, 8>*)(y + pack * 8) = v;
}"""
KERNEL = Kernel(TEXT, "dropout", Threads("packs"))


def body(x: Tensor, key: Tensor, p: float) -> Tensor:
    n, y = x.numel(), torch.empty_like(x, memory_format=torch.contiguous_format)
    KERNEL(x.contiguous(), key, y, round(p * 65536), 1 / (1 - p) if p < 1 else 0.0, n, (n + 7) // 8)
    return y


again = Operator("own::dropout_back(Tensor grad_y, Tensor key, float p) -> Tensor", body)
dropout = Operator("own::dropout(Tensor x, Tensor key, float p) -> Tensor y", body, backward=again, wrt=["x"])


if __name__ == "__main__":
    from ..showing import DEVICE, run, running, show

    def main() -> None:
        x, key, p = torch.randn(64, 128, device=DEVICE), torch.tensor([42], device=DEVICE), 0.25
        with running(dropout):
            mask = dropout(torch.ones_like(x), key, p)
        says = "Random numbers by a counter: the backward makes the mask again from the key, and no mask is saved."
        show(dropout, lambda x, key, p: x * mask, says, wrt=["x"], x=x, key=key, p=p)
        peer = torch.nn.functional.dropout(x, p)
        print(
            f"Kept: {float((mask != 0).float().mean()):.1%} of the elements, and {float((peer != 0).float().mean()):.1%} by PyTorch."
        )

    run("own_ops.dropout", main)
