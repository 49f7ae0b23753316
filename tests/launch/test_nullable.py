"""Arrays that a call may leave out: `// (N) or null` in the declaration, None in the call, a null pointer in the text."""

import pytest
import torch

from cupyops import Kernel, Threads
from cupyops.launch.arguments import bind, check
from cupyops.launch.generated import launch_source
from cupyops.launch.signature import Signature

TEXT = """
extern "C" __global__ void scale(
    const scalar_t* __restrict__ x,       // (n)
    const weight_t* __restrict__ weight,  // (n) or null
    scalar_t* __restrict__ y,             // (n)
    float* __restrict__ count,            // (1) or null
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(weight ? float(x[i]) * float(weight[i]) : float(x[i]));
    if (i == 0 && count) *count = n;
}
"""
DTYPES = ("float32", "float64")


def kernel() -> Kernel:
    return Kernel(TEXT, "scale", Threads("n"), dtypes=DTYPES)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


def test_the_declaration_tells() -> None:
    parameters = {p.name: p for p in Signature.parse(TEXT, "scale").parameters}
    assert [n for n, p in parameters.items() if p.nullable] == ["weight", "count"]
    assert parameters["weight"].shape == ("n",)
    assert (
        not Signature.parse('extern "C" __global__ void k(float* y /* (n) or nullable */, int n) {}', "k")
        .parameters[0]
        .nullable
    )


def test_an_absent_array_is_not_checked_and_a_present_one_is() -> None:
    scale = kernel()
    scale(meta(4), None, meta(4), None, 4)
    scale(meta(4), meta(4, dtype=torch.float64), meta(4), meta(1), 4)
    with pytest.raises(TypeError, match=r"scale: `x` must be a CuPy array or a PyTorch tensor, got NoneType"):
        scale(None, None, meta(4), None, 4)
    with pytest.raises(TypeError, match=r"`weight` must be a CuPy array or a PyTorch tensor or None, got float"):
        scale(meta(4), 1.0, meta(4), None, 4)
    with pytest.raises(TypeError, match=r"`count` must have dtype float32, got float64"):
        scale(meta(4), None, meta(4), meta(1, dtype=torch.float64), 4)


def test_a_type_that_only_an_absent_array_would_decide_is_scalar_t() -> None:
    scale = kernel()
    x, y = (meta(4, dtype=torch.float64) for _ in range(2))
    assert check(scale, bind(scale, (x, None, y, None, 4), {})).types == {"scalar_t": "float64", "weight_t": "float64"}
    text = TEXT.replace("const scalar_t* __restrict__ x,       // (n)", "const float* __restrict__ x,  // (n)").replace(
        "scalar_t* __restrict__ y,             // (n)", "weight_t* __restrict__ y,  // (n) or null"
    )
    alone = Kernel(text, "scale", Threads("n"), dtypes=DTYPES)
    with pytest.raises(TypeError, match=r"scale: give at least one of `weight`, `y`: they decide what weight_t is"):
        alone(meta(4), None, None, None, 4)


def test_the_generated_launch_passes_a_null_pointer_and_looks_at_what_is_there() -> None:
    source = launch_source(Signature.parse(TEXT, "scale"), Threads("n"), {})
    assert "None if weight is None else weight.dtype" in source
    assert "(weight is not None and weight.numel() != n)" in source
    assert "0 if weight is None else weight.data_ptr()" in source
    assert "x is not None" not in source


@pytest.mark.gpu
def test_on_a_gpu_by_both_launches() -> None:
    scale = kernel()
    x, weight = torch.randn(100, device="cuda"), torch.randn(100, device="cuda", dtype=torch.float64)
    for _ in range(2):  # the second time through the generated launch
        y, count = torch.zeros(100, device="cuda"), torch.zeros(1, device="cuda")
        scale(x, None, y, None, 100)
        assert torch.equal(y, x)
        scale(x, weight, y, count, 100)
        torch.testing.assert_close(y, x * weight.float())
        assert count.item() == 100
        with pytest.raises(ValueError, match=r"`weight` must hold n = 100 elements, got 99"):
            scale(x, weight[1:], y, None, 100)


def test_policies_of_rows() -> None:
    from cupyops import Rows
    from cupyops.launch.geometry import Target

    target = Target(4, 132)
    assert Rows("M", each=4).grid_for(target)(9) == (3, 1, 1)
    clusters = Rows("M", blocks_per_row=8)
    assert clusters.grid_for(target)(9) == (72, 1, 1)
    assert (clusters.cluster, clusters.constants["CLUSTER"]) == (8, 8)
    with pytest.raises(ValueError, match="each or blocks_per_row must be 1, got each=2, blocks_per_row=2"):
        Rows("M", each=2, blocks_per_row=2)
