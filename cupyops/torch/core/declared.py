"""Generates the gradient of an operator whose backward is declared: another operator, which the backward calls.

The parameter names of the declared backward select its arguments (:mod:`cupyops.torch.core.gradients`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cupyops.codegen import free_names, write
from cupyops.torch.scale.distributed import zeros_as_dtensors

from .gradients import Gradient, Schema, type_of
from .tensors import NoStorageError

__all__ = ["declared", "recorded"]


def declared(
    schema: Schema,
    arguments: Sequence[str],
    call: Callable[..., Any],
    wrt: Sequence[str],
    shared: Mapping[str, str],
) -> Gradient:
    """Returns ``setup_context`` and ``backward`` of an operator whose gradient is another operator.

    Both functions are generated for the schema (:mod:`cupyops.codegen`). Closures over tuples of positions would take
    1.4 µs more for the two calls together.

    Args:
        schema: the schema of the forward operator.
        arguments: names of the arguments of the gradient's operator, as the module describes them.
        call: the gradient's operator.
        wrt: the inputs whose gradients ``call`` returns, in order, and the keys of ``shared``.
        shared: inputs whose gradient is that of another input, which ``call`` returns.

    Raises:
        ValueError: an argument's name is unknown, or none of the arguments is the gradient of a result.
    """
    parts = _Parts.of(schema, arguments, wrt, shared)
    several = len(parts.taken) > 1
    lines = [
        "def setup_context(ctx_, inputs_, output_):",
        f"    {parts.inputs}, = inputs_",
        *parts.saving("set_materialize_grads({})", "mark_non_differentiable({})", "save_for_backward({})"),
        f"def backward(ctx_, {parts.grads}):",
        *([f"    {', '.join(parts.taken)} = alike_({', '.join(parts.taken)})"] if several else []),
        *parts.unpacking,
        *parts.returning("    ", "call_"),
    ]
    scope: dict[str, Any] = {"call_": call, "alike_": zeros_as_dtensors}
    backward = write(f"gradient of {schema.name}", "backward", lines, scope)
    return scope["setup_context"], backward


def recorded(
    schema: Schema, arguments: Sequence[str], wrt: Sequence[str], shared: Mapping[str, str], scope: dict[str, Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns ``forward`` and ``backward`` of a Function that does the same as :func:`declared`, for plain tensors.

    One generated function runs the body and saves the tensors. In a plain backward, the second function calls the body
    of the gradient's operator, and not the operator.

    Args:
        schema, arguments, wrt, shared: as for :func:`declared`.
        scope: the globals of the functions: ``body_``, the operator's body; ``gradient_`` and ``call_``, body and call
            of the gradient's operator; and ``plain_``, which is
            :func:`cupyops.torch.core.conditions.in_plain_backward`.
    """
    parts = _Parts.of(schema, arguments, wrt, shared)
    lines = [
        f"def forward(ctx_, {parts.inputs}):",
        f"    output_ = body_({parts.inputs})",
        # PyTorch's methods of these names assign to these attributes.
        *parts.saving("materialize_grads = {}", "non_differentiable = ({},)", "to_save = ({},)"),
        "    return output_",
        f"def backward(ctx_, {parts.grads}):",
        *parts.unpacking,
        f"    if {' and '.join(f'plain_({g})' for g in parts.taken)}:",
        "        try:",
        *parts.returning("            ", "gradient_"),
        "        except NoStorageError_:",
        "            pass",
        *parts.returning("    ", "call_"),
    ]
    scope["NoStorageError_"] = NoStorageError
    backward = write(f"recording of {schema.name}", "backward", lines, scope)
    return scope["forward"], backward


# The names in the text that are not arguments or results.
_OWN = frozenset(
    ("ctx_", "inputs_", "output_", "body_", "gradient_", "call_", "plain_", "alike_", "NoStorageError_", "_")
    + ("forward", "setup_context", "backward")
)


class _Parts(NamedTuple):
    """The parts of the code that :func:`declared` and :func:`recorded` generate, with the names in their text.

    Attributes:
        inputs, grads: the arguments, and the gradients of all results.
        taken: the gradients of results that the gradient's operator takes.
        fixed: the results that are not differentiable.
        saved: the tensors that the backward reads.
        kept: the other arguments that the backward reads: the attribute of ctx, and the name.
        results: the names of the results.
        unpacking: the lines that begin the backward.
        values, found, gradients: the arguments of the gradient's operator, the targets of the operator's results, and
            the results of the backward.
    """

    inputs: str
    grads: str
    taken: list[str]
    fixed: list[str]
    saved: list[str]
    kept: dict[str, str]
    results: list[str]
    unpacking: list[str]
    values: str
    found: str
    gradients: str

    @classmethod
    def of(cls, schema: Schema, arguments: Sequence[str], wrt: Sequence[str], shared: Mapping[str, str]) -> "_Parts":
        for name in arguments:
            type_of(schema, name)
            if name in schema.types and name in (f"grad_{r}" for r in schema.results):
                mend = "give the result another name"
                raise ValueError(f"{schema.name}: `{name}` is an input and the gradient of a result: {mend}")
        if not any(f"grad_{r}" in arguments for r in schema.results):
            words = " or ".join(f"`grad_{r}`" for r in schema.results)
            raise ValueError(
                f"{schema.name}: its backward must take the gradient of a result, {words}; it takes {arguments}"
            )
        # An argument may have the name of a keyword, or of something else in the text. The two dictionaries of gradients
        # are of results and of inputs.
        names = set(_OWN)
        value = free_names([*schema.types, *schema.results], names)
        of_result = free_names([f"grad_{r}" for r in schema.results], names)
        want = free_names([f"want_{x}" for x in schema.types], names)
        of_input = free_names([f"grad_{x}" for x in schema.types], names)

        taken = [grad for r, grad in of_result.items() if r in arguments]
        saved = [value[a] for a in arguments if a in schema.tensors or a in schema.results]
        kept = [a for a in arguments if a in schema.types and a not in schema.tensors]
        wants = [want[f"want_{name}"] if name in wrt else "_" for name in schema.types]
        # With several differentiable results, autograd passes zeros for the gradient of an unused result. With one
        # differentiable result, an undefined gradient means that there is nothing to compute.
        unused = f"    if {taken[0]} is None: return {', '.join(['None'] * len(schema.types))},"
        unpacking = [
            *([unused] if len(taken) == 1 else []),
            *([f"    {', '.join(saved)}, = ctx_.saved_tensors"] if saved else []),
            f"    {', '.join(wants)}, = ctx_.needs_input_grad",
        ]
        wanted = {
            f"want_{x}": " or ".join(want[f"want_{y}"] for y in wrt if shared.get(y, y) == x) for x in shared.values()
        }

        def given(a: str) -> str:
            if a in kept:
                return f"ctx_.kept_{a}"
            if a in value:
                return value[a]
            return f"({wanted[a]})" if a in wanted else of_result[a] if a in of_result else want[a]

        made = [of_input[f"grad_{x}"] for x in wrt if x not in shared]
        gradients = [
            f"{of_input[f'grad_{shared.get(x, x)}']} if {want[f'want_{x}']} else None" if x in wrt else "None"
            for x in schema.types
        ]
        return cls(
            ", ".join(value[x] for x in schema.types),
            ", ".join(of_result.values()),
            taken,
            [value[r] for r in schema.results if f"grad_{r}" not in arguments],
            saved,
            {f"kept_{a}": value[a] for a in kept},
            [value[r] for r in schema.results],
            unpacking,
            ", ".join(map(given, arguments)),
            ", ".join(made) + ("," if len(made) == 1 else ""),
            ", ".join(gradients),
        )

    def saving(self, materialize: str, mark: str, save: str) -> list[str]:
        """Returns the lines that save what the backward reads, by the given methods or attributes of ctx."""
        fixed, saved, one = ", ".join(self.fixed), ", ".join(self.saved), len(self.results) == 1
        named = not set(self.results).isdisjoint([*self.fixed, *self.saved])
        return [
            *([f"    {', '.join(self.results)}, = {'output_,' if one else 'output_'}"] if named else []),
            f"    ctx_.{materialize.format(len(self.taken) > 1)}",
            *([f"    ctx_.{mark.format(fixed)}"] if fixed else []),
            *([f"    ctx_.{save.format(saved)}"] if saved else []),
            *(f"    ctx_.{attribute} = {x}" for attribute, x in self.kept.items()),
        ]

    def returning(self, indent: str, function: str) -> list[str]:
        """Returns the lines that call the function, and return the gradients that are needed."""
        comma = "," if self.found.endswith(",") else ""
        return [f"{indent}{self.found} = {function}({self.values}){comma}", f"{indent}return {self.gradients},"]
