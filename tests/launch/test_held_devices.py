"""Arrays in the tuples of structs by value: the same values in the simulator and on a GPU, and a clear error for a wrong array."""

from typing import Any

import numpy as np
import pytest
import torch

import cupyops
from cupyops import Kernel, LaunchError, Threads, save_repro
from cupyops.launch.elements import Held, _without
from tests.launch.devices import device_of  # noqa: F401 - the fixture `device`

TEXT = """
struct Params { const float* x; float* y[2]; int n; };
__global__ void scaled(Params p, float by) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) { p.y[0][i] = by * p.x[i]; if (p.y[1]) p.y[1][i] = -p.x[i]; }
}"""
COUNTED = TEXT.replace("i < p.n", "i <= p.n")


def kernel_of(text: str = TEXT) -> Kernel:
    return Kernel(text, "scaled")


def test_a_kernel_whose_arrays_are_all_in_a_struct(device: str) -> None:
    scaled = kernel_of()
    for n in (5, 300):  # each call has its own addresses
        x, y, z = torch.arange(float(n), device=device), torch.zeros(n, device=device), torch.zeros(n, device=device)
        version = y._version
        scaled[n]((x, (y, z), n), 2.0)
        assert torch.equal(y, 2 * x)
        assert torch.equal(z, -x)
        assert y._version > version
        assert x._version == 0
        scaled[n]((x, (y, None), n), 3.0)
        assert torch.equal(y, 3 * x)


def test_a_struct_beside_arrays_of_the_call(device: str) -> None:
    text = "struct Part { const half* w; const void* more; };\n__global__ void k(const float* x /* (n) */, float* y /* (n) */, int n, Part p) {\n"
    text += " const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] + __half2float(p.w[i]) + ((const int*)p.more)[0]; }"
    x, y = torch.rand(9, device=device), torch.zeros(9, device=device)
    w, more = torch.arange(9.0, device=device).half(), torch.tensor([7], dtype=torch.int32, device=device)
    kernel = Kernel(text, "k", Threads("n"))
    for _ in range(3):
        kernel(x, y, 9, (w, more))
        assert torch.equal(y, x + w.float() + 7)
        y.zero_()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.zeros(3, dtype=torch.float64), "`p.x` must have dtype float32, got float64"),
        (torch.zeros(3, device="meta"), "`p.y[0]` must be on the device of `p.x`"),
        (np.zeros(3, np.float32), "a launch takes arrays of one library, got arrays of numpy and torch"),
        ("x", "`p` must be a Params: one element of the dtype"),
    ],
)
@pytest.mark.simulator
def test_a_wrong_array_of_a_struct_is_named(given: Any, words: str) -> None:
    y = torch.zeros(3)
    with cupyops.simulate(sanitize=True), pytest.raises((TypeError, ValueError)) as caught:
        kernel_of()[3]((given, (y, None), 3), 2.0)
    assert words in str(caught.value)


@pytest.mark.simulator
def test_a_field_of_a_number_takes_no_array() -> None:
    with cupyops.simulate(), pytest.raises(TypeError, match="`p` must be a Params"):
        kernel_of()[3]((torch.zeros(3), (torch.zeros(3), None), torch.zeros(3)), 2.0)


@pytest.mark.simulator
def test_an_output_of_a_struct_that_requires_grad_is_refused() -> None:
    y = torch.zeros(3, requires_grad=True)
    with cupyops.simulate(), pytest.raises(RuntimeError, match=r"`p.y\[0\]` must not require grad"):
        kernel_of()[3]((torch.zeros(3), (y, None), 3), 2.0)


@pytest.mark.simulator
def test_the_sanitizer_names_the_array_of_a_struct(tmp_path: Any) -> None:
    """A saved launch has the arrays of the struct, and fails in the same way."""
    x, y = torch.zeros(4), torch.zeros(3)
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError) as caught:
        kernel_of(COUNTED)[4]((x, (y, None), 3), 2.0)
    assert "element 3 of `p.y[0]`" in str(caught.value)
    path = tmp_path / "again.py"
    save_repro(caught.value, path)
    assert 'kernel.forall(4,1,1)((arrays["p.x"], (arrays["p.y[0]"], 0, ), 3, ), 2.0)'.replace(
        " ", ""
    ) in path.read_text().replace(" ", "")
    with pytest.raises(LaunchError, match=r"element 3 of `p.y\[0\]`"):
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})


def test_addresses_lie_in_the_order_of_a_matrix_within_a_struct() -> None:
    record = np.dtype([("n", "i4"), ("of", "u8", (2, 3))], align=True)
    arrays = [torch.zeros(1) for _ in range(6)]
    found: list[Held] = []
    plain = _without(record, (2, (arrays[:3], arrays[3:])), "s", 0, "s", found)
    assert plain == (2, [[0, 0, 0], [0, 0, 0]])
    assert [(one.parameter.name, one.offset) for one in found] == [
        (f"s.of[{i}][{k}]", 8 + 24 * i + 8 * k) for i in range(2) for k in range(3)
    ]
    assert all(one.array is array for one, array in zip(found, arrays, strict=True))
