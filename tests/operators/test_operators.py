"""Properties of every operator's function that ``check_op`` does not test: bits, other shapes, PyTorch's machinery.

``test_check_op.py`` asks the rest of the operators themselves.
"""

import copy
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cupyops.launch.kernel import all_kernels
from tests.cases import CASES, FAMILIES, Case
from tests.conftest import CUDA
from tests.support import alike

EACH = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
# What PyTorch does around an operator: its Python is the same with the kernels of the simulator.
AROUND = pytest.mark.parametrize("backend", ["reference", CUDA], indirect=True)
IN_KERNELS = pytest.mark.parametrize(
    "backend", [pytest.param("simulator", marks=pytest.mark.simulator), CUDA], indirect=True
)


def assert_same(got: Tensor, wanted: Tensor, kernels: bool, roundings: int = 16) -> None:
    """The same bits from a kernel; the references are PyTorch's, whose bits on a CPU depend on the layout."""
    if kernels:
        assert alike(got, wanted)
    else:
        eps = roundings * torch.finfo(got.dtype).eps
        torch.testing.assert_close(got, wanted, rtol=eps, atol=eps)


def layouts(x: Tensor) -> dict[str, Tensor]:
    """Views and copies of one tensor of 37 rows and columns in the layouts that users have; shapes differ, values are finite. Of the
    same length are as many rows as can be, 37, 18 or 1: the simulator compiles a kernel of rows for each length."""
    flat, columns = x.flatten(), x.shape[1]
    return {
        "contiguous": x,
        "transposed": x.t(),
        "sliced": x[:, 1::2],
        "rows": x[::3],
        "expanded": x[:, :1].expand(-1, columns),
        "stride 0": x[:1, :1].expand(5, columns),
        "offset by one": flat[1:38],
        "odd": flat[3:40],
        "one element": flat[:1],
        "0-d": flat[0],
        "empty": flat[:0],
        "empty 2-d": x[:, :0],
        "channels last": x[:30].reshape(2, 3, 5, columns).to(memory_format=torch.channels_last),
        "1 by n": x[:1],
        "permuted 3-d": x[:36].reshape(2, 18, columns).permute(2, 0, 1),
    }


# check_op asks the like in every dtype: here are the functions, and layouts of no sample.
@pytest.mark.sample(6)
@IN_KERNELS
@pytest.mark.parametrize("dtype", [torch.bfloat16])
@EACH
def test_every_layout_gives_the_bits_of_a_contiguous_copy(case: Case, device: str, dtype: torch.dtype) -> None:
    square = (37, 37)
    for layout in layouts(torch.zeros(square)):
        if layout == "0-d" and not case.elementwise:
            continue  # there are no rows
        inputs = [layouts(x)[layout] for x in case.inputs(device, dtype, square)]
        before = [x.clone() for x in inputs]
        got = case.ours(*inputs)
        wanted = case.ours(*(x.contiguous().clone() for x in inputs))
        assert got.shape == inputs[0].shape, layout
        assert_same(got, wanted, not case.library, 64 if case.library else 16)
        assert all(alike(x, b) for x, b in zip(inputs, before, strict=True)), f"{layout}: an input was modified"
        addresses = {x.untyped_storage().data_ptr() for x in inputs}
        assert got.numel() == 0 or got.untyped_storage().data_ptr() not in addresses, (
            f"{layout}: the output is an input"
        )


@EACH
def test_mixed_layouts_of_two_tensors(case: Case, device: str, kernels: bool) -> None:
    if case.tensors == 1:
        return
    a, b = case.inputs(device, shape=(24, 24))
    assert_same(case.ours(a.t(), b), case.ours(a.t().contiguous(), b), kernels)
    assert_same(case.ours(a[::2], b[1::2]), case.ours(a[::2].contiguous(), b[1::2].contiguous()), kernels)


@EACH
def test_dense_layouts_are_kept(case: Case, device: str) -> None:
    if not case.elementwise:
        return
    inputs = [
        x.reshape(37, 19, 1, 1).expand(37, 19, 2, 2).contiguous(memory_format=torch.channels_last)
        for x in case.inputs(device)
    ]
    assert case.ours(*inputs).stride() == case.theirs(*inputs).stride()


@pytest.mark.sample(7)
@EACH
def test_more_than_65535_rows(case: Case, device: str) -> None:
    inputs = case.inputs(device, shape=(70_001, 3))
    torch.testing.assert_close(case.ours(*inputs), case.theirs(*inputs), rtol=1e-4, atol=case.atol)


def assert_trains_alike(compiled: Callable[..., Tensor], eager: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """The same result and the same gradients."""
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    got, wanted = compiled(*inputs), eager(*copies)
    torch.testing.assert_close(got, wanted)
    got.sum().backward()
    wanted.sum().backward()
    for x, c in zip(inputs, copies, strict=True):
        torch.testing.assert_close(x.grad, c.grad)


def _forward_only(case: Case):  # type: ignore[no-untyped-def]
    return lambda *xs: case.ours(*(x * 2 for x in xs)) + 1


@pytest.mark.sample(6)
@AROUND
@EACH
def test_compile_fullgraph(case: Case, device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(_forward_only(case), fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 9, 33):
        inputs = [x.requires_grad_() for x in case.inputs(device, shape=(n, 8))]
        assert_trains_alike(compiled, _forward_only(case), inputs)


# Inductor's own first capture is of nothing, and says so.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
@EACH
def test_compile_into_cuda_graphs(case: Case, device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(_forward_only(case), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):  # the first runs record, the later ones replay
        inputs = [torch.randn(16, 8, device=device, requires_grad=True) for _ in range(case.tensors)]
        assert_trains_alike(compiled, _forward_only(case), inputs)


@pytest.mark.sample(6)
@AROUND
@EACH
def test_export_keeps_the_operator(case: Case, device: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, *xs: Tensor) -> Tensor:
            return case.ours(*xs)

    inputs = tuple(case.inputs(device))
    program = torch.export.export(Model(), inputs, strict=True)
    assert case.op in [n.target for n in program.graph.nodes]
    torch.testing.assert_close(program.module()(*inputs), case.ours(*inputs))


@AROUND
@pytest.mark.parametrize("in_dims", [1, (0, None), (None, 1)])
@EACH
def test_vmap(case: Case, device: str, in_dims: int | tuple[int | None, int | None]) -> None:
    inputs = case.inputs(device, shape=(6, 6))
    dims = in_dims
    if isinstance(in_dims, tuple):
        if case.tensors == 1:
            return
        inputs = [x if d is not None else x[0] for x, d in zip(inputs, in_dims, strict=True)]
    got = torch.func.vmap(case.ours, in_dims=dims)(*inputs)
    torch.testing.assert_close(got, torch.func.vmap(case.theirs, in_dims=dims)(*inputs), rtol=1e-5, atol=1e-6)


@AROUND
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@EACH
def test_autocast_leaves_dtypes_as_pytorch_does(case: Case, device: str, dtype: torch.dtype) -> None:
    inputs = case.inputs(device, dtype)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert case.ours(*inputs).dtype == case.theirs(*inputs).dtype


@pytest.mark.sample(10)
@EACH
def test_bits_of_an_element_do_not_depend_on_the_batch(case: Case, device: str, kernels: bool) -> None:
    inputs = case.inputs(device, torch.bfloat16, (513, 7))
    whole = case.ours(*inputs)
    for rows in (slice(0, 1), slice(100, 102), slice(512, 513)):
        assert_same(case.ours(*(x[rows] for x in inputs)), whole[rows], kernels and not case.library)


@AROUND
@EACH
def test_tensor_subclass_and_modes_take_the_registered_operator(case: Case, device: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    inputs = case.inputs(device)
    with Spy():
        got = case.ours(*inputs)
    assert case.op in seen
    assert alike(got, case.ours(*inputs))


@pytest.mark.sample(7)
@EACH
def test_lazily_negated_views_are_resolved(case: Case, device: str) -> None:
    """The imaginary part of a conjugate holds the negated values in memory; of one element, it looks contiguous."""
    for count in (1, 5):
        inputs = [torch.complex(x, x)[:count].conj().imag for x in case.inputs(device, shape=(count,))]
        assert all(x.is_neg() for x in inputs)
        torch.testing.assert_close(case.ours(*inputs), case.theirs(*(x.resolve_neg() for x in inputs)))
        grads = [x.detach().requires_grad_() for x in inputs]
        case.ours(*grads).sum().backward()
        assert all(g.grad is not None for g in grads)


@AROUND
@EACH
def test_not_a_tensor_is_refused_by_name(case: Case, device: str) -> None:
    inputs = case.inputs(device)
    with pytest.raises(TypeError, match=r"must be a Tensor, got list"):
        case.ours([1.0], *inputs[1:])
    torch.testing.assert_close(case.ours(*inputs), case.theirs(*inputs))  # and life goes on


@AROUND
@EACH
def test_fake_tensors_of_a_gpu_need_none(case: Case, device: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        inputs = [torch.empty(6, 4, device="cuda", dtype=torch.float16) for _ in range(case.tensors)]
        y = case.ours(*inputs)
    assert (y.shape, y.dtype, y.device.type) == (inputs[0].shape, torch.float16, "cuda")
    meta = case.ours(*(torch.empty(6, 4, device="meta") for _ in range(case.tensors)))
    assert meta.is_meta
    assert meta.shape == (6, 4)


@AROUND
@EACH
def test_operators_survive_deepcopy_of_a_model(case: Case, device: str) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(case.inputs("cpu")[0])

        def forward(self, *rest: Tensor) -> Tensor:
            return case.ours(self.weight, *rest)

    model = Model().to(device)
    rest = case.inputs(device)[1:]
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    assert alike(model(*rest), twin(*rest))


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs g++ for the CPU")
def test_inductor_compiles_all_functions_into_one_program() -> None:
    """Inductor lays tensors out as it likes, also on a CPU; one program takes one run of its compiler."""

    def everything(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([case.ours(*(x * 2 for x in (a, b)[: case.tensors])) + 1 for case in CASES]).sum(0)

    torch.compiler.reset()
    compiled = torch.compile(everything, fullgraph=True)
    for _ in range(2):
        assert_trains_alike(compiled, everything, [torch.randn(16, 8, requires_grad=True) for _ in range(2)])


@pytest.mark.parametrize("family", FAMILIES)
def test_warmup_compiles_kernels_of_every_family(family: str) -> None:
    assert any(kernel.name.startswith(family) for kernel in all_kernels())
