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
    _ALIVE.extend((program, _doubling(torch, operator)))
    return {
        "cupyops::add2": (rows, rows.clone(), 0.5),
        "cupyops::gelu": (rows, "tanh"),
        "cupyops::gelu_backward": (rows, rows.clone(), "none"),
        "cupyops::gelu_bias_backward_": (rows, rows.clone(), "none"),
        "cupyops::layer_norm": (rows, weight, bias, [768], 1e-5, None),
        "cupyops::layer_norm_inference": (rows, None, None, [768], 1e-5, "float32"),
        "cupyops::layer_norm_backward": (rows, rows.clone(), stats, weight, None, [768], 1e-5, True, True, True),
        "cupyops::add_layer_norm": (rows, rows.clone(), weight, bias, [768], 1e-5, None),
        "cupyops::rms_norm": (rows, weight, 1e-5),
        "tests::doubled_": (torch.randn(4, 8),),
        "tests::gated": (rows, rows.clone(), float("inf")),
    }


_ALIVE: list[Any] = []


def _launches(torch: Any) -> Any:
    from cupyops import Kernel, Threads

    return Kernel(TEXT, "twice", Threads("n"))


def _doubling(torch: Any, operator: Any) -> Any:
    """An operator with a body in place, which may repeat its steps, too."""
    kernel = _launches(torch)

    def over(x: Any) -> Any:
        first = torch.empty_strided((x.shape[1],), (1,))
        kernel(x[0], first, first.numel())
        kernel(x, x, x.numel())
        return first

    def body(x: Any) -> Any:
        y = torch.empty_like(x)
        kernel(x, y, x.numel())
        first = torch.empty_strided((x.shape[1],), (1,))
        kernel(x[0], first, first.numel())
        return y, first

    return operator("tests::doubled(Tensor x) -> (Tensor y, Tensor first)", body, inplace=over, repeats=True)


def mixing(torch: Any, operator: Any) -> Any:
    """A body that calls PyTorch's functions between its launches: a view, a product, and one that changes a tensor."""
    kernel = _launches(torch)

    def body(x: Any) -> Any:
        first, second = x.reshape(-1).split(x.numel() // 2)
        z = torch.empty_like(first)
        kernel(first, z, z.numel())
        z[0] = 7
        y = torch.outer(z, second).mul_(2)
        kernel(y.view(-1), again := torch.empty_like(y), y.numel())
        return again, z, torch.mm(x, x.T)

    return operator("tests::mixing(Tensor x) -> (Tensor, Tensor, Tensor)", body, repeats=True)


def overwriting(torch: Any, operator: Any) -> Any:
    """A body that writes to its argument, and then calls a function that some arguments have fail."""
    kernel = _launches(torch)

    def body(x: Any) -> Any:
        kernel(x, x, x.numel())
        return torch.linalg.cholesky(x)

    return operator("tests::overwriting(Tensor(a!) x) -> Tensor", body, repeats=True)


def reading(torch: Any, operator: Any) -> Any:
    """A body whose further steps depend on a value of its argument."""
    kernel = _launches(torch)

    def body(x: Any) -> Any:
        y = torch.empty_like(x)
        if float(x[0, 0]) > -1e30:
            kernel(x, y, x.numel())
        return y

    return operator("tests::reading(Tensor x) -> Tensor", body, repeats=True)


def dispatching(torch: Any, operator: Any) -> Any:
    """A body that calls an operator of the dispatcher, and no function of PyTorch."""
    kernel = _launches(torch)

    def body(x: Any) -> Any:
        y = torch.empty_like(x)
        kernel(x, y, x.numel())
        torch.ops.aten.add_.Scalar(y, 1)
        return y

    return operator("tests::dispatching(Tensor x) -> Tensor", body, repeats=True)


def returning(torch: Any, operator: Any) -> Any:
    """A body that returns a tensor of a call before."""
    kernel, kept = _launches(torch), torch.empty(4, 8)

    def body(x: Any) -> Any:
        kernel(x, kept, x.numel())
        return kept

    return operator("tests::returning(Tensor x) -> Tensor", body, repeats=True)
