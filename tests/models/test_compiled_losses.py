"""The cross entropy of 16-bit logits in compiled models, in the forms in which models write it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autograd_bridge as bridge
from cupyops.torch import Fusions
from cupyops.torch.compiled import graphs
from cupyops.torch.fusions.losses import fuse_losses
from tests.models.calls import in_graph

WIDTH, CLASSES = 16, 40


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(graphs, "_FUNCTIONS", [partial(fuse_losses, devices=("cpu", "cuda"))])


def converted(logits: Tensor, labels: Tensor) -> Tensor:
    """As ForCausalLM models of transformers write it."""
    labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.float().view(-1, CLASSES), labels.view(-1), ignore_index=-100, reduction="mean")


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    """As former versions write it."""
    logits = logits.to(torch.float32)[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, CLASSES), labels[..., 1:].reshape(-1), reduction="sum")


def in_16_bits(logits: Tensor, labels: Tensor) -> Tensor:
    """As T5 and BERT write it."""
    return nn.CrossEntropyLoss(label_smoothing=0.1)(logits.view(-1, CLASSES), labels.view(-1))


def weighted(logits: Tensor, labels: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, CLASSES)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), weight, reduction="none").mean()


LOSSES = (converted, shifted, in_16_bits, weighted)


class Head(nn.Module):
    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.head, self.loss = bridge.RMSNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False), loss

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.norm(x))
        return self.loss(logits, labels), logits


def operands() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 5, WIDTH, dtype=torch.bfloat16), torch.randint(CLASSES, (3, 5))


def called(function: Callable[..., Any], *inputs: Tensor, fuse: Callable[[Any], Any]) -> list[str]:
    """The operators of this project in the graph of a function, after the rewriting."""
    found: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        fuse(graph)
        functions = (n.target for n in graph.graph.nodes if n.op == "call_function")
        found.extend(in_graph(graph))
        found.extend("cross_entropy" for f in functions if f is bridge.cross_entropy)
        return graph

    torch.compile(function, fullgraph=True, backend=backend)(*inputs)
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_model_with_an_operator_has_the_loss_and_the_gradients_that_it_had(loss: Any) -> None:
    model = Head(loss).bfloat16()
    x, labels = operands()
    right, logits = model(x, labels)
    wanted = torch.autograd.grad(right, model.parameters())
    assert called(model, x, labels, fuse=partial(fuse_losses, devices=("cpu",))) == ["rms_norm", "cross_entropy"]
    torch.compiler.reset()
    found, same = torch.compile(model, fullgraph=True)(x, labels)
    assert found.dtype is right.dtype
    torch.testing.assert_close(found, right, rtol=1e-2 if found.dtype.itemsize == 2 else 1e-5, atol=0)
    torch.testing.assert_close(same, logits)
    for a, b in zip(torch.autograd.grad(found, model.parameters()), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(b.abs().max()))


def test_a_graph_without_an_operator_keeps_its_loss() -> None:
    x, labels = operands()
    head = nn.Linear(WIDTH, CLASSES, dtype=torch.bfloat16)
    fuse = partial(fuse_losses, devices=("cpu",))
    assert called(lambda: converted(head(x), labels), fuse=fuse) == []
    torch.compiler.reset()
    fusions = Fusions("cross_entropy", devices="cpu", backend="aot_eager")
    torch.compile(lambda: converted(head(x), labels), backend=fusions)()
    assert [(s.fusion, s.refusal) for s in fusions.sites] == [("cross_entropy", "")]


def test_other_losses_stay() -> None:
    x, labels = torch.randn(3, 5, CLASSES, dtype=torch.bfloat16), torch.randint(CLASSES, (3, 5))

    def refusals(loss: Callable[[], Tensor]) -> list[str]:
        torch.compiler.reset()
        fusions = Fusions("cross_entropy", devices="cpu", backend="eager")
        torch.testing.assert_close(torch.compile(loss, backend=fusions)(), loss())
        return [s.refusal for s in fusions.sites]

    other = ["it is not of rows of logits and class indices"]
    assert refusals(lambda: F.cross_entropy(x.movedim(-1, 1).float(), labels)) == other
    assert refusals(lambda: F.cross_entropy(x[0].float(), x[0].float().softmax(-1))) == other
    assert refusals(lambda: F.cross_entropy(x[0, 0].float(), labels[0, 0])) == other
    assert refusals(lambda: F.cross_entropy((x.float() * 2).view(-1, CLASSES), labels.view(-1))) == []
    assert refusals(lambda: F.cross_entropy(x[0].double(), labels[0])) == []
