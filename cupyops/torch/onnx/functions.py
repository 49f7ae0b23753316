"""Makes ONNX functions of the operators' translations.

Each call of an operator becomes one node in the operator's domain. The node calls a function whose body is made of
standard operators; of an operator without a translation, there is no function. The body is the operator's translation,
traced for the dtypes, ranks and arguments of the call.
Calls with equal bodies share a function; different bodies are overloads of one function. A model of standard operators
alone is made from the same nodes by inlining, so both forms of a model agree. This module imports onnx only when it is
called.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cupyops.errors import ExportError
from cupyops.torch.core.operator import Operator

__all__ = ["Functions"]

DOMAIN_VERSION = 1
_TYPES = ("float16", "bfloat16", "float", "double", "bool", "complex64", "complex128") + tuple(
    f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)
)


class Functions:
    """Collects the functions that the nodes of one model call, while the model is translated.

    Args:
        opset: the opset version of the standard operators in the bodies.
    """

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._overloads: dict[tuple[str, str], dict[bytes, Any]] = {}

    def table(self, operators: Sequence[Operator]) -> dict[Any, Callable[..., Any]]:
        """Returns the ``custom_translation_table`` for ``torch.onnx.export``."""
        return {operator.op: self._node_of(operator) for operator in operators}

    def by_identifier(self) -> dict[Any, Any]:
        """Returns the functions by identifier, as in ``onnx_ir.Model.functions``."""
        return {f.identifier(): f for bodies in self._overloads.values() for f in bodies.values()}

    def _node_of(self, operator: Operator) -> Callable[..., Any]:
        domain, _, name = operator.qualified_name.partition("::")
        arguments = operator.op._schema.arguments
        count = len(operator.op._schema.returns)
        tensors = len(operator._tensors)
        schema = _node_schema(domain, name, [a.name for a in arguments[:tensors]], count)

        def node(*args: Any, **kwargs: Any) -> Any:
            from onnxscript import values

            given = [
                args[i] if i < len(args) else kwargs.get(a.name, a.default_value if a.has_default_value() else None)
                for i, a in enumerate(arguments)
            ]
            others = {
                a.name: _known(operator, a.name, v) for a, v in zip(arguments[tensors:], given[tensors:], strict=True)
            }
            attributes = {a.name: _attribute(a, others[a.name]) for a in arguments[tensors:]}
            attributes = {key: a for key, a in attributes.items() if a is not None}
            inputs = dict(zip([a.name for a in arguments[:tensors]], given[:tensors], strict=True))
            outputs = values.Op(values.Opset(domain, DOMAIN_VERSION), name, schema)(*inputs.values())
            made = (outputs if count > 1 else (outputs,))[0].producer()
            if operator.onnx is not None:  # else the node has no body
                made.overload = self._shared(_body(operator, inputs, others, attributes, self._opset)).overload
            for attribute in attributes.values():
                made.attributes.add(attribute)
            return outputs

        node.__name__ = name
        return node

    def _shared(self, body: Any) -> Any:
        """Returns the existing function with an equal body, or adds this one under the next free overload."""
        from onnx_ir import serde

        overloads = self._overloads.setdefault((body.domain, body.name), {})
        text = serde.serialize_function(body).SerializeToString(deterministic=True)
        if text not in overloads:
            body.overload = str(len(overloads) + 1) if overloads else ""
            overloads[text] = body
        return overloads[text]


def _known(operator: Operator, name: str, value: Any) -> Any:
    """Returns an argument that is not a tensor; in a list, None replaces a size that is known only when the model runs.

    Raises:
        ExportError: the argument itself is known only when the model runs.
    """
    import onnx_ir as ir

    if isinstance(value, (list, tuple)):
        return [None if isinstance(v, ir.Value) else v for v in value]
    if isinstance(value, ir.Value):
        raise ExportError(
            f"export_onnx: `{name}` of {operator.qualified_name} must be known when the model is exported, got a value "
            "that is only known when it runs; leave that dimension out of `dynamic_shapes`"
        )
    return value


def _attribute(argument: Any, value: Any) -> Any:
    """Returns an argument as an attribute of a node, or None; floats are float32, and an unknown size is -1."""
    import onnx_ir as ir

    name = argument.name
    if value is None:
        return None
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return ir.AttrStrings(name, value)
        if "float" in str(argument.type):
            return ir.AttrFloat32s(name, [float(v) for v in value])
        return ir.AttrInt64s(name, [-1 if v is None else int(v) for v in value])
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, float) or str(argument.type) == "number":
        return ir.AttrFloat32(name, float(value))
    return ir.AttrInt64(name, int(value))


def _body(
    operator: Operator, inputs: Mapping[str, Any], others: Mapping[str, Any], attributes: Mapping[str, Any], opset: int
) -> Any:
    """Traces the operator's translation for one call; returns the function.

    Raises:
        ExportError: the translation fails, or returns another number of results than the operator.
    """
    import onnx_ir as ir
    from onnxscript import build_function

    domain, _, name = operator.qualified_name.partition("::")
    count = len(operator.op._schema.returns)
    formal = [
        None if x is None else ir.Value(name=key, type=ir.TensorType(x.dtype), shape=ir.Shape(x.shape))
        for key, x in inputs.items()
    ]

    def trace(op: Any, *tensors: Any) -> list[Any]:
        assert operator.onnx is not None
        try:
            results = operator.onnx(op, *tensors, *others.values())
        except Exception as error:  # a translation may raise any exception
            raise ExportError(
                f"export_onnx: the translation of {operator.qualified_name} fails: {type(error).__name__}: {error}"
            ) from error
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        if len(results) != count:
            raise ExportError(
                f"export_onnx: the translation of {operator.qualified_name} must give {count} results, "
                f"got {len(results)}"
            )
        # Each result must be a value of its own: Identity copies returned inputs and repeated results.
        taken = [x for x in tensors if x is not None]
        for i, result in enumerate(results):
            results[i] = op.Identity(result) if any(result is x for x in taken) else result
            taken.append(result)
        return results

    function = build_function(
        trace,
        formal,
        domain=domain,
        name=name,
        opset_imports={"": opset},
        attributes=[ir.Attr(a.name, a.type, None) for a in attributes.values()],
    )
    for key, x in zip(inputs, function.inputs, strict=True):
        x.name = key
    for i, x in enumerate(function.outputs):
        x.name = "result" if count == 1 else f"result_{i}"
    # Calls with other shapes share the body, so the types and shapes of this call are removed.
    for x in (*function.inputs, *(y for node in function for y in node.outputs)):
        x.type = x.shape = None
    return function


def _node_schema(domain: str, name: str, inputs: Sequence[str], outputs: int) -> Any:
    """Returns the schema of a node: optional inputs and outputs of any tensor type."""
    from onnx.defs import OpSchema

    types = [f"tensor({t})" for t in _TYPES]
    optional = OpSchema.FormalParameterOption.Optional
    return OpSchema(
        name,
        domain,
        DOMAIN_VERSION,
        inputs=[OpSchema.FormalParameter(key, f"T_{key}", param_option=optional) for key in inputs],
        outputs=[OpSchema.FormalParameter(f"result_{i}", f"R_{i}") for i in range(outputs)],
        type_constraints=[(f"T_{key}", types, "") for key in inputs] + [(f"R_{i}", types, "") for i in range(outputs)],
    )
