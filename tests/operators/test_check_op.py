"""Each shipped operator passes ``check_op``, which is what users hold their own operators to."""

import pytest
import torch
from torch import Tensor

from cupyops.torch import CHECKS, check_op, checks_for
from cupyops.torch.core.operator import Operator, operator_of
from tests.cases import SAMPLES
from tests.conftest import BACKENDS

# One operator of each way to declare one: elements, rows of a program, a product, a product with a loss of rows. The other operators and
# the gradients as operators are declared alike, and their values are tested by the operators' own tests.
BY_DEFAULT = {"gelu", "linear", "linear_cross_entropy", "softmax"}
NAMES = [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.thorough) for name in sorted(SAMPLES)]
# That kernels compile is asked of every kernel and architecture in tests/kernels/test_kernels_cu.py.
ELSEWHERE = {"compiles"}
# What does not hold of an operator, and why.
WITHOUT = {
    # Their products are PyTorch's, which autocast lowers where `backward()` is called within it: as in PyTorch's own gradients.
    "linear_backward": {"autocast"},
    "linear_gelu_backward": {"autocast"},
    # Its forward makes the gradients, which autograd makes of the reference once more.
    "linear_cross_entropy": {"flops"},
    # Its FLOPs leave out the logits, which are counted for the forward.
    "linear_cross_entropy_rows_backward": {"flops"},
    # Its gradient is that of its reference, a loop over the steps, so that another number of steps is another program; and over the
    # thousand steps that `sizes` takes, the gradient leaves the range of float16.
    "lltm_backward": {"compile_dynamic", "sizes"},
}


# A dtype has its kernels to compile in the simulator, and the operators' own tests compute with each. A GPU takes all of them.
DTYPES = ("float16", "float32") if not torch.cuda.is_available() else ("float16", "float32", "float64")
OF_DTYPES = {
    "layer_norm_jvp": None,  # a dtype that is asked for may not be refused, and the statistics beside 16-bit rows are no 16-bit ones
    # One number in float32, which the reference may have right by chance, where its logits in 16 bits are rounded otherwise.
    "linear_cross_entropy": ("float32", "float64"),
}
# What takes longest of an operator: other sizes and numbers than the samples', of which the operators' own tests are full; compiled
# functions and packages, of which tests/operators/test_operators.py and test_dynamic_batch.py have each operator; and PyTorch's own
# checks of a registration, which follow from the declaration.
LONGEST = {"sizes", "numbers", "compile_static", "compile_dynamic", "export", "opcheck"}
# What a declaration says of any backend: the rules of sharding. And what a body does to other calls: the reference launches
# nothing and keeps nothing.
OF_THE_SIMULATOR = {"sharding", "tensor_parallel", "threads"}


def operator(name: str) -> Operator:
    return operator_of(getattr(torch.ops.cupyops, name).default)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("longest", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("where", [pytest.param("reference", marks=pytest.mark.thorough), *BACKENDS[1:]])
def test_a_shipped_operator_passes_every_check(name: str, longest: bool, where: str, one_thread: None) -> None:
    device = "cuda" if where == "cuda" else "cpu"
    samples = [tuple(x.to(device) if isinstance(x, Tensor) else x for x in args) for args in SAMPLES[name]()]
    op = operator(name)
    checks = {c for c in checks_for(op) if where in CHECKS[c].backends} - ELSEWHERE - WITHOUT.get(name, set())
    checks = checks & LONGEST if longest else checks - LONGEST
    checks -= OF_THE_SIMULATOR if where == "reference" else set()
    dtypes = OF_DTYPES.get(name, DTYPES) if where == "simulator" else None
    report = check_op(op, samples if longest else samples[:1], backends=[where], checks=sorted(checks), dtypes=dtypes)
    assert longest or len(report.passed) > len(checks) // 2, "most checks say something of every operator"
    assert longest or {"values", "strides"} <= {row.check for row in report.passed} or where == "reference"
