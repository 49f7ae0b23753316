"""The sharding strategies of operators on DTensor, made from their splits (:mod:`.sharding`).

DTensor calls an operator's fake kernel before it looks for the operator's strategy. The fake kernels call
:func:`prepare`, which registers the strategy. DTensor is imported by then, so that this module imports nothing that the
program has not imported.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch

from .sharding import Place, Rule

__all__ = [
    "correct_dtypes",
    "dtensor",
    "forget",
    "is_dtensor",
    "prepare",
    "propagated",
    "summands",
    "with_whole_rows",
    "zeros_as_dtensors",
]

_MODULE = "torch.distributed.tensor"
# The operators whose strategies are registered, and their names. A name that is declared again is another operator.
_REGISTERED: "WeakSet[Any]" = WeakSet()
_NAMES: set[str] = set()


def prepare(name: str, rule: Rule) -> None:
    """Registers the sharding strategy of an operator, if DTensor is imported and knows none yet.

    Args:
        name: the qualified name of the operator, ``"mylib::scale"``.
        rule: the operator's rule.
    """
    if _MODULE not in sys.modules:
        return
    namespace, _, short = name.partition("::")
    overload = getattr(getattr(torch.ops, namespace), short).default
    if overload not in _REGISTERED:
        _register(overload, rule)
        _REGISTERED.add(overload)
        _NAMES.add(name)


def forget(name: str) -> None:
    """Clears DTensor's cached shardings if an operator of this name has a strategy. The caches know operators by name.

    Args:
        name: the qualified name of an operator that is being declared.
    """
    if name in _NAMES:
        with contextlib.suppress(ImportError):  # a private function of PyTorch; versions without it have one cache less
            from torch.distributed.tensor.debug import _clear_sharding_prop_cache

            _clear_sharding_prop_cache()
        _NAMES.discard(name)


def dtensor() -> Any:
    """Returns the class DTensor, or None if the program has not imported it."""
    module: Any = sys.modules.get(_MODULE)
    return None if module is None else module.DTensor


def is_dtensor(x: Any) -> bool:
    """Returns whether x is a DTensor. Returns False while Dynamo traces, which knows PyTorch's modules on DTensors."""
    return not torch.compiler.is_dynamo_compiling() and type(x) is dtensor()


def propagated(op: Any, args: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]] | None:
    """Returns the choice of DTensor's sharding propagation for a call: the specifications of the arguments, None for
    those that are not DTensors, and the specifications of the results.

    Returns None if a result is not a DTensor, or if this version of PyTorch has no such propagation.

    Args:
        op: the registered operator.
        args: the arguments, with DTensors as tensors.
    """
    kind = dtensor()
    try:
        dispatcher = kind._op_dispatcher
        info = dispatcher.unwrap_to_op_info(op, tuple(args), {})
        dispatcher.sharding_propagator.propagate(info)
        chosen = info.output_sharding
        results, moved = chosen.output_spec, chosen.redistribute_schema if chosen.needs_redistribute else None
    except AttributeError:  # private parts of PyTorch
        return None
    results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    given = [x._spec if type(x) is kind else None for x in args]
    if moved is not None:
        given = [None if spec is None else m for spec, m in zip(given, moved.args_schema, strict=False)]
    return None if None in results else (given, results)


def summands(
    rule: Rule, args: Sequence[Any], tensors: int, specs: Sequence[Any], results: Sequence[Any]
) -> list[tuple[int, int]] | None:
    """Returns which replicated tensors become summands, and how many, if each rank can compute its pieces of the
    results from its pieces of the tensors.

    It can if, for each dimension of the mesh, the placements are those of a split, or all tensors are replicated. A
    replicated tensor, where the split has summands, is divided by the number of ranks. Returns None for all other
    placements.

    Args:
        rule: the operator's rule.
        args: the arguments, with DTensors as tensors.
        tensors: the number of the operator's tensor arguments.
        specs: the specifications with which DTensor would compute the tensors.
        results: the specifications of the results.
    """
    given = [(i, x._spec.placements, specs[i].placements) for i, x in enumerate(args[:tensors]) if x is not None]
    after = [spec.placements for spec in results]
    mesh = results[0].mesh
    for placements in (*after, *(p for _, p, _ in given)):
        cut = [p.dim for p in placements if hasattr(p, "dim")]
        if len(set(cut)) < len(cut):
            return None  # pieces of pieces, whose order is the mesh's or another
    splits = [((None,) * len(results), (None,) * tensors), *rule(*args)]
    divided: dict[int, int] = {}
    for dim in range(mesh.ndim):
        chosen = [_place(p[dim]) for p in after], {i: _place(p[dim]) for i, _, p in given}
        if not any(
            chosen[0] == [*of_results] and all(places[i] == place for i, place in chosen[1].items())
            for of_results, places in splits
        ):
            return None
        for i, placements, _ in given:
            place = _place(placements[dim])
            if place != chosen[1][i]:
                if (place, chosen[1][i]) != (None, "sum"):
                    return None
                divided[i] = divided.get(i, 1) * mesh.size(dim)
    return list(divided.items())


def _place(placement: Any) -> Place | object:
    """Returns the place of a placement in a split; an object that is not a place for any other placement."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Replicate:
        return None
    if type(placement) is Shard:
        return int(placement.dim)
    return "sum" if type(placement) is Partial and placement.reduce_op == "sum" else placement


def correct_dtypes(tensors: Iterable[torch.Tensor]) -> None:
    """Gives the specification of each DTensor the dtype of the DTensor.

    In PyTorch 2.11, a parameter that both tensor parallelism and FSDP shard has another dtype than its specification,
    if FSDP has a ``MixedPrecisionPolicy``. DTensor calls an operator's fake kernel with the dtypes of specifications,
    and the fake kernel would refuse a weight in float32 with x in bfloat16.
    """
    module: Any = sys.modules.get(_MODULE)
    if module is None:
        return
    for x in tensors:
        spec: Any = x._spec if isinstance(x, module.DTensor) else None
        if spec is not None and spec.tensor_meta is not None and spec.tensor_meta.dtype != x.dtype:
            x._spec = dataclasses.replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=x.dtype))  # type: ignore[attr-defined]


def with_whole_rows(x: torch.Tensor) -> torch.Tensor:
    """Returns x, or for a DTensor that is sharded along its last dimension the DTensor with whole rows.

    ``amax`` and ``amin`` of a DTensor reduce each rank's piece of a row. PyTorch has no maximum of a piece without
    elements, which a rank has if a row has fewer elements than there are ranks.
    """
    module: Any = sys.modules.get(_MODULE)
    if module is None or not isinstance(x, module.DTensor):
        return x
    placements = [module.Replicate() if getattr(p, "dim", None) == x.ndim - 1 else p for p in x.placements]
    found: torch.Tensor = x.redistribute(placements=placements)
    return found


def zeros_as_dtensors(*grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the gradients of an operator's results, with DTensors in place of plain tensors if one is a DTensor.

    For a result that the loss does not depend on, autograd passes zeros of the result's shape. The zeros are a plain
    tensor for a DTensor, too, and no operator takes DTensors and plain tensors together.
    """
    module: Any = sys.modules.get(_MODULE)
    found: Any = None if module is None else next((g for g in grads if isinstance(g, module.DTensor)), None)
    if found is None:
        return grads
    mesh, whole = found.device_mesh, [module.Replicate()] * found.device_mesh.ndim
    return tuple(
        g if g is None or isinstance(g, module.DTensor) else module.DTensor.from_local(g, mesh, whole, run_check=False)
        for g in grads
    )


def _register(overload: Any, rule: Rule) -> None:
    from torch.distributed.tensor.experimental import register_sharding

    schema = overload._schema
    kinds = [
        isinstance(getattr(a.type, "getElementType", lambda a=a: a.type)(), torch.TensorType) for a in schema.arguments
    ]
    tensors, results = sum(kinds), len(schema.returns)
    keyed = _keyed_by_all_arguments(overload, tensors)
    register_sharding(overload)(_strategy(rule, schema.arguments, tensors, results, keyed))
    # register_sharding has replaced the information.
    _keyed_by_all_arguments(overload, tensors)


def _keyed_by_all_arguments(overload: Any, tensors: int) -> bool:
    """Makes DTensor cache a strategy by all arguments. Returns False if this version of PyTorch has no such setting.

    DTensor's cache ignores the arguments that are not tensors, unless an integer precedes them.
    """
    try:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

        information = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    except (ImportError, AttributeError):
        return False
    information[overload] = RuntimeSchemaInfo(static_argnum=tensors)
    return True


def _strategy(
    rule: Rule, arguments: Sequence[Any], tensors: int, results: int, keyed: bool
) -> Callable[..., list[tuple[list[Any], list[Any]]]]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    def placement(place: Place) -> Any:
        return Replicate() if place is None else Partial() if isinstance(place, str) else Shard(place)

    def strategy(*args: Any) -> list[tuple[list[Any], list[Any]]]:
        # PyTorch omits arguments that equal their defaults.
        full = (*args, *(a.default_value for a in arguments[len(args) :]))

        def all_of(of_tensors: Sequence[Place]) -> Iterator[Any]:
            for x, place in zip(full[:tensors], of_tensors, strict=True):
                yield None if x is None else placement(place)

        others = [None] * (len(args) - tensors)
        whole = ([Replicate()] * results, [*all_of([None] * tensors), *others])
        # Without the setting, DTensor would apply a strategy to calls with other arguments.
        splits = rule(*full) if keyed or not others else ()
        return [whole, *(([placement(p) for p in of_results], [*all_of(of), *others]) for of_results, of in splits)]

    return strategy
