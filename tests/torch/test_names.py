"""Names of arguments, results and operators: keywords of Python, builtins, and the names of generated code."""

import builtins
import keyword
from typing import Any

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops.torch import Operator, elementwise, operator, row_reduce
from cupyops.torch.core import declared, dispatch, repeated
from cupyops.torch.core.dispatch import call_source, casts_source, write_call
from cupyops.torch.core.gradients import Schema

# The words of the generated texts: their globals, their other names, and names that they make of names.
_OWN = {*dispatch._SCOPE, *declared._OWN}
_OWN |= {"body", "apply", "dispatch", "composite", "to_", "key", "steps", "repeats", "first", "current_device"}
_OWN |= {"self", "args", "kwargs", "grad_out", "want_x"}
WORDS = sorted({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_OWN})
HARD = ("lambda", "type", "from", "self", "yield", "body", "dispatch", "to_", "ctx_", "call_", "_", "out")


def accepted(schema: str) -> bool:
    """Returns whether PyTorch's parser accepts the schema."""
    try:
        torch._C.parse_schema(schema)
    except RuntimeError:
        return False
    return True


NAMES = [word for word in WORDS if accepted(f"m::f(Tensor {word}) -> Tensor")]


def times(x: Tensor, k: float) -> Tensor:
    return x * k


@pytest.fixture(scope="module")
def operators() -> dict[str, Operator]:
    """An operator for each name of an argument."""
    return {
        word: Operator(f"cupyops_names::of{i}(Tensor {word}, float k=2.0) -> Tensor", times, reference=times)
        for i, word in enumerate(NAMES)
    }


def test_most_keywords_and_all_own_words_are_tried() -> None:
    assert {"lambda", "from", "yield", "async", "type", "match", "body", "forward_ad"} <= {*NAMES}


@pytest.mark.parametrize("word", [word for word in WORDS if word not in NAMES])
def test_a_name_that_pytorch_refuses_is_refused_at_the_declaration(word: str) -> None:
    with pytest.raises(RuntimeError, match=f"expected ident but found '{word}'"):
        Operator(f"cupyops_names::refused(Tensor {word}) -> Tensor", times)


def test_each_name_of_an_argument(operators: dict[str, Operator]) -> None:
    x = torch.ones(2, requires_grad=True)
    for word, op in operators.items():
        for y in (op(x, 3.0), op(**{word: x, "k": 3.0}), op.op(x, 3.0)):
            assert y.tolist() == [3, 3], word
            assert torch.autograd.grad(y.sum(), x)[0].tolist() == [3, 3], word
        with pytest.raises(TypeError, match=f"missing 1 required positional argument: '{word}'"):
            op(k=3.0)


def test_each_name_of_an_argument_in_the_text_for_a_gpu() -> None:
    """The texts for CUDA tensors, in which a CPU takes the place of the GPU."""
    x = torch.ones(2, dtype=torch.float16)
    called = {"body": times, "apply": times, "dispatch": None}
    for word in NAMES:
        text = call_source("f", {word: False}, ["k"], {"k": 2.0}, casts="float32").replace("cuda", "cpu")
        call = write_call(text, called, "f", [word, "k"])
        number = write_call(
            call_source("f", {"x": word == "k"}, [word], {word: 3.0}).replace("cuda", "cpu"), called, "f", ["x", word]
        )
        casts = casts_source("f", {word: True}, ["k"], "float32").replace("cuda", "cpu")
        for found in (call(x), call(**{word: x}), number(x, 2.0), number(x=x, **{word: 2.0})):
            assert found.tolist() == [2, 2], word
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert call(**{word: x}).dtype is torch.float32, word
            assert write_call(casts, called, "f", [word, "k"])(x, 2.0).dtype is torch.float32, word


def test_each_name_of_an_argument_that_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    for word in NAMES:
        schema = Schema.parse(f"cupyops_names::{word}(Tensor {word}, int[] k) -> Tensor") if free(word) else None
        other = Schema.parse(f"cupyops_names::f(Tensor x, float {word if word != 'x' else 'k'}) -> Tensor")
        for parsed, k in ((schema, 2), (other, 2.0)):
            if parsed is not None:
                assert repeated.repeated(parsed, times)(torch.ones(2), k).tolist() == [2, 2], word


def free(word: str) -> bool:
    """Returns whether an operator may have the name."""
    return not word.startswith("__")


@pytest.mark.thorough
def test_each_name_in_a_declared_gradient() -> None:
    """The names of an argument, of a number, and of a result, in operators whose backward is an operator."""
    x = torch.ones(2, requires_grad=True)
    for i, word in enumerate(NAMES):
        for j, (tensor, number, result) in enumerate(((word, "k_", "y_"), ("x_", word, "y_"), ("x_", "k_", word))):
            grad = f"grad_{result}"
            if grad in (tensor, number):
                continue
            back = Operator(
                f"cupyops_names::b{i}_{j}(Tensor {grad}, Tensor {tensor}, Tensor {result}, float {number}) -> Tensor",
                lambda g, x, y, k: g * k * x * y,
            )
            op = Operator(
                f"cupyops_names::g{i}_{j}(Tensor {tensor}, float {number}) -> Tensor {result}", times, backward=back
            )
            for y in (op(x, 3.0), op(**{tensor: x, number: 3.0}), op.op(x, 3.0)):
                assert torch.autograd.grad(y.sum(), x)[0].tolist() == [9, 9], (word, j)


@pytest.mark.sample(2)
@pytest.mark.parametrize("word", HARD)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_name_in_a_compiled_graph(word: str, backend: str) -> None:
    torch._dynamo.reset()
    op = Operator(f"cupyops_names::compiled(Tensor {word}, float k=2.0) -> Tensor", times, reference=times)
    for call in (lambda x: op(x) + 1, lambda x: op(**{word: x}) + 1, lambda x: op.call(**{word: x, "k": 2.0}) + 1):
        x = torch.ones(2, requires_grad=True)
        y = torch.compile(call, fullgraph=True, backend=backend)(x)
        assert y.tolist() == [3, 3]
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 2]


class Called(torch.nn.Module):
    """A module that calls an operator by the names of its arguments."""

    def __init__(self, op: Operator, word: str) -> None:
        super().__init__()
        self.op, self.word = op, word

    def forward(self, x: Tensor) -> Any:
        return self.op(**{self.word: x})


@pytest.mark.parametrize("word", HARD)
def test_a_name_under_transforms_and_in_an_export(word: str) -> None:
    def twice(x: Tensor, k: float) -> Tensor:
        return 2.0 * x

    def moved(t: Tensor, k: float) -> Tensor:
        return t * k

    tangents = Operator(f"cupyops_names::moved(Tensor tangent_{word}, float k) -> Tensor", moved, reference=moved)
    back = Operator("cupyops_names::moved_back(Tensor grad_y, float k) -> Tensor", moved, reference=moved)
    options: Any = {"backward": back, "jvp": tangents, "reference": times, "autocast": "float32", "sharding": "rows"}
    op = Operator(f"cupyops_names::transformed(Tensor {word}, float k=2.0) -> Tensor y", times, **options)
    x = torch.ones(3, 2)
    assert torch.vmap(lambda x: op(**{word: x}))(x).tolist() == [[2, 2]] * 3
    assert torch.func.jvp(lambda x: op(**{word: x}), (x,), (x,))[1].tolist() == [[2, 2]] * 3
    assert torch.func.grad(lambda x: op(**{word: x}).sum())(x).tolist() == [[2, 2]] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(**{word: x.half()}).dtype is torch.float32
    exported = torch.export.export(Called(op, word), (x,))
    assert exported.module()(x).tolist() == [[2, 2]] * 3
    with pytest.raises(TypeError, match=f"`{word}` must be a Tensor"):
        op(1)


@pytest.mark.sample(70)
@pytest.mark.parametrize("word", [word for word in WORDS if accepted(f"m::{word}(Tensor x) -> Tensor")])
def test_each_name_of_an_operator(word: str) -> None:
    schema = f"cupyops_names::{word}(Tensor x, float k=2.0) -> Tensor y"
    if not free(word):
        with pytest.raises(ValueError, match="have a namespace and a name that are free in torch.ops"):
            Operator(schema, times)
        return
    op = Operator(schema, times, backward=lambda grad_y, k: grad_y * k)
    x = torch.ones(2, requires_grad=True)
    for y in (op(x, 3.0), op(x=x, k=3.0), op.op(x, 3.0), getattr(torch.ops.cupyops_names, word)(x, 3.0)):
        assert y.tolist() == [3, 3]
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [3, 3]
    assert op.call.__name__ == word


@pytest.mark.parametrize("name", ["m::name", "m::_dir", "m::__class__", "load_library::f", "m::f.out", "m::\u00e9"])
def test_an_operator_that_torch_ops_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Operator: `schema` must"):
        Operator(f"{name}(Tensor x) -> Tensor", times)


def test_the_decorator_and_repeated_declarations_take_such_names() -> None:
    for _ in range(2):
        op = operator("cupyops_names::lambda(Tensor lambda, float k=2.0) -> Tensor from")(times)
        assert op(**{"lambda": torch.ones(2)}).tolist() == [2, 2]


def test_a_text_and_a_name_with_an_underscore_beside_a_keyword() -> None:
    def body(x: Tensor, k: str, n: int) -> Tensor:
        return x * (n if k == " lambda, x" else 0)

    op = Operator('cupyops_names::text(Tensor lambda, str k=" lambda, x", int lambda_=2) -> Tensor', body)
    x = torch.ones(2)
    assert op(**{"lambda": x}).tolist() == op.op(x).tolist() == op.op(x, lambda_=2).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("schema", "backward", "message"),
    [
        ("same(Tensor x) -> Tensor x", lambda grad_x, x: grad_x * x, "`x` is an input and a result"),
        (
            "both(Tensor grad_out) -> Tensor",
            lambda grad_out: grad_out,
            "`grad_out` is an input and the gradient of a result",
        ),
    ],
)
def test_a_name_that_stands_for_two_values_is_refused(schema: str, backward: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Operator(f"cupyops_names::{schema}", lambda x: x * x, backward=backward)


@pytest.mark.sample(4)
@pytest.mark.parametrize("word", ["time", "xor", "main", "lambda", "EOF", "clock_t", "type"])
@pytest.mark.parametrize("program", [elementwise, row_reduce])
def test_the_kernel_of_a_program_of_any_name(program: Any, word: str) -> None:
    op = program("y = x * 2", name=f"cupyops_names::{word}")
    with cupyops.simulate():
        assert op(torch.ones(1, 2)).tolist() == [[2, 2]]
