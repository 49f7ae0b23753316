"""Copies and files of operators, and of models that have operators as attributes."""

import copy
import functools
import io
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cupyops
from cupyops import Kernel, Threads, Tuned
from cupyops.torch import Operator, elementwise, optimize, row_reduce
from tests import preloaded


def body(x: Tensor) -> Tensor:
    return x * 2


DOUBLE = Operator(
    "cupyops_test::copied(Tensor x) -> Tensor y", body, backward=lambda grad_y: grad_y * 2, reference=body
)
SQUARE = elementwise("y = x * x", "grad_x = 2 * x * grad_y", reference=torch.square)
SCALED = elementwise("y = s * x", name="cupyops_test::scaled_copy", scalars=["s"])
TOTAL = row_reduce("y = sum(x * w)", columns=["w"])
WITH_A_LAMBDA = elementwise("y = x + x", reference=lambda x: x + x)
OPERATORS = {
    "operator": DOUBLE,
    "its backward": DOUBLE.backward,
    "program": SQUARE,
    "its gradient": SQUARE.backward,
    "program with numbers": SCALED,
    "row program": TOTAL,
    "program with a lambda": WITH_A_LAMBDA,
}


class Holds(nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op, self.weight = op, nn.Parameter(torch.ones(3))
        self.bound = functools.partial(op)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.bound(self.op(x * self.weight))
        return found


def saved(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_copy_is_the_operator_itself(name: str) -> None:
    op = OPERATORS[name]
    for again in (copy.copy(op), copy.deepcopy(op), pickle.loads(pickle.dumps(op)), saved(op)):
        assert again is op


@pytest.mark.parametrize("op", [DOUBLE, SQUARE, WITH_A_LAMBDA], ids=["operator", "program", "with a lambda"])
def test_models_with_operators_are_copied_averaged_and_saved(op: Operator) -> None:
    model, x = Holds(op), torch.randn(2, 3)
    wanted = model(x)
    for again in (copy.deepcopy(model), saved(model), torch.optim.swa_utils.AveragedModel(model)):
        torch.testing.assert_close(again(x), wanted)
        again(x).sum().backward()
    assert model.weight.grad is None


def test_a_program_is_the_activation_of_copied_layers() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=SQUARE, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 4, 8)
    torch.testing.assert_close(saved(encoder)(x), encoder(x))


def test_an_optimised_model_is_copied_and_saved() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    optimize(model)
    x = torch.randn(2, 8)
    for again in (copy.deepcopy(model), saved(model)):
        torch.testing.assert_close(again(x), model(x))


@pytest.mark.simulator
def test_a_tuned_kernel_is_copied_and_saved() -> None:
    text = """extern "C" __global__ void twice_of(const float* x, // (n)
        float* y, // (n)
        int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }"""
    tuned = Tuned((Kernel(text, "twice_of", Threads("n", block=(block, 1, 1))) for block in (32, 64)), exact=["n"])
    for again in (copy.deepcopy(tuned), pickle.loads(pickle.dumps(tuned))):
        y = torch.zeros(3)
        with cupyops.simulate():
            again(torch.ones(3), y, 3)
        assert (y.tolist(), again.exact) == ([2, 2, 2], {"n"})


LOADING = """
import sys, torch
found = []
for path in sys.argv[1:]:
    try:
        found.append(torch.load(path, weights_only=False)(torch.tensor([[1.0, 2.0]]), *([2.0] if "number" in path else [])).tolist())
    except RuntimeError as error:
        found.append(str(error))
print(found)
"""


def test_another_process_declares_programs_and_names_other_operators(tmp_path: Path) -> None:
    files = []
    for name, op in (("program", SQUARE), ("number", SCALED), ("operator", DOUBLE), ("lambda", WITH_A_LAMBDA)):
        files.append(str(tmp_path / name))
        torch.save(op, files[-1])
    done: subprocess.CompletedProcess[str] = preloaded.run(["-c", LOADING, *files], cwd=tmp_path)
    assert not done.returncode, done.stderr
    squared, scaled, *errors = eval(done.stdout.splitlines()[-1])
    assert (squared, scaled) == ([[1, 4]], [[2, 4]])
    for error, op in zip(errors, (DOUBLE, WITH_A_LAMBDA), strict=True):
        assert error == (
            f"a pickled object calls the operator {op.qualified_name}, which is not declared: import the module that "
            "declares it first"
        )
