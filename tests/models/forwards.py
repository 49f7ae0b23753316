"""Methods whose calls become one in a rewritten method, and methods whose calls must stay."""
# ruff: noqa: RET504 - the assignments are what is tested

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .stand_ins import NewGELU

UNITS = 8
OUTSIDE = NewGELU()  # a module that is not part of a model


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.norm = nn.Linear(UNITS, UNITS), nn.GELU(), nn.LayerNorm(UNITS)
        self.plain = nn.LayerNorm(UNITS, elementwise_affine=False)
        self.silu, self.up = nn.SiLU(), nn.Linear(UNITS, UNITS)
        self.inner = nn.ModuleDict({"fc": nn.Linear(UNITS, UNITS), "act": nn.GELU("tanh")})
        self.late: Callable[[], Tensor] = torch.Tensor


def inplace(x: Tensor) -> Tensor:
    return x.add_(1)


def twice(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(self: Any, x: Tensor) -> Tensor:
        return 2 * function(self, x)

    return wrapper


class Keeper:
    """A decorator that holds the function in an object."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function


def kept(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    keeper = Keeper(function)

    @functools.wraps(function)
    def wrapper(self: Any, x: Tensor) -> Tensor:
        return keeper.function(self, x)

    return wrapper


# Each function is the forward of a module. The words are the operators of its changes.


def nested(self: Any, x: Tensor) -> Tensor:
    return self.act(self.fc(x))


def same_name(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    x = self.act(x)
    return x * 2


def other_name(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = self.act(z)
    return y * 2


def returned(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    return self.act(x)


def inside_an_expression(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = x + F.dropout(self.act(z), 0.0)
    return y


def in_branches(self: Any, x: Tensor) -> Tensor:
    for i in range(2):
        if i == 1:
            x = self.fc(x)
            x = self.act(x)
        else:
            x = x * 2
    return x


def in_a_comprehension(self: Any, x: Tensor) -> Tensor:
    return sum(self.act(self.fc(x * k)) for k in range(2))  # type: ignore[return-value]


def functions(self: Any, x: Tensor) -> Tensor:
    x = F.gelu(self.fc(x), approximate="tanh")
    x = torch.nn.functional.gelu(x, approximate="none")
    return F.layer_norm(x, (UNITS,), eps=1e-3)


def outside(self: Any, x: Tensor) -> Tensor:
    return OUTSIDE(self.fc(x))


def norm_of_a_sum(self: Any, x: Tensor) -> Tensor:
    return self.norm(x + self.fc(x))


def sum_and_norm(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    return x + F.dropout(self.norm(x), 0.0)


def sum_and_residual(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x) + x
    residual = x
    other = x
    x = self.norm(x)
    return x + residual * other


def gated(self: Any, x: Tensor) -> Tensor:
    return self.silu(self.fc(x)) * self.up(x)


def gated_the_other_way_round(self: Any, x: Tensor) -> Tensor:
    return self.up(x) * self.act(inplace(self.fc(x)))


def gated_by_items(self: Any, x: Tensor) -> Tensor:
    parts = x.split(4, dim=-1)
    return F.relu(parts[0]) * parts[1]


def gated_further_down(self: Any, x: Tensor) -> Tensor:
    a = F.silu(self.fc(x))
    x = self.up(x)
    x = x * a
    return x + 1


def gated_by_a_variable(self: Any, x: Tensor) -> Tensor:
    g = inplace(x * 2)
    a = self.act(g)
    y = a * g
    return y + g


def gated_halves(self: Any, x: Tensor) -> Tensor:
    g, u = self.fc(x).chunk(2, -1)
    u = self.silu(g) * u
    return u + 1


def gated_second_half(self: Any, x: Tensor) -> Tensor:
    u, g = self.fc(x).chunk(2, -1)
    return u * self.silu(g)


def scaled_by_an_attribute(self: Any, x: Tensor) -> Tensor:
    return self.act(self.fc(x)) * self.fc.bias


def modulated(self: Any, x: Tensor) -> Tensor:
    x = x[:, None]
    return self.plain(self.fc(x)) * (x + 1) + x


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


def modulate_more(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1.5 + scale) + shift


def modulated_by_a_function(self: Any, x: Tensor) -> Tensor:
    s = self.fc(x)[:, None]
    return modulate(self.plain(x[:, None]), s, s)


def modulated_after_an_addition(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    s = x[:, None]
    x = x[:, None] + self.fc(s)
    y = self.plain(x)
    y = y * (1.0 + s) + s
    return y + x


def halves_of(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """A gate and a shift, and scale: two results of a call."""
    both = self.fc(x.mean(1, keepdim=True))
    return both, both + 1


def gated_residual(self: Any, x: Tensor) -> Tensor:
    x = x[:, None]
    gate, scale = halves_of(self, x)
    gate = gate[..., :]
    x = self.fc(x) * gate + x
    return x + scale * x


def gated_residual_in_two_statements(self: Any, x: Tensor) -> Tensor:
    x = x[:, None]
    gate, scale = halves_of(self, x)
    y = self.fc(x)
    y = gate * y
    z = scale[:]
    x = x + y
    return x + z


def gated_residual_and_modulation(self: Any, x: Tensor) -> Tensor:
    x = x[:, None]
    gate, scale = halves_of(self, x)
    x = x + gate * self.fc(x)
    x = x + gate * self.fc(self.plain(x) * (1 + scale) + gate)
    return x * 2


def scale_of_the_sum(self: Any, x: Tensor) -> Tensor:
    """The scale is known after the sum alone."""
    x = x[:, None]
    gate, _ = halves_of(self, x)
    x = x + gate * self.fc(x)
    return self.plain(x) * (1 + x[:, :1]) + x[:, :1]


def scale_replaced_before_the_modulation(self: Any, x: Tensor) -> Tensor:
    x = x[:, None]
    gate, scale = halves_of(self, x)
    x = x + gate * self.fc(x)
    y = self.plain(x)
    scale = scale[:, :1]
    return y * (1 + scale) + gate


FUSED: list[tuple[Callable[..., Tensor], list[str]]] = [
    (nested, ["linear_gelu"]),
    (same_name, ["linear_gelu"]),
    (other_name, ["linear_gelu"]),
    (returned, ["linear_gelu"]),
    (inside_an_expression, ["linear_gelu"]),
    (in_branches, ["linear_gelu"]),
    (in_a_comprehension, ["linear_gelu"]),
    (functions, ["linear_gelu", "gelu", "layer_norm"]),
    (outside, ["linear_gelu"]),
    (norm_of_a_sum, ["add_layer_norm"]),
    (sum_and_norm, ["add_layer_norm"]),
    (sum_and_residual, ["add_layer_norm"]),
    (gated, ["swiglu"]),
    (gated_the_other_way_round, ["geglu"]),
    (gated_by_items, ["reglu"]),
    (gated_further_down, ["swiglu"]),
    (gated_by_a_variable, ["geglu"]),
    (gated_halves, ["swiglu"]),
    (gated_second_half, ["swiglu"]),
    (scaled_by_an_attribute, ["linear_gelu"]),
    (modulated, ["adaptive_layer_norm"]),
    (modulated_by_a_function, ["adaptive_layer_norm"]),
    (modulated_after_an_addition, ["adaptive_layer_norm"]),
    (gated_residual, ["gated_add", "gated_add"]),
    (scale_of_the_sum, ["add_layer_norm"]),
    (scale_replaced_before_the_modulation, ["adaptive_layer_norm", "gated_add"]),
    (gated_residual_in_two_statements, ["gated_add"]),
    (gated_residual_and_modulation, ["add_adaptive_layer_norm", "gated_add"]),
    (twice(nested), ["linear_gelu"]),
    (twice(twice(sum_and_norm)), ["add_layer_norm"]),
]


# The value between is read again, changed, or may be read.


def read_again(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = self.act(z)
    return y + z


def read_and_written_in_place(self: Any, x: Tensor) -> Tensor:
    z = self.fc(x)
    y = self.act(z)
    z += 1
    return y


def read_in_the_same_statement(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    x = self.act(x) + x
    return x


def read_by_a_function_inside(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    late = lambda: x  # noqa: E731
    x = self.act(x)
    return x + late()


def read_in_a_handler(self: Any, x: Tensor) -> Tensor:
    try:
        x = self.fc(x)
        x = self.act(x)
        raise KeyError
    except KeyError:
        return x


def read_as_a_local(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    x = self.act(x)
    return locals()["x"]  # type: ignore[no-any-return]


def read_after_a_loop(self: Any, x: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        z = self.fc(x)
        y = self.act(z) + y
    return y + z


def in_another_order(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    y = inplace(x) + self.norm(x)
    return y


def with_a_call_between(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    inplace(x)
    return self.norm(x)


def with_an_assignment_between(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    return (x := x * 2) + self.norm(x)


def if_it_is_wanted(self: Any, x: Tensor) -> Tensor:
    x = x + self.fc(x)
    return self.norm(x) if self.training else x


def in_place(self: Any, x: Tensor) -> Tensor:
    y = x * 1
    y += self.fc(x)
    return self.norm(y) + y


def with_an_argument_by_name(self: Any, x: Tensor) -> Tensor:
    return self.act(input=self.fc(input=x))


def with_a_name_of_its_own(self: Any, x: Tensor) -> Tensor:
    F = self
    return F.act(F.fc(x))


def with_another_self(self: Any, x: Tensor) -> Tensor:
    self = self.inner
    return self.act(self.fc(x))


def subtracted(self: Any, x: Tensor) -> Tensor:
    return self.norm(x - self.fc(x))


def gate_changed_by_the_other_factor(self: Any, x: Tensor) -> Tensor:
    return self.silu(x) * inplace(x)


def gate_changed_before_the_product(self: Any, x: Tensor) -> Tensor:
    a = self.silu(x)
    u = inplace(x)
    return a * u


def gate_changed_in_the_statement_of_the_product(self: Any, x: Tensor) -> Tensor:
    a = self.silu(x)
    return inplace(x) + a * x


def activation_read_again(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    y = a * x
    return y + a


def activation_read_in_a_loop(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    for _ in range(2):
        x = a * x
    return x


def activation_replaced_before_the_product(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    if self.training:
        a = x
    return a * x


def activation_of_two_arguments(self: Any, x: Tensor) -> Tensor:
    return F.relu(x.clone(), True) * F.silu(x, inplace=False)


def gate_shadowed(self: Any, x: Tensor) -> Tensor:
    silu = torch.tanh
    return silu(x) * x


def chunks_of_another_dimension(self: Any, x: Tensor) -> Tensor:
    g, u = torch.cat((x, x + 1)).chunk(2, 0)
    return g + u


def activation_times_a_number(self: Any, x: Tensor) -> Tensor:
    a = self.silu(x)
    return a * 2


def activation_times_an_attribute(self: Any, x: Tensor) -> Tensor:
    return self.silu(x) * self.fc.bias


def activation_replaced_in_the_statement(self: Any, x: Tensor) -> Tensor:
    a = self.silu(self.fc(x))
    return (a := x) + a * x


def modulated_with_weight(self: Any, x: Tensor) -> Tensor:
    return self.norm(x) * (1 + x) + x


def modulated_by_another_function(self: Any, x: Tensor) -> Tensor:
    return modulate_more(self.plain(x), x, x)


def modulated_after_a_change(self: Any, x: Tensor) -> Tensor:
    h = self.plain(x)
    return inplace(x) + (h * (1 + x) + x)


def modulated_with_a_change(self: Any, x: Tensor) -> Tensor:
    return self.plain(x) * (1 + inplace(x)) + x


def modulated_and_read_again(self: Any, x: Tensor) -> Tensor:
    h = self.plain(x)
    y = h * (1 + x) + x
    return y + h


def scaled_by_a_parameter(self: Any, x: Tensor) -> Tensor:
    """LayerScale: what scales is not one of several results."""
    return x + self.fc.bias * self.fc(x)


def scaled_by_an_argument(self: Any, x: Tensor) -> Tensor:
    return x + x * self.fc(x)


def shifted(self: Any, x: Tensor) -> Tensor:
    scale, shift = halves_of(self, x[:, None])
    return x[:, None] * scale + shift


def gated_product_read_again(self: Any, x: Tensor) -> Tensor:
    gate, _ = halves_of(self, x[:, None])
    y = gate * x[:, None]
    z = x[:, None] + y
    return z + y


def gated_product_read_in_a_loop(self: Any, x: Tensor) -> Tensor:
    gate, _ = halves_of(self, x[:, None])
    y = gate * x
    for _ in range(2):
        z = x + y
        x = z - y
    return x


def gate_replaced_before_the_sum(self: Any, x: Tensor) -> Tensor:
    gate, _ = halves_of(self, x[:, None])
    y = gate * x
    gate = x
    z = x + y
    return z - gate


def gated_sum_replaced_before_its_modulation(self: Any, x: Tensor) -> Tensor:
    gate, scale = halves_of(self, x[:, None])
    x = x.tanh() - gate * x
    y = self.plain(x)
    return y * (2 + scale) + gate


UNFUSED = [
    gated_product_read_again,
    gated_product_read_in_a_loop,
    gate_replaced_before_the_sum,
    gated_sum_replaced_before_its_modulation,
    scaled_by_a_parameter,
    scaled_by_an_argument,
    shifted,
    activation_times_a_number,
    activation_times_an_attribute,
    activation_replaced_in_the_statement,
    modulated_with_weight,
    modulated_by_another_function,
    modulated_after_a_change,
    modulated_with_a_change,
    modulated_and_read_again,
    gate_changed_by_the_other_factor,
    gate_changed_before_the_product,
    gate_changed_in_the_statement_of_the_product,
    activation_read_again,
    activation_read_in_a_loop,
    activation_replaced_before_the_product,
    activation_of_two_arguments,
    gate_shadowed,
    chunks_of_another_dimension,
    read_again,
    read_and_written_in_place,
    read_in_the_same_statement,
    read_by_a_function_inside,
    read_in_a_handler,
    read_as_a_local,
    read_after_a_loop,
    in_another_order,
    with_a_call_between,
    with_an_assignment_between,
    if_it_is_wanted,
    in_place,
    with_an_argument_by_name,
    with_a_name_of_its_own,
    with_another_self,
    subtracted,
]
