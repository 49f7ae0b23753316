"""Chooses for each operator of a graph that Inductor compiles: its kernel, or the operations of its reference.

A kernel is a barrier: what is before it writes to memory, and what is after it reads from memory. Inductor computes the
operations of a reference in one pass over memory with the operations beside them, in a kernel that it generates itself. Which of
the two is faster depends on what is beside the operator, on sizes and strides. So each is measured: the region of an operator
(:mod:`.regions`) is compiled and timed with the kernels of its operators, with the operations of their references, and from the
faster of the two with one operator changed at a time. The times are kept in the cache folder, as those of ``Tuned``
(:mod:`cupyops.tuning.records`).

Where nothing is measured, the bytes decide that Inductor counts in each form of the region, after it has fused what it can: on a
CPU, with ``CUPYOPS_TUNE=0``, with deterministic algorithms, and if the GPU has no memory for the tensors of the region. With
``CUPYOPS_CHOICES=0`` all operators stay kernels.

The forward and the backward are different graphs, each with its own choices. Autograd has differentiated the operators by then,
so that no choice changes what the forward saves for the backward.
"""

import functools
import hashlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from cupyops import simulator
from cupyops.environment import switched
from cupyops.sizes import is_symbol
from cupyops.tuning import records

from .calls import Bodies, bodies_of
from .common import arguments_of, name_of
from .private import CHOSEN, has
from .regions import Region, regions
from .rules import form_of

__all__ = ["prepare", "setting"]

_MODULE, _PASSES = "torch._inductor.compile_fx", "_recursive_post_grad_passes"
_ROUNDS = 3  # of the benchmarks of all forms of a region
_Form = frozenset[int]  # which operators of a region, by their places, are the operations of their references
_KERNELS: _Form = frozenset()
_LEAST: dict[str, _Form] = {}  # the forms of the fewest bytes, by the keys of regions


def setting() -> str:
    """Returns what the environment says of choices, for the keys of graphs on disk."""
    return f"{switched('CUPYOPS_CHOICES', 'on')} {records.enabled()}"


def prepare() -> None:
    """Makes Inductor choose, if it is imported."""
    inductor: Any = sys.modules.get(_MODULE)
    passes = getattr(inductor, _PASSES, None)
    if passes is not None and not hasattr(passes, "cupyops") and has(CHOSEN):
        setattr(inductor, _PASSES, _before(passes))


def _before(passes: Any) -> Any:
    @functools.wraps(passes)
    def chosen(graph: GraphModule, *args: Any, **kwargs: Any) -> Any:
        choose(graph)
        return passes(graph, *args, **kwargs)

    chosen.cupyops = True  # type: ignore[attr-defined]
    return chosen


def _passes() -> Any:
    """Returns Inductor's passes over a graph that it is about to compile."""
    passes = getattr(sys.modules[_MODULE], _PASSES)
    return getattr(passes, "__wrapped__", passes)


def _match(module: GraphModule) -> None:
    """Applies the patterns of Inductor that saw the operators as calls when it searched the graph of forward and backward.

    For softmax(c·x), one of them subtracts the maximum of x first, and multiplies the difference by c.
    """
    from torch._inductor import config
    from torch._inductor.fx_passes import joint_graph

    for patterns in joint_graph.pass_patterns if config.pattern_matcher else []:
        patterns.apply(module.graph)


def choose(module: GraphModule) -> None:
    """Replaces operators of a graph by the operations of their references, where that takes less time."""
    if switched("CUPYOPS_CHOICES", "on") == "off" or simulator._setting.now.on:
        return
    known: dict[str, GraphModule | None] = {}
    steps = {node: found for node in module.graph.nodes if (found := _steps_of(node, known)) is not None}
    replaced = [region.operators[i] for region in regions(module.graph, steps.keys()) for i in _chosen(region)]
    for node in replaced:
        _replace(module, node, steps[node])
    if replaced:
        _match(module)
    if steps:
        module.graph.lint()
        module.recompile()


def _reference_of(node: Node) -> Callable[..., Any] | None:
    """Returns the reference of an operator whose form is to be chosen."""
    bodies: Bodies | None = bodies_of(name_of(node)) if node.op == "call_function" else None
    if bodies is None or bodies.reference is None or bodies.writes:
        return None
    values = torch.fx.map_arg([*arguments_of(node).values()], lambda x: x.meta["val"])
    return bodies.reference if form_of(name_of(node), bodies.rule, values) == "auto" else None


def _steps_of(node: Node, known: dict[str, GraphModule | None]) -> GraphModule | None:
    """Returns the operations of the reference for the arguments of a call, or None if the call must stay.

    The inputs of the result are the nodes among the arguments.

    Args:
        node: the call, or another node.
        known: the results for calls of this graph without dynamic sizes. The layers of a model make equal calls.
    """
    reference = _reference_of(node)
    if reference is None:
        return None
    values = torch.fx.map_arg((*arguments_of(node).values(), node.meta["val"]), lambda x: x.meta["val"])
    key = f"{name_of(node)} {_pytree.tree_map_only(Tensor, lambda x: (_described(x), x.device), values)}"
    if any(is_symbol(n) for x in _pytree.tree_leaves(values) for n in (*_sizes_of(x), x)):
        return _traced_steps(node, reference)
    if key not in known:
        known[key] = _traced_steps(node, reference)
    return known[key]


def _sizes_of(value: Any) -> tuple[Any, ...]:
    return (*value.shape, *value.stride()) if isinstance(value, Tensor) else ()


def _described(x: Tensor) -> str:
    return f"{tuple(x.shape)} {x.stride()} {x.dtype}"


def _traced_steps(node: Node, reference: Callable[..., Any]) -> GraphModule | None:
    flat, spec = _pytree.tree_flatten([*arguments_of(node).values()])
    # Each argument is a tensor of its own in the trace, also where a call has one twice.
    fakes = [_pytree.tree_map_only(Tensor, Tensor.detach, x.meta["val"]) for x in flat if isinstance(x, Node)]

    def call(*values: Any) -> Any:
        rest = iter(values)
        return reference(*_pytree.tree_unflatten([next(rest) if isinstance(x, Node) else x for x in flat], spec))

    try:
        found = _traced(call, fakes)
    except Exception:  # of the reference: it reads a value, for instance
        return None
    results = next(iter(reversed(found.graph.nodes))).args[0]
    given = [x.meta["val"] if isinstance(x, Node) else x for x in _pytree.tree_leaves(results)]
    wanted = _pytree.tree_leaves(node.meta["val"])
    equal = len(given) == len(wanted) and all(map(_is_like, given, wanted))
    constants = any(n.op == "get_attr" for n in found.graph.nodes)
    return found if equal and not constants else None


def _is_like(found: Any, wanted: Any) -> bool:
    both = isinstance(found, Tensor) and isinstance(wanted, Tensor)
    return both and (found.shape, found.dtype, found.device) == (wanted.shape, wanted.dtype, wanted.device)


def _traced(function: Callable[..., Any], fakes: Sequence[Any]) -> GraphModule:
    """Returns the operations of a function, as Inductor takes them."""
    from torch._inductor.decomposition import select_decomp_table

    mode = next((x.fake_mode for x in fakes if isinstance(x, FakeTensor)), nullcontext())
    with torch.no_grad(), mode:  # in which the function makes tensors of its own, too
        found = make_fx(function, decomposition_table=select_decomp_table())(*fakes)
    found.graph.eliminate_dead_code()
    return found


def _replace(module: GraphModule, node: Node, steps: GraphModule) -> None:
    nodes = [x for x in _pytree.tree_leaves([*arguments_of(node).values()]) if isinstance(x, Node)]
    places = dict(zip([n for n in steps.graph.nodes if n.op == "placeholder"], nodes, strict=True))
    with module.graph.inserting_before(node):
        results: Any = module.graph.graph_copy(steps.graph, places)
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)


def _chosen(region: Region) -> _Form:
    """Returns the fastest form of a region."""
    try:
        trial = _Trial(region)
        if trial.gpu and not _deterministic() and (record := records.get(trial.key)) is not None:
            return _form(record.choice)
        with _disable_current_modes():
            return trial.best()
    except Exception as error:
        names = ", ".join(map(name_of, region.operators))
        words = f"cupyops: no choice for {names} in a compiled graph, which therefore calls the kernels"
        warnings.warn(f"{words}: {type(error).__name__}: {error}", stacklevel=2)
        return _KERNELS


def _name(form: _Form) -> str:
    """Returns the name of a form in a record: the places of the operators that are the operations of their references."""
    return " ".join(map(str, sorted(form))) or "kernels"


def _form(name: str) -> _Form:
    return _KERNELS if name == "kernels" else frozenset(map(int, name.split()))


def _deterministic() -> bool:
    """Returns whether the program wants the same bits in each process, which a measurement could not promise."""
    from torch._inductor import config

    return bool(getattr(config, "deterministic", False) or torch.are_deterministic_algorithms_enabled())


class _Trial:
    """The trial of the forms of a region, on tensors of the sizes for which the graph is compiled.

    Args:
        region: the region. A dynamic size in it has the value that it had when the graph was traced.

    Attributes:
        gpu: the name of the GPU, or None on a CPU.
        key: what the times depend on, for their record.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._references = {node: found for node in region.operators if (found := _reference_of(node)) is not None}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        values = [node.meta["val"] for node in region.inputs]
        with _disable_current_modes(), self._mode:
            self._fakes = [_fixed(x) for x in values]
        device = _pytree.tree_leaves(region.operators[0].meta["val"])[0].device
        self.gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        self._sizes = ", ".join(_described(x) if isinstance(x, Tensor) else str(x) for x in self._fakes)
        graph = self._graph(_KERNELS)
        codes = [bodies.code for node in region.operators if (bodies := bodies_of(name_of(node))) is not None]
        parts = str(graph.graph), self._sizes, codes, self.gpu, torch.__version__
        self.key = hashlib.sha256(repr(parts).encode()).hexdigest()

    def best(self) -> _Form:
        """Returns the form of the least cost: of the least time, and without a measurement of the fewest bytes."""
        if self.gpu is not None and records.enabled() and not _deterministic():
            with suppress(torch.OutOfMemoryError):
                return self._fastest(self.gpu)
        if self.key not in _LEAST:
            _LEAST[self.key] = self._least(self._search(self._bytes))
        return _LEAST[self.key]

    def _fastest(self, gpu: str) -> _Form:
        values = [_random(x) for x in self._fakes]
        costs = self._search(lambda forms: self._microseconds(forms, values))
        found = self._least(costs)
        times = {_name(form): round(cost, 3) for form, cost in costs.items()}
        names = ", ".join(map(name_of, self._region.operators))
        records.put(self.key, records.Record(names, gpu, self._sizes, _name(found), times))
        return found

    @staticmethod
    def _least(costs: Mapping[_Form, float]) -> _Form:
        return min(costs, key=costs.__getitem__)  # the kernels, which come first, if costs are equal

    def _search(self, costs_of: Callable[[Sequence[_Form]], Mapping[_Form, float]]) -> dict[_Form, float]:
        """Returns the costs of the forms that come into question, the kernels first."""
        count = len(self._region.operators)
        found = dict(costs_of([_KERNELS, frozenset(range(count))]))
        while True:
            best = self._least(found)
            others = [form for i in range(count) if (form := best ^ {i}) not in found]
            if not others:
                return found
            # The best form is measured again beside the others.
            found |= costs_of([best, *others])
            if self._least(found) == best:
                return found

    def _graph(self, form: _Form) -> GraphModule:
        references = {node: self._references[node] for i, node in enumerate(self._region.operators) if i in form}
        return _traced(lambda *values: self._region.run(values, references), self._fakes)

    @contextmanager
    def _lowered(self, form: _Form) -> Iterator[Any]:
        """Yields Inductor's graph of a form."""
        from torch._inductor.graph import GraphLowering
        from torch._inductor.virtualized import V

        module = self._graph(form)
        with V.set_fake_mode(self._mode):
            _match(module)
            _passes()(module, is_inference=True)
            graph = GraphLowering(module, example_inputs=self._fakes, is_inference=True)
            with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
                graph.run(*self._fakes)
                yield graph

    def _bytes(self, forms: Sequence[_Form]) -> dict[_Form, float]:
        """Returns how many bytes the kernels of each form read and write."""
        found = {}
        for form in forms:
            with self._lowered(form) as graph:
                graph.init_wrapper_code()
                graph._update_scheduler()
                found[form] = float(graph.count_bytes()[0])
        return found

    def _microseconds(self, forms: Sequence[_Form], values: Sequence[Any]) -> dict[_Form, float]:
        """Returns the time of each form."""
        from torch._inductor.runtime.benchmarking import benchmarker

        calls = {}
        for form in forms:
            with self._lowered(form) as graph:
                calls[form] = graph.compile_to_module().call
            calls[form]([*values])  # Inductor measures the launches of its own kernels at the first call
        found = dict.fromkeys(forms, math.inf)
        for _ in range(_ROUNDS):  # in turn, so that the clocks of the GPU affect all
            for form, call in calls.items():
                once: Any = benchmarker.benchmark_gpu(lambda call=call: call([*values]))  # the call empties its list
                found[form] = min(found[form], 1e3 * once)
        return found


def _fixed(value: Any) -> Any:
    """Returns a tensor without values of the same sizes, or a number."""
    if not isinstance(value, Tensor):
        return _hint(value)
    sizes, strides = map(_hint, value.shape), map(_hint, value.stride())
    return torch.empty_strided([*sizes], [*strides], dtype=value.dtype, device=value.device)


def _random(fake: Any) -> Any:
    """Returns a tensor of the sizes of a fake tensor, with random numbers or zeros, which are indices of every tensor."""
    if not isinstance(fake, Tensor):
        return fake
    extent = 1 + sum((n - 1) * stride for n, stride in zip(fake.shape, fake.stride(), strict=True))
    memory = torch.empty(extent if fake.numel() else 0, dtype=fake.dtype, device=fake.device)
    memory = memory.normal_() if memory.is_floating_point() and memory.itemsize > 1 else memory.zero_()
    return memory.as_strided(fake.shape, fake.stride())


def _hint(size: Any) -> Any:
    """Returns the size for which a graph is compiled.

    Raises:
        ValueError: the size depends on the values of a tensor.
    """
    if not is_symbol(size):
        return size
    if (found := size.node.hint) is None:
        raise ValueError(f"the size {size} depends on the values of a tensor")
    return found
