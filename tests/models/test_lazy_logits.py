"""optimize(lazy_logits=True): the head of a language model and its loss are one operator, and logits that are read are right."""

import copy
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import CrossEntropyLoss

from cupyops.torch import optimize
from cupyops.torch.models.lazy import LazyLogits

from .calls import Calls

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS, WIDTH, CLASSES = 5, 8, 24


def causal_loss(logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Any = None, **_: Any) -> Tensor:
    """transformers' ForCausalLMLoss."""
    logits = logits.float()
    shift_labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1).to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(logits.view(-1, vocab_size), shift_labels, ignore_index=-100, reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


class Output(NamedTuple):
    loss: Tensor | None
    logits: Any


class Head(nn.Module):
    """Llama's, and with a soft cap Gemma-2's."""

    def __init__(self, softcap: float | None = None, bias: bool = False) -> None:
        super().__init__()
        self.body, self.lm_head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES, bias=bias)
        self.softcap, self.loss_function = softcap, causal_loss

    def forward(self, x: Tensor, labels: Tensor | None = None, logits_to_keep: int = 0, **kwargs: Any) -> Any:
        hidden_states = self.body(x)
        logits = self.lm_head(hidden_states[:, slice(-logits_to_keep, None), :])
        if self.softcap is not None:
            logits = logits / self.softcap
            logits = torch.tanh(logits)
            logits = logits * self.softcap
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=CLASSES, **kwargs)
        return Output(loss=loss, logits=logits)


class Scaled(Head):
    """Cohere's; Granite divides."""

    def forward(self, x: Tensor, labels: Tensor, **kwargs: Any) -> Any:
        logits = self.lm_head(self.body(x)).contiguous()
        logits = logits * 0.0625
        others = self.lm_head(x)
        loss = self.loss_function(logits, labels, CLASSES) + self.loss_function(others / 4, labels, CLASSES)
        return Output(loss=loss, logits=logits)


class Shifted(Head):
    """GPT-2's of older releases, and T5's without the shift."""

    def forward(self, x: Tensor, labels: Tensor, **kwargs: Any) -> Any:
        logits = self.lm_head(self.body(x))
        loss_fct = CrossEntropyLoss(torch.ones(CLASSES, dtype=x.dtype, device=x.device), label_smoothing=0.1)
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        loss = loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
        loss = loss + F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="sum")
        return Output(loss=loss, logits=logits)


class Predictions(nn.Module):
    """A head in a module of its own: dense layer, activation, norm and decoder."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.dense, self.norm, self.decoder = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, features: Tensor, **kwargs: Any) -> Tensor:
        hidden_states = F.gelu(self.dense(features))
        hidden_states = self.norm(hidden_states)
        hidden_states = self.decoder(hidden_states)

        prediction_scores = hidden_states
        return prediction_scores  # noqa: RET504 - as it is written in models


class OnlyPredictions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.predictions = Predictions()

    def forward(self, sequence_output: Tensor) -> Tensor:
        prediction_scores = self.predictions(sequence_output)
        return prediction_scores  # noqa: RET504


class Masked(nn.Module):
    """BERT's and RoBERTa's, and a classifier that is no head of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.cls, self.lm_head = nn.Linear(WIDTH, WIDTH), OnlyPredictions(), Predictions()
        self.classifier = Predictions(2)

    def forward(self, x: Tensor, labels: Tensor, **kwargs: Any) -> Any:
        loss_fct, sequence_output = CrossEntropyLoss(), self.body(x)
        prediction_scores = self.cls(sequence_output)
        others = self.lm_head(sequence_output)
        pair_logits = self.classifier(sequence_output)
        loss = loss_fct(prediction_scores.view(-1, CLASSES), labels.view(-1))
        loss = (
            loss + loss_fct(others.view(-1, CLASSES), labels.view(-1)) + loss_fct(pair_logits[:, 0], labels[:, 0] % 2)
        )
        return Output(loss=loss, logits=prediction_scores)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "masked": Masked,
    "causal": Head,
    "soft cap": lambda: Head(softcap=3.0, bias=True),
    "scaled": lambda: Scaled(bias=True),
    "shifted": lambda: Shifted(bias=True),
}


def data(dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, ROWS, WIDTH, generator=generator).to(device, dtype)
    labels = torch.randint(0, CLASSES, (2, ROWS), generator=generator)
    labels[0, 2] = -100
    return x, labels.to(device)


def gradients(module: nn.Module, loss: Tensor) -> list[Tensor]:
    return [loss, *torch.autograd.grad(loss, [*module.parameters()])]


def optimized(name: str = "causal", **where: Any) -> tuple[Any, Any]:
    """An optimised model, and its twin that is as it was."""
    module = MODELS[name]().to(**where)
    plain = copy.deepcopy(module)
    report = optimize(module, lazy_logits=True)
    assert "linear_cross_entropy" in {site.operator for site in report.replaced}
    return module, plain


def test_without_the_option_logits_are_tensors() -> None:
    module = Head()
    assert not optimize(module).replaced
    assert type(module(*data()).logits) is Tensor


@pytest.mark.parametrize("more", [{}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)}])
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_and_its_gradients_are_those_of_the_model(name: str, more: Any, backend: str, device: str) -> None:
    module, plain = optimized(name, device=device)
    x, labels = data(device=device)
    out, wanted = module(x, labels, **more), plain(x, labels, **more)
    assert isinstance(out.logits, LazyLogits)
    for got, want in zip(gradients(module, out.loss), gradients(plain, wanted.loss), strict=True):
        assert got.dtype is want.dtype
        torch.testing.assert_close(got, want)
    assert out.logits._head.logits is None
    torch.testing.assert_close(out.logits.tensor(), wanted.logits)


def test_float64_logits_that_a_loss_casts_to_float32_are_computed() -> None:
    """The operator would compute the loss in float64."""
    module, plain = optimized(dtype=torch.float64)
    out, wanted = (m(*data(torch.float64)) for m in (module, plain))
    assert isinstance(out.logits, LazyLogits)
    assert out.loss.dtype is wanted.loss.dtype is torch.float32
    assert torch.equal(out.loss, wanted.loss)


@pytest.mark.parametrize(
    ("name", "losses"), [("causal", 1), ("soft cap", 1), ("scaled", 2), ("shifted", 2), ("masked", 2)]
)
def test_logits_that_only_the_loss_reads_are_not_computed(name: str, losses: int) -> None:
    module, _ = optimized(name)
    with Calls() as calls:
        out = module(*data())
        out.loss.backward()
    assert {name: n for name, n in calls.ours.items() if "linear_cross" in name} == {"linear_cross_entropy": losses}
    assert (tuple(out.logits.shape), out.logits.dtype) == ((2, ROWS, CLASSES), torch.float32)
    assert out.logits.device == out.loss.device
    assert (out.logits.dim(), out.logits.size(-1), out.logits.requires_grad) == (3, CLASSES, True)
    assert repr(out.logits) == "LazyLogits(shape=(2, 5, 24), dtype=torch.float32, device='cpu')"
    assert out.logits._head.logits is None


READ: list[Callable[[Any], Any]] = [
    lambda z: z.argmax(-1),
    lambda z: torch.softmax(z, -1),
    lambda z: z[..., -1, :] - 1,
    lambda z: z[:, 1:3, 2],
    lambda z: z[0],
    lambda z: z[:, :, ::2],
    lambda z: z[1:, ..., 0:3],
    lambda z: z[:, 1:].reshape(-1, CLASSES),
    lambda z: z.view(-1),
    lambda z: z.view(2, -1, 3, CLASSES // 3),
    lambda z: 2 * z + z,
    lambda z: z * 2.0,
    lambda z: z / 2,
    lambda z: (z / 2).tanh(),
    lambda z: torch.tanh(z / 2) * 3,
    lambda z: z / -2,
    lambda z: (z / 2) / 2,
    lambda z: z.tanh(),
    lambda z: -z,
    lambda z: z == z,
    lambda z: torch.stack([z, z]),
    lambda z: z.float().contiguous().reshape(-1, CLASSES),
    lambda z: z.to(torch.float32),
    lambda z: z.to("cpu", torch.bfloat16),
    lambda z: torch.tensor(z.detach().numpy()),
    lambda z: torch.tensor(len(z)),
    lambda z: torch.stack([*z]),
    lambda z: copy.deepcopy(z.detach()),
    lambda z: F.cross_entropy(z.view(-1, CLASSES), torch.softmax(z.view(-1, CLASSES), 1)),
    lambda z: F.cross_entropy(z.transpose(1, 2), torch.zeros(2, ROWS, dtype=torch.int64)),
    lambda z: F.cross_entropy(z[0, 0:1].view(CLASSES), torch.tensor(3)),
    lambda z: F.cross_entropy(z.view(-1, CLASSES), torch.zeros(2 * ROWS, dtype=torch.int64), size_average=False),
    lambda z: F.cross_entropy((z / 2).view(-1, CLASSES).tanh(), torch.zeros(2 * ROWS, dtype=torch.int64)),
    lambda z: F.cross_entropy(z.view(-1, CLASSES) * 3, torch.zeros(2 * ROWS, dtype=torch.int64)),
    lambda z: F.cross_entropy(z.view(-1, CLASSES) / 3, torch.zeros(2 * ROWS, dtype=torch.int64)),
    lambda z: F.cross_entropy((2 * z).view(-1, CLASSES) / 2, torch.zeros(2 * ROWS, dtype=torch.int64)),
    lambda z: F.nll_loss(F.log_softmax(z.view(-1, CLASSES), -1), torch.zeros(2 * ROWS, dtype=torch.int64)),
]


@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
@pytest.mark.parametrize("read", READ)
def test_what_reads_logits_gets_what_it_got(read: Callable[[Any], Any]) -> None:
    module, plain = optimized()
    x, _ = data()
    out, wanted = module(x), plain(x)
    assert isinstance(out.logits, LazyLogits)
    got, want = read(out.logits), read(wanted.logits)
    got = got.tensor() if isinstance(got, LazyLogits) else got
    assert (got.dtype, got.requires_grad) == (want.dtype, want.requires_grad)
    torch.testing.assert_close(got, want)
    if want.requires_grad:
        (a,), (b,) = (
            torch.autograd.grad(y.float().sin().sum(), [m.body.weight]) for y, m in ((got, module), (want, plain))
        )
        torch.testing.assert_close(a, b)


def test_a_view_of_logits_that_pytorch_refuses_is_refused() -> None:
    for module in optimized():
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            module(data()[0]).logits[:, 1:].view(-1, CLASSES)
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            module(data()[0]).logits.view(-1, CLASSES + 1)


def test_logits_read_without_gradients_have_them_later() -> None:
    module, plain = optimized()
    out, wanted = (m(*data()) for m in (module, plain))
    with torch.no_grad():
        assert torch.equal(out.logits.argmax(-1), wanted.logits.argmax(-1))
    loss = out.loss + out.logits.square().mean()
    for got, want in zip(
        gradients(module, loss), gradients(plain, wanted.loss + wanted.logits.square().mean()), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_logits_changed_in_place_before_the_loss_are_what_the_loss_reads() -> None:
    module, plain = optimized()
    x, labels = data()
    results = []
    for m in (module, plain):
        logits = m(x).logits
        rows = logits.float().view(-1, CLASSES)
        before = logits.view(-1, CLASSES)
        logits[..., 3] = -5.0
        rows[:, 4] = -5.0
        losses = [F.cross_entropy(z, labels.view(-1)) for z in (rows, before, logits.view(-1, CLASSES))]
        results.append([float(loss.detach()) for loss in losses])
    assert results[0] == pytest.approx(results[1])


def test_logits_read_after_the_optimizer_s_step_say_so() -> None:
    """They would be the logits of other weights."""
    module, _ = optimized()
    out, read = module(*data()), module(*data())
    read.logits.tensor()
    (out.loss + read.loss).backward()
    torch.optim.SGD(module.parameters(), 0.1).step()
    read.logits.argmax(-1)
    with pytest.raises(RuntimeError, match=r"^the head of the model or its argument has changed .* lazy_logits=True"):
        out.logits.argmax(-1)
    late = module(data()[0])
    with torch.no_grad():
        module.lm_head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="lazy_logits=True"):
        causal_loss(late.logits, data()[1], CLASSES)


def _frozen(module: Any) -> None:
    module.requires_grad_(False)


def _hooked(module: Any) -> None:
    module.lm_head.register_forward_hook(lambda *_: None)


def _narrow(module: Any) -> None:
    module.lm_head = nn.Linear(WIDTH, WIDTH)


def _replica(module: Any) -> None:
    module._is_replica = True


@pytest.mark.parametrize("change", [nn.Module.eval, _frozen, _hooked, _narrow, _replica])
def test_logits_are_tensors_where_nothing_trains_or_something_sees_the_head(change: Callable[[Any], Any]) -> None:
    module, plain = optimized()
    for m in (module, plain):
        torch.manual_seed(0)
        change(m)
    x, _ = data()
    assert type(module(x).logits) is Tensor
    torch.testing.assert_close(module(x).logits, plain(x).logits)


@pytest.mark.parametrize("name", ["cls", "cls.predictions", "cls.predictions.decoder"])
def test_a_hook_of_a_head_gets_a_tensor(name: str) -> None:
    module, plain = optimized("masked")
    seen: list[Any] = []
    module.get_submodule(name).register_forward_hook(lambda *args: seen.append(args[2]))
    out, wanted = module(*data()), plain(*data())
    assert type(seen[0]) is Tensor
    torch.testing.assert_close([seen[0], out.loss], [wanted.logits, wanted.loss])


def test_a_module_that_returns_the_result_of_a_classifier_is_no_head() -> None:
    report = optimize(Masked(), lazy_logits=True)
    heads = {site.name for site in report.replaced if site.operator == "linear_cross_entropy"}
    assert heads == {"cls", "cls.predictions", "lm_head"}


def test_logits_are_tensors_without_gradients_and_in_a_compiled_model() -> None:
    module, plain = optimized()
    x, labels = data()
    with torch.no_grad():
        assert type(module(x, labels).logits) is Tensor
    torch.compiler.reset()
    out = torch.compile(module, backend="eager", fullgraph=True)(x, labels)
    assert type(out.logits) is Tensor
    torch.testing.assert_close(out.loss, plain(x, labels).loss)


@pytest.mark.parametrize("name", MODELS)
def test_under_autocast_the_loss_has_the_dtype_that_it_had(name: str) -> None:
    module, plain = optimized(name)
    x, labels = data()
    with torch.autocast("cpu", torch.bfloat16):
        out, wanted = module(x, labels), plain(x, labels)
    assert isinstance(out.logits, LazyLogits)
    assert out.logits.dtype is wanted.logits.dtype is torch.bfloat16
    torch.testing.assert_close(out.logits.tensor(), wanted.logits)
    for got, want in zip(gradients(module, out.loss), gradients(plain, wanted.loss), strict=True):
        assert got.dtype is want.dtype
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.02 * float(want.detach().abs().max()))


def test_a_loss_of_16_bit_logits_has_their_dtype() -> None:
    module, plain = optimized("shifted", dtype=torch.bfloat16)
    out, wanted = (m(*data(torch.bfloat16)) for m in (module, plain))
    assert out.loss.dtype is wanted.loss.dtype is torch.bfloat16
    torch.testing.assert_close(out.loss, wanted.loss, rtol=0.02, atol=0.02)


def test_logits_are_pickled_as_tensors() -> None:
    module, plain = optimized()
    x, _ = data()
    module.requires_grad_(False)
    module.lm_head.bias = nn.Parameter(torch.zeros(CLASSES, dtype=x.dtype))
    module.lm_head.weight.requires_grad_()
    logits = module(x).logits
    assert isinstance(logits, LazyLogits)
    twin = pickle.loads(pickle.dumps(logits))
    assert type(twin) is Tensor
    torch.testing.assert_close(twin, plain(x).logits)


def test_undo_gives_tensors_back() -> None:
    module = Head()
    with optimize(module, lazy_logits=True):
        assert isinstance(module(data()[0]).logits, LazyLogits)
    assert type(module) is Head
    assert type(module(data()[0]).logits) is Tensor
