"""The matrix kernel of sm_90: when it is chosen, its targets, and its values on such a GPU."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import linear_gelu
from cupyops.commands.compile import jobs_for
from cupyops.launch import driver
from cupyops.launch import recording as launches
from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear.config import LONG, SHORT, Sm90Config, sm90_config
from cupyops.ops.linear.sm90 import DTYPES, sm90_kernel

module = sys.modules["cupyops.ops.linear.sm90"]

ROOT = Path(__file__).resolve().parents[2]
M, N, K = 4096, 4096, 1024


def test_it_is_compiled_for_the_one_generation_that_has_its_instructions() -> None:
    kernel = sm90_kernel(LONG, "none")
    assert kernel.options == ("-arch=sm_90a",)
    jobs = jobs_for([kernel], (80, 90, 100, 120))
    assert {(job.architecture, job.options) for job in jobs} == {(90, ("-arch=sm_90a",))}
    assert {job.dtypes for job in jobs} == {(d,) for d in DTYPES}
    assert [kernel.runs_on(c) for c in (80, 90, 100, 120)] == [False, True, False, False]


@pytest.mark.parametrize("config", [SHORT, LONG])
def test_its_shared_memory_is_what_a_block_of_sm_90_may_have(config: Sm90Config) -> None:
    counters = 2 * config.stages * 8
    assert config.shared + counters <= 227 * 1024
    assert 4 % config.pieces == 0, "a tile must leave the ring of pieces where it found it"


def test_the_table() -> None:
    """The measured table excludes other GPUs, long products, and products that leave multiprocessors idle or tiles half
    empty."""
    for shape in ((16_384, 3072, 768), (4096, 3072, 768), (1024, 4096, 1024), (16_384, 4096, 128)):
        assert sm90_config(*shape, 90, 132) == SHORT
    for shape in ((4096, 4096, 4096), (16_384, 768, 3072), (65_536, 256, 1024), (16_384, 1000, 1000)):
        assert sm90_config(*shape, 90, 132) == LONG
    left = [
        (8192, 8192, 8192),
        (4096, 768, 768),
        (2048, 1024, 1024),
        (65_536, 128, 1024),
        (256, 1024, 1024),
        (1, 1, 128),
    ]
    for shape in (*left, (16_384, 4096, 64), (0, 4096, 768), (4096, 0, 768)):
        assert sm90_config(*shape, 90, 132) is None
    for capability in (80, 89, 100, 120):
        assert sm90_config(16_384, 3072, 768, capability, 132) is None
    assert sm90_config(4096, 4096, 4096, 90, 114) is None  # 5 rounds of 57 clusters for 256 pairs of tiles


class Taken:
    """Records the launches of the body for a GPU of sm_90."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        monkeypatch.setattr(driver, "capability", lambda device: 90)
        monkeypatch.setattr(driver, "multiprocessors", lambda device: 132)
        monkeypatch.setattr(module, "tensor_map", lambda address, *rest, simulated: (address % 16, *rest, simulated))
        monkeypatch.setattr(linear_config, "LEAST_LARGE", 0)
        monkeypatch.setattr(linear_config, "sm90_config", lambda *a: LONG)
        for kernel in (sm90_kernel(LONG, "none"), sm90_kernel(LONG, "tanh")):
            monkeypatch.setattr(kernel, "resident_blocks", lambda types, device: 132)
            monkeypatch.setattr(kernel, "launch_vouched", lambda **a: self.calls.append(tuple(a.values())))

    def takes(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "none") -> bool:
        library = OnAGpu()
        if not module.worth_a_look(library, x, approximate):
            return False
        return module.linear_gelu_by_tensor_cores(library, x, weight, bias, approximate) is not None


class OnAGpu:
    """PyTorch's library, for which tensors in host memory are on a GPU."""

    def __getattr__(self, name: str) -> Any:
        from cupyops.arrays import LIBRARIES

        return getattr(LIBRARIES[Tensor], name)

    def device_index(self, x: Tensor) -> int:
        return 0

    def in_host_memory(self, x: Tensor) -> bool:
        return False


def test_what_the_kernel_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    x, weight, bias = (torch.zeros(s, dtype=torch.float16) for s in ((3, 100, 72), (264, 72), (264,)))
    assert taken.takes(x, weight, bias)
    (call,) = taken.calls
    assert (call[0] is x, call[1] is weight, call[2] is bias) == (True, True, True)
    assert call[3].shape == call[4].shape == (3, 100, 264)
    assert call[5:9] == (
        (0, 300, 72, "float16", 128, False),
        (0, 264, 72, "float16", 128, False),
        (0, 300, 264, "float16", 64, False),
        (0, 300, 264, "float16", 64, False),
    )
    assert call[9:] == (300, 264, 72, 264, 4)  # two pairs of tiles along M, two tiles along N
    assert taken.takes(torch.zeros(4096, 64, dtype=torch.float16), torch.zeros(4096, 64, dtype=torch.float16))
    assert taken.calls[1][9:] == (4096, 4096, 64, 0, 66)  # the number of clusters that run at once


def test_what_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    x, weight, bias = (torch.zeros(s, dtype=torch.bfloat16) for s in ((64, 32), (16, 32), (16,)))
    assert taken.takes(x, weight, bias)
    assert taken.takes(x, weight, None, "tanh")
    flat = torch.zeros(64 * 32 + 4, dtype=torch.bfloat16)
    left: list[tuple[Any, ...]] = [
        (x, weight, bias, "erf"),  # whose words gelu says
        (x, weight, bias[:8]),
        (x, weight, bias.float()),
        (x, weight.half(), bias),
        (x.float(), weight.float(), bias.float()),
        (x.double(), weight.double(), bias.double()),
        (x, weight.T.contiguous().T, bias),
        (x.T.contiguous().T, weight, bias),
        (flat[4 : 4 + 64 * 32].view(64, 32), weight, bias),
        (x, weight, torch.zeros(17, dtype=torch.bfloat16)[1:]),
        (x[:, :28].contiguous(), weight[:, :28].contiguous(), bias),
        (x, weight[:12], bias[:12]),
        (x, weight[:, :8], bias),
        (x[0, 0], weight, bias),
        (x, weight[0], None),
        (x[:, :0].contiguous(), weight[:, :0].contiguous(), bias),
        (x.to("meta"), weight.to("meta"), bias.to("meta")),
    ]
    for args in left:
        assert not taken.takes(*args), [tuple(a.shape) if isinstance(a, Tensor) else a for a in args]
    assert len(taken.calls) == 2


def test_small_products_and_other_gpus_are_not_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    x, weight = torch.zeros(64, 32, dtype=torch.bfloat16), torch.zeros(16, 32, dtype=torch.bfloat16)
    monkeypatch.setattr(linear_config, "LEAST_LARGE", 64 * 32 + 1)
    assert not taken.takes(x, weight)
    monkeypatch.setattr(linear_config, "LEAST_LARGE", 64 * 32)
    assert taken.takes(x, weight)
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(linear_config, "sm90_config", lambda *a: asked.append(a))
    assert not taken.takes(x, weight)
    assert asked == [(64, 16, 32, 90, 132)]


# On a GPU

SHAPES = [
    (256, 256, 64),  # a pair of tiles
    (8, 8, 8),  # less than a box of anything
    (136, 264, 72),  # a tile and a bit, along each
    (1000, 520, 200),
    (2056, 3080, 1160),  # more tiles than run at once
    (20_000, 8, 4096),
]
TOLERANCES = {torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture(params=[SHORT, LONG], ids=["short", "long"])
def sm_90(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix kernel, cut either way, for everything it can do, on the GPUs that it runs on."""
    if (capability := driver.capability(0)) != 90:
        pytest.skip(f"linear_gelu_sm90 runs on sm_90 alone, and this GPU is sm_{capability}")
    monkeypatch.setattr(linear_config, "LEAST_LARGE", 0)
    monkeypatch.setattr(linear_config, "sm90_config", lambda *a: request.param)


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    x, weight, bias = (torch.randn(s, generator=generator, device="cuda") for s in ((m, k), (n, k), (n,)))
    return x.to(dtype), weight.div(math.sqrt(k)).to(dtype), bias.to(dtype)


def launched(*args: Any) -> Tensor:
    with launches.recorded() as noted:
        y = linear_gelu(*args)
    assert [launch.kernel.name for launch in noted] == ["linear_gelu_sm90"]
    return y


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("approximate", "with_bias"), [("none", True), ("none", False), ("tanh", True)])
def test_values(shape: tuple[int, int, int], dtype: torch.dtype, approximate: str, with_bias: bool) -> None:
    """Both results are exact to half of the last bit and the error of float32 sums: tensor cores truncate where others
    round."""
    x, weight, bias = operands(*shape, dtype)
    given = bias if with_bias else None
    y, z = torch.ops.cupyops.linear_gelu(x, weight, given, approximate)
    assert torch.equal(launched(x, weight, given, approximate), y)
    exact = F.linear(x.double(), weight.double(), bias.double() if with_bias else None)
    eps = TOLERANCES[dtype]
    torch.testing.assert_close(z.double(), exact, rtol=0.51 * eps, atol=1e-4)
    torch.testing.assert_close(y.double(), F.gelu(exact, approximate=approximate), rtol=0.6 * eps, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
def test_nothing_is_written_outside() -> None:
    """Debug mode puts guard bands round copies of the results, which the maps have to follow."""
    x, weight, bias = operands(1000, 520, 200, torch.bfloat16)
    wanted = launched(x, weight, bias)
    with cupyops.debug_mode():
        assert torch.equal(linear_gelu(x, weight, bias), wanted)


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradients(approximate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_config, "LEAST_GRADIENT", 0)  # else PyTorch's own gradients are recorded
    inputs = [t.requires_grad_() for t in operands(1032, 520, 200, torch.bfloat16)]
    y = launched(*inputs, approximate)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, grad)
    exact_inputs = [t.detach().double().requires_grad_() for t in inputs]
    exact_y = F.gelu(F.linear(*exact_inputs), approximate=approximate)
    for ours, exact in zip(found, torch.autograd.grad(exact_y, exact_inputs, grad.double()), strict=True):
        scale = exact.abs().max().item()
        torch.testing.assert_close(ours.double(), exact, rtol=2**-6, atol=2**-8 * scale)


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
@pytest.mark.parametrize("shape", [(2056, 3080, 1160), (4096, 4096, 64)], ids=str)
def test_a_hundred_runs_give_the_same_bits(shape: tuple[int, int, int]) -> None:
    given = operands(*shape, torch.bfloat16)
    first = torch.ops.cupyops.linear_gelu(*given, "none")
    for _ in range(100):
        again = torch.ops.cupyops.linear_gelu(*given, "none")
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
def test_other_leading_dimensions_and_cupys_arrays() -> None:
    x, weight, bias = operands(1000, 520, 200, torch.float16)
    wanted = launched(x, weight, bias)
    assert torch.equal(launched(x.view(4, 250, 200), weight, bias), wanted.view(4, 250, 520))
    y, z = cupyops.linear_gelu(x, weight, bias)
    assert torch.equal(torch.from_dlpack(y), wanted)
    assert z.shape == (1000, 520)


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
def test_a_captured_graph_replays_it() -> None:
    x, weight, bias = operands(512, 512, 256, torch.bfloat16)
    launched(x, weight, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = linear_gelu(x, weight, bias)
    x.neg_()
    graph.replay()
    assert torch.equal(y, launched(x, weight, bias))


@pytest.mark.gpu
def test_the_large_products_of_the_table_are_the_kernels() -> None:
    if linear_config.sm90_config(M, N, K, driver.capability(0), driver.multiprocessors(0)) is None:
        pytest.skip("the table leaves this product to the library, on this GPU")
    launched(*operands(M, N, K, torch.bfloat16))
