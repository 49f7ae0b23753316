"""``torch::autograd::Function``: a class of the user with ``forward`` and ``backward`` becomes one of ``torch.autograd``."""

from typing import Any

import torch

from . import tensors  # noqa: F401  its C++ text comes first
from .containers import Map
from .numbers import Number
from .references import Pointer, Variable
from .standard import Vector
from .words import declare, methods, word

__all__ = ["Function"]

# A value of any type, a Python object.
word(
    "c10::IValue",
    "struct IValue { IValue(); template <class T> IValue(const T&); bool isNone() const; bool isTensor() const; int64_t toInt() const;"
    " double toDouble() const; bool toBool() const; at::Tensor toTensor() const; std::string toStringRef() const;"
    " std::vector<int64_t> toIntVector() const; std::vector<double> toDoubleVector() const; std::vector<bool> toBoolList() const;"
    " std::vector<at::Tensor> toTensorVector() const; at::ScalarType toScalarType() const; template <class T> T to() const;"
    " template <class T> std::optional<T> toOptional() const; };",
    methods="c10::IValue_",
)(lambda value=None: value)
methods(
    "c10::IValue_",
    {
        "isNone": lambda value: value is None,
        "isTensor": lambda value: isinstance(value, torch.Tensor),
        **dict.fromkeys(
            ("toInt", "toDouble", "toBool", "toTensor", "toStringRef", "toScalarType"), lambda value: value
        ),
        **dict.fromkeys(("toIntVector", "toDoubleVector", "toBoolList", "toTensorVector"), lambda value: value.copy()),
    },
)


@word("c10::IValue_::to", typed=True)
@word("c10::IValue_::toOptional", typed=True)
def _to(kind: Any, value: Any) -> Any:
    return kind(value) if isinstance(kind, Number) and value is not None else value


declare("namespace torch { using c10::IValue; } namespace at { using c10::IValue; }")


@word(
    "torch::autograd::AutogradContext",
    "struct AutogradContext { std::unordered_map<std::string, c10::IValue> saved_data; void save_for_backward(variable_list);"
    " variable_list get_saved_variables() const; void mark_non_differentiable(const variable_list&);"
    " void mark_dirty(const variable_list&); void set_materialize_grads(bool); bool needs_input_grad(size_t) const; };",
)
class AutogradContext:
    """The context of PyTorch with C++'s names."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.saved_data = Map("std::string", "c10::IValue")

    def save_for_backward(self, variables: list[Any]) -> None:
        self.context.save_for_backward(*variables)

    def get_saved_variables(self) -> Vector[Any]:
        return Vector(self.context.saved_tensors, "at::Tensor")

    def mark_non_differentiable(self, variables: list[Any]) -> None:
        self.context.mark_non_differentiable(*variables)

    def mark_dirty(self, variables: list[Any]) -> None:
        self.context.mark_dirty(*variables)

    def set_materialize_grads(self, value: bool) -> None:
        self.context.set_materialize_grads(value)

    def needs_input_grad(self, index: int) -> bool:
        return bool(self.context.needs_input_grad[index])


@word(
    "torch::autograd::Function",
    "template <class T> struct Function { template <class X = T, class... A>"
    " static auto apply(A&&... a) -> decltype(X::forward((AutogradContext*)nullptr, a...)); };",
)
class Function:
    """The class above a class of the user."""

    fields = ()

    @staticmethod
    def apply(kind: Any, *values: Any) -> Any:
        """Returns ``kind.forward(context, *values)``, whose gradients ``kind.backward(context, gradients)`` returns."""
        listed = False

        class Made(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, *given: Any) -> Any:
                nonlocal listed
                context.own = AutogradContext(context)
                found = kind.forward(Pointer(Variable(context.own), 0), *given)
                listed = isinstance(found, list)
                return tuple(found) if listed else found

            @staticmethod
            def backward(context: Any, *gradients: Any) -> Any:
                found = kind.backward(Pointer(Variable(context.own), 0), Vector(gradients, "at::Tensor"))
                return tuple(found)

        result = Made.apply(*values)
        return Vector(result, "at::Tensor") if listed else result


word("torch::autograd::Function::apply", typed=True)(Function.apply)


@word("torch::autograd::increment_version", "void increment_version(const at::Tensor&);")
def _increment_version(x: torch.Tensor) -> None:
    torch.autograd.graph.increment_version(x)


@word("torch::autograd::any_variable_requires_grad", "bool any_variable_requires_grad(const variable_list&);")
def _any_requires_grad(variables: list[Any]) -> bool:
    return any(x is not None and x.requires_grad for x in variables)


@word("torch::CustomClassHolder", "struct CustomClassHolder {};")
class CustomClassHolder:
    """The base class of classes that ``torch::class_`` would bind."""

    fields = ()
