"""Translations of the names of ``torch::nn::functional``, and the keys of PyTorch's dispatcher."""

from collections.abc import Callable
from typing import Any

import torch

from . import checks  # noqa: F401  its C++ text comes first
from .words import declare, enumeration, section, word

__all__: list[str] = []


_KEYS = (
    "CPU", "CUDA", "Meta", "Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd",
    "CompositeExplicitAutograd", "Autocast", "AutocastCUDA", "Functionalize", "BackendSelect", "Undefined",
)  # fmt: skip
enumeration("c10::DispatchKey", {key: key for key in _KEYS})


# torch::nn::functional, with its classes of options.


class FunctionOptions:
    """The options of a function of ``torch::nn::functional``: each method sets one, by its Python name."""

    def __init__(self, first: str = "", value: Any = None) -> None:
        self.values: dict[str, Any] = {first: value} if first else {}

    def __getattr__(self, name: str) -> Callable[[Any], "FunctionOptions"]:
        if name.startswith("__"):
            raise AttributeError(name)

        def setter(value: Any) -> "FunctionOptions":
            self.values[name] = value
            return self

        return setter


_INT, _INTS, _REAL, _BOOL = "int64_t", "at::IntArrayRef", "double", "bool"
_TENSOR, _MODE = "const at::Tensor&", "Mode_"
_REDUCTION = {"reduction": _MODE}
_CONV = {"bias": _TENSOR, "stride": _INTS, "padding": _INTS, "dilation": _INTS, "groups": _INT}
_POOL = {"stride": _INTS, "padding": _INTS, "ceil_mode": _BOOL}
# For each function: the leading tensors, the class of options, the option that its constructor takes, and its options.
_FUNCTIONS: dict[str, tuple[int, str, str, dict[str, str]]] = {
    "softmax": (1, "SoftmaxFuncOptions", "dim", {"dim": _INT, "dtype": "at::ScalarType"}),
    "log_softmax": (1, "LogSoftmaxFuncOptions", "dim", {"dim": _INT, "dtype": "at::ScalarType"}),
    "relu": (1, "ReLUFuncOptions", "", {"inplace": _BOOL}),
    "silu": (1, "", "", {}),
    "mish": (1, "", "", {}),
    "softsign": (1, "", "", {}),
    "logsigmoid": (1, "", "", {}),
    "gelu": (1, "GELUFuncOptions", "", {"approximate": "const std::string&"}),
    "elu": (1, "ELUFuncOptions", "", {"alpha": _REAL, "inplace": _BOOL}),
    "leaky_relu": (1, "LeakyReLUFuncOptions", "", {"negative_slope": _REAL, "inplace": _BOOL}),
    "hardtanh": (1, "HardtanhFuncOptions", "", {"min_val": _REAL, "max_val": _REAL, "inplace": _BOOL}),
    "softplus": (1, "SoftplusFuncOptions", "", {"beta": _REAL, "threshold": _REAL}),
    "dropout": (1, "DropoutFuncOptions", "", {"p": _REAL, "training": _BOOL, "inplace": _BOOL}),
    "normalize": (1, "NormalizeFuncOptions", "", {"p": _REAL, "dim": _INT, "eps": _REAL}),
    "pad": (1, "PadFuncOptions", "pad", {"pad": _INTS, "mode": _MODE, "value": _REAL}),
    "layer_norm": (
        1, "LayerNormFuncOptions", "normalized_shape",
        {"normalized_shape": _INTS, "weight": _TENSOR, "bias": _TENSOR, "eps": _REAL},
    ),
    "group_norm": (1, "GroupNormFuncOptions", "num_groups", {"num_groups": _INT, "weight": _TENSOR, "bias": _TENSOR, "eps": _REAL}),
    "batch_norm": (
        3, "BatchNormFuncOptions", "",
        {"weight": _TENSOR, "bias": _TENSOR, "training": _BOOL, "momentum": _REAL, "eps": _REAL},
    ),
    "max_pool2d": (1, "MaxPool2dFuncOptions", "kernel_size", {"kernel_size": _INTS, "dilation": _INTS, **_POOL}),
    "avg_pool2d": (1, "AvgPool2dFuncOptions", "kernel_size", {"kernel_size": _INTS, "count_include_pad": _BOOL, **_POOL}),
    "adaptive_avg_pool2d": (1, "AdaptiveAvgPool2dFuncOptions", "output_size", {"output_size": _INTS}),
    "conv1d": (2, "Conv1dFuncOptions", "", _CONV),
    "conv2d": (2, "Conv2dFuncOptions", "", _CONV),
    "conv3d": (2, "Conv3dFuncOptions", "", _CONV),
    "conv_transpose2d": (2, "ConvTranspose2dFuncOptions", "", {**_CONV, "output_padding": _INTS}),
    "conv_transpose3d": (2, "ConvTranspose3dFuncOptions", "", {**_CONV, "output_padding": _INTS}),
    "mse_loss": (2, "MSELossFuncOptions", "", _REDUCTION),
    "l1_loss": (2, "L1LossFuncOptions", "", _REDUCTION),
    "kl_div": (2, "KLDivFuncOptions", "", {**_REDUCTION, "log_target": _BOOL}),
    "smooth_l1_loss": (2, "SmoothL1LossFuncOptions", "", {**_REDUCTION, "beta": _REAL}),
    "cross_entropy": (
        2, "CrossEntropyFuncOptions", "",
        {**_REDUCTION, "weight": _TENSOR, "ignore_index": _INT, "label_smoothing": _REAL},
    ),
    "nll_loss": (2, "NLLLossFuncOptions", "", {**_REDUCTION, "weight": _TENSOR, "ignore_index": _INT}),
    "cosine_similarity": (2, "CosineSimilarityFuncOptions", "", {"dim": _INT, "eps": _REAL}),
}  # fmt: skip
_MODES = {
    "Mean": "mean",
    "Sum": "sum",
    "None": "none",
    "Constant": "constant",
    "Reflect": "reflect",
    "Replicate": "replicate",
}
_MODES |= {"Circular": "circular", "BatchMean": "batchmean"}
declare(
    "namespace torch { namespace nn { namespace functional {} } struct Mode_ { const char* name; };"
    f" constexpr Mode_ {', '.join(f'k{name} = {{0}}' for name in _MODES)}; }}"
)
for _name, _value in _MODES.items():
    word(f"torch::k{_name}")(_value)


def _functional(name: str, tensors: int) -> Callable[..., Any]:
    function = getattr(torch.nn.functional, name)

    def call(*arguments: Any) -> Any:
        options = arguments[tensors:]
        if options and isinstance(options[0], FunctionOptions):
            values = {k: list(v) if isinstance(v, list) else v for k, v in options[0].values.items()}
            return function(*arguments[:tensors], **values)
        return function(*arguments)

    return call


section("functional")
for _name, (_tensors, _class, _first, _given) in _FUNCTIONS.items():
    _parameters = ", ".join([_TENSOR] * _tensors)
    if _class:
        _constructor = f"{_class}({_given[_first]});" if _first else f"{_class}();"
        _setters = "".join(f" {_class}& {option}({kind});" for option, kind in _given.items())
        word(f"torch::nn::functional::{_class}", f"struct {_class} {{ {_constructor}{_setters} }};")(
            lambda value=None, first=_first: FunctionOptions(first, value)
        )
        _parameters += f", const {_class}&" + ("" if _first else " = {}")
    word(f"torch::nn::functional::{_name}", f"at::Tensor {_name}({_parameters});")(_functional(_name, _tensors))


@word(
    "torch::nn::functional::linear", "at::Tensor linear(const at::Tensor&, const at::Tensor&, const at::Tensor& = {});"
)
def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


section()
declare("#pragma clang force_cuda_host_device end")
