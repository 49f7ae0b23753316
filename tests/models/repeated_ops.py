"""Operators and calls for tests/models/repeated.py, imported when the GPU that is not there has been installed."""

from typing import Any

TEXT = """
extern "C" __global__ void twice(const float* x, // (n)
                                 float* y,       // (n)
                                 long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""


def cases(torch: Any, operator: Any, elementwise: Any) -> dict[str, tuple[Any, ...]]:
    """Calls by operator, whose bodies only allocate and launch."""

    def given(*shape: int) -> Any:
        return torch.randn(*shape).to(torch.bfloat16)

    rows, weight, bias, stats = given(8, 64, 768), given(768), given(768), torch.randn(2, 8, 64, 1)
    program = elementwise("y = a * exp(b) + s", "grad_a = grad_y * exp(b)", name="tests::gated", scalars=["s"])
    _ALIVE.append(program)
    return {
        "cupyops::add2": (rows, rows.clone(), 0.5),
        "cupyops::gelu": (rows, "tanh"),
        "cupyops::gelu_backward": (rows, rows.clone(), "none"),
        "cupyops::layer_norm": (rows, weight, bias, [768], 1e-5, None),
        "cupyops::layer_norm_inference": (rows, None, None, [768], 1e-5, "float32"),
        "cupyops::layer_norm_backward": (rows, rows.clone(), stats, weight, None, [768], 1e-5, True, True, True),
        "cupyops::add_layer_norm": (rows, rows.clone(), weight, bias, [768], 1e-5, None),
        "cupyops::rms_norm": (rows, weight, 1e-5),
        "tests::gated": (rows, rows.clone(), float("inf")),
    }


_ALIVE: list[Any] = []


def _launches(torch: Any) -> Any:
    from cupyops import Kernel, Threads

    return Kernel(TEXT, "twice", Threads("n"))


def changing(torch: Any, operator: Any) -> Any:
    """A body that also calls an operator of PyTorch."""
    kernel = _launches(torch)

    def body(x: Any) -> Any:
        y = torch.empty_like(x)
        kernel(x, y, x.numel())
        return y.add_(1)

    return operator("tests::changing(Tensor x) -> Tensor", body, repeats=True)


def viewing(torch: Any, operator: Any) -> Any:
    """A body that returns a part of what it has allocated."""
    kernel = _launches(torch)

    def body(x: Any) -> Any:
        y = torch.empty_like(x)
        kernel(x, y, x.numel())
        return y[:, :2]

    return operator("tests::viewing(Tensor x) -> Tensor", body, repeats=True)
