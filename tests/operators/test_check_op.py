"""Each shipped operator passes ``check_op``, which is what users hold their own operators to."""

import pytest
import torch
from torch import Tensor

from cupyops.torch import CHECKS, check_op, checks_for
from cupyops.torch.core.operator import Operator, operator_of
from tests.cases import SAMPLES
from tests.conftest import BACKENDS

NAMES = sorted(SAMPLES)
# That kernels compile is asked of every kernel and architecture in tests/kernels/test_kernels_cu.py.
ELSEWHERE = {"compiles"}
# What does not hold of an operator, and why.
WITHOUT = {
    # Their products are PyTorch's, which autocast lowers where `backward()` is called within it: as in PyTorch's own gradients.
    "linear_backward": {"autocast"},
    "linear_gelu_backward": {"autocast"},
    # Its gradient is that of its reference, a loop over the steps, so that another number of steps is another program; and over the
    # thousand steps that `sizes` takes, the gradient leaves the range of float16.
    "lltm_backward": {"compile_dynamic", "sizes"},
}


# In the simulator, the samples' float32 and one of these in turn, since each dtype has its kernels to compile: the operators' own
# tests compute with each. `gradcheck` takes float64 in either case. With a GPU, every operator has all of them.
DTYPES = (("float16", "float32"), ("float32", "float64"), ("bfloat16", "float32"), ("float32", "float64"))
ALL_DTYPES = ("float16", "float32", "float64")
# What traces the body. The graphs are the same on the reference and in the simulator, where `fakes` holds the fake results of
# each dtype and sample to the kernels', and one dtype is compiled.
TRACED = {"compile_static", "compile_dynamic", "export", "opcheck"}
# What takes each sample's code once more: `compile_static` has compiled each with its gradients, and `derivatives` has
# differentiated each twice and thrice. `repeats` makes eleven changes to a sample; with a GPU, it takes every one.
OF_ONE_SAMPLE = {"export", "opcheck", "repeats", "transforms"}
# Either exports or dispatches what the others trace: without a GPU, an operator shows one of them in the simulator, in turn, where
# `compile_static` and `compile_dynamic` trace every operator and its gradients.
TRACED_IN_TURN = ("export", "opcheck")
# That PyTorch compiles the reference, and differentiates it twice and thrice, is the dispatch of every operator alike: an operator
# shows one of these, with one sample. In the simulator, and with a GPU, every operator shows all of them.
IN_TURN = ("compile_static", "derivatives", "transforms", "jvp")
# What a declaration says of any backend: the rules of sharding. And what a body does to other calls: the reference launches
# nothing and keeps nothing.
OF_THE_SIMULATOR = {"sharding", "tensor_parallel", "threads"}


def operator(name: str) -> Operator:
    return operator_of(getattr(torch.ops.cupyops, name).default)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", BACKENDS)
def test_a_shipped_operator_passes_every_check(name: str, where: str, one_thread: None) -> None:
    device = "cuda" if where == "cuda" else "cpu"
    samples = [tuple(x.to(device) if isinstance(x, Tensor) else x for x in args) for args in SAMPLES[name]()]
    op = operator(name)
    checks = [check for check in checks_for(op) if check not in ELSEWHERE | WITHOUT.get(name, set())]
    number, has_gpu = NAMES.index(name), torch.cuda.is_available()
    if where == "reference":
        for check in IN_TURN if has_gpu else IN_TURN[number % len(IN_TURN) :][:1]:
            if check in checks:
                dtype = "float32" if check in TRACED else None
                check_op(op, samples[:1], backends=[where], checks=check, dtypes=dtype)
        checks = [check for check in checks if check not in TRACED | OF_THE_SIMULATOR | {*IN_TURN}]
    # A dtype that is asked for may not be refused, and the statistics beside 16-bit rows are no 16-bit ones.
    some = ALL_DTYPES if has_gpu else DTYPES[number % len(DTYPES)]
    dtypes = some if where == "simulator" and name != "layer_norm_jvp" else None
    rows = []
    if where == "simulator":
        traced = [check for check in checks if check in TRACED]
        other = () if has_gpu else (TRACED_IN_TURN[number % 2],)
        one = [check for check in checks if check in OF_ONE_SAMPLE and check not in other]
        rows += check_op(op, samples[:1], backends=[where], checks=one, dtypes="float32").passed
        each = [check for check in traced if check not in OF_ONE_SAMPLE]
        rows += check_op(op, samples, backends=[where], checks=each, dtypes="float32").passed
        checks = [check for check in checks if check not in TRACED | OF_ONE_SAMPLE]
    checks = [check for check in checks if where in CHECKS[check].backends]
    rows += check_op(op, samples, backends=[where], checks=checks, dtypes=dtypes).passed
    assert len(rows) > len(checks) // 2, "most checks say something of every operator"
    assert {"values", "strides"} <= {row.check for row in rows} or where == "reference"
