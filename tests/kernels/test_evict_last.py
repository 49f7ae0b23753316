"""Loads that the L2 cache keeps: which kernels have them, which of their arrays, and that they change no bit."""

import re
from dataclasses import replace

import pytest
import torch

from autograd_bridge import add_layer_norm, layer_norm
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.dtypes import DTYPES
from cupyops.launch import recording as launches
from cupyops.launch.kernel import Kernel
from cupyops.ops.layer_norm.body import forward_kernel
from cupyops.ops.layer_norm.config import forward_config
from cupyops.programs.row_config import config_of, kernel_of, work_of
from cupyops.programs.row_source import text_of
from cupyops.tiling.rows import EVICT_LAST_FROM, at_once
from cupyops.torch import row_reduce
from cupyops.torch.ops.cross_entropy import cross_entropy
from cupyops.torch.ops.softmax import softmax
from tests.support import alike

HINT = "L2::cache_hint"


def assembly(kernel: Kernel, dtype: str, architecture: str = "compute_90") -> list[str]:
    """The loads of a kernel from global memory, and its bulk copies, as the compiler writes them."""
    text = kernel.final_text(dict.fromkeys(kernel.signature.bindings, dtype))
    code = compile_text(text, kernel.name, architecture, (*OPTIONS, *kernel.options)).code.decode()
    return re.findall(r"ld\.global[^;]*;|cp\.async\.bulk\.shared[^;]*;", code)


def forward(n: int, dtype: str, residual: bool = False, *, evict_last: bool = True) -> Kernel:
    size = DTYPES[dtype].itemsize
    config = forward_config(n, dtype, size * (1 + residual), size, 90, size)
    assert config.evict_last
    return forward_kernel(replace(config, evict_last=evict_last), dtype, residual)


def forward_apart(n: int, dtype: str) -> bool:
    """Whether aligned rows of a forward with a residual have a path of their own."""
    size = DTYPES[dtype].itemsize
    return forward_config(n, dtype, 2 * size, size, 90, size).aligned_apart


@pytest.mark.parametrize(
    ("n", "dtype", "residual"),
    [
        (1024, "bfloat16", False),
        (1024, "bfloat16", True),
        (4096, "float32", False),
        (65536, "float32", True),
        (2**22, "float32", False),
    ],
)
def test_a_forward_has_the_policy_for_rows_and_not_for_weights(n: int, dtype: str, residual: bool) -> None:
    loads = assembly(forward(n, dtype, residual), dtype)
    kept = [load for load in loads if HINT in load]
    assert kept
    assert all(HINT in load for load in loads if "bulk" in load)
    # Rows are loaded once, weight and bias once each at the least.
    assert len(loads) - len(kept) >= 2
    if residual and kept[0].startswith("ld") and forward_apart(n, dtype):
        assert all(".nc" in load for load in kept), "else no load moves across a store of a sum"
    assert not any(HINT in load for load in assembly(forward(n, dtype, residual, evict_last=False), dtype))


def test_gpus_without_policies_load_without() -> None:
    assert not any(HINT in load for load in assembly(forward(1024, "float32"), "float32", "compute_75"))


@pytest.mark.parametrize(("text", "written"), [("m = max(x)", False), ("m = max(x); y = x - m", True)])
def test_a_program_has_the_policy_if_it_writes_rows(text: str, written: bool) -> None:
    (program,) = row_reduce(text, name=f"evict_last_test::written_{written}").programs
    sizes = dict.fromkeys(program.inputs, DTYPES["float32"].itemsize)
    config = config_of(4096, "float32", work_of(program, sizes), 90)
    assert config.evict_last == written
    loads = assembly(kernel_of(program, text_of(program), config, "float32"), "float32")
    assert any(HINT in load for load in loads) == written


def both_ways(kernel: Kernel, plain: Kernel, x: torch.Tensor, *sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = []
    for each in (kernel, plain):
        y, stats = torch.full_like(x, torch.nan), x.new_full((2, len(x)), torch.nan, dtype=torch.float32)
        weight, bias = x[0] * 2, x[-1] + 1
        each(x, None, weight, bias, x, y, stats, *sizes, 1e-5)
        found.append(torch.cat((y.double().flatten(), stats.double().flatten())))
    return found[0], found[1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [96, 1000, 1024, 4096, 8192, 24576, 65536])
def test_the_bits_of_a_forward_do_not_depend_on_the_policy(n: int, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    kernel, plain = forward(n, name), forward(n, name, evict_last=False)
    for off in (0, 1):
        x = torch.randn(40 * n + off, device="cuda").to(dtype)[off:].view(40, n)
        sizes = [40, n]
        if "groups" in kernel.signature.names:
            sizes.append(min(40, at_once(kernel, {}, name, 0)))
        kept, loaded = both_ways(kernel, plain, x, *sizes)
        assert alike(kept, loaded)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [2**16, 2**15, 2**15 - 1, 2**14 - 1])
def test_the_policy_is_for_rows_of_which_the_cache_holds_a_small_part(rows: int) -> None:
    x, nbytes = torch.zeros(rows, 4096, device="cuda", dtype=torch.bfloat16), rows * 4096 * 2
    for call, read in (
        (lambda: layer_norm(x, (4096,)), nbytes),
        (lambda: add_layer_norm(x, x, (4096,)), 2 * nbytes),
        (lambda: softmax(x, 1), nbytes),
    ):
        with launches.recorded() as noted:
            call()
        assert [bool(launch.kernel.constants.get("EVICT_LAST")) for launch in noted] == [read >= EVICT_LAST_FROM]


@pytest.mark.gpu
def test_a_program_in_place_and_one_that_writes_another_array_have_the_same_gradient() -> None:
    x = torch.randn(2048, 4096, device="cuda")
    target = torch.randint(4096, (2048,), device="cuda")
    gradients = []
    for inplace in (False, True):
        leaf = x.clone().requires_grad_()
        cross_entropy(leaf * 1, target, inplace_backward=inplace).backward()
        gradients.append(leaf.grad)
    assert alike(*gradients)
    assert torch.equal(softmax(x, 1)[:8], softmax(x[:8].clone(), 1)), "few rows have kernels without the policy"
