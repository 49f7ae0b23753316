"""The backend of KernelBench's prompts: its example is right, and KernelBench renders it."""

from pathlib import Path

import pytest
import tomllib
import torch
from torch import nn

from cupyops import simulate
from cupyops.integrations import kernelbench
from cupyops.integrations.kernelbench import example
from cupyops.integrations.kernelbench.__main__ import entry
from cupyops.testing import score


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


@pytest.mark.simulator
def test_the_example_is_right() -> None:
    found = score(Model, example.ModelNew, lambda: [torch.randn(3, 19), torch.randn(3, 19)], device="cpu")
    assert found.correct, str(found)
    x = torch.randn(5, 301)
    with simulate():
        example.row_sum(x, y := torch.empty(5), 5, 301)
    torch.testing.assert_close(y, x.sum(1))


def test_the_entry_names_the_example() -> None:
    backend = tomllib.loads(entry())["backends"]["cupyops"]
    assert Path(backend["one_shot_new_arch"]) == kernelbench.EXAMPLE
    assert kernelbench.EXAMPLE.read_text(encoding="utf-8").count("class ModelNew(nn.Module)") == 1


def test_kernelbench_renders_a_prompt_with_the_example(tmp_path: Path) -> None:
    prompts = pytest.importorskip("kernelbench.prompt_constructor_toml")
    from kernelbench.utils import get_package_resource_path

    toml = tmp_path / "prompts.toml"
    toml.write_text(Path(get_package_resource_path("prompts/prompts.toml")).read_text() + entry())
    text = prompts.render_prompt_by_option(
        prompts_toml=str(toml), backend="cupyops", option="one_shot", context={"ref_arch_src": "class Model: ..."}
    )
    assert kernelbench.EXAMPLE.read_text(encoding="utf-8").strip() in text
    assert "CUDA C++ kernels, compiled at run time by cupyops" in text


WRITES_TOO_FAR = """
import torch
from torch.utils.cpp_extension import load_inline

cuda = r'''
__global__ void add(const float* a, const float* b, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = a[i] + b[i];
}
torch::Tensor f(torch::Tensor a, torch::Tensor b) {
    auto y = torch::empty_like(a);
    add<<<(a.numel() + 255) / 256 + 1, 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), a.numel());
    return y;
}'''
built = load_inline("too_far", "torch::Tensor f(torch::Tensor a, torch::Tensor b);", cuda, functions=["f"])


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return built.f(a, b)
"""


@pytest.mark.simulator
def test_kernelbench_evaluates_programs_on_a_cpu() -> None:
    evaluate = pytest.importorskip("kernelbench.eval").eval_kernel_against_ref
    from kernelbench.utils import get_package_resource_path

    from cupyops.integrations.kernelbench.evaluation import simulated

    prompts = Path(get_package_resource_path("prompts"))
    reference = (prompts / "model_ex_add.py").read_text()
    theirs, ours = (prompts / "model_new_ex_add.py").read_text(), kernelbench.EXAMPLE.read_text(encoding="utf-8")
    before = dict(vars(torch.cuda))
    with simulated(sanitize=True):
        found = [
            evaluate(reference, program, device=torch.device("cpu"), backend=backend)
            for program, backend in [(theirs, "cuda"), (ours, "cupyops"), (WRITES_TOO_FAR, "cuda")]
        ]
    assert [(result.compiled, result.correctness) for result in found] == [(True, True), (True, True), (True, False)]
    assert "out of bounds" in str(found[2].metadata["runtime_error"])
    assert vars(torch.cuda) == before
