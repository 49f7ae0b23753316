"""Checks of an operator on several ranks: DTensor, tensor parallelism, fully_shard.

The ranks run in this process. PyTorch's LocalTensorMode runs each operation once for each rank.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .compare import Results, assert_close
from .failures import first_words, quiet
from .inputs import Arguments, fresh, lead_of, tensors_in
from .pieces import joined, pieces_of
from .registry import Fault, Skip, check
from .subject import Subject

__all__ = ["fsdp", "sharding", "tensor_parallel"]

# The meshes of ranks. Every placement is tried on the first mesh, and declared splits on all meshes.
MESHES = ((2,), (4,), (8,), (2, 2))


@contextlib.contextmanager
def _group(world: int, backend: str) -> Iterator[None]:
    """Initialises a process group for the time of a check.

    Raises:
        Skip: PyTorch has no distributed package, or the process is in a process group already.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise Skip("this build of PyTorch has no torch.distributed")
    if dist.is_initialized():
        raise Skip("the process is in a process group already")
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    else:
        dist.init_process_group(backend, rank=0, world_size=world, store=dist.HashStore())
    try:
        with quiet():
            yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _ranks(shape: Sequence[int], device: str) -> Iterator[tuple[Any, Any]]:
    """Runs the block on all ranks of a mesh, and yields the mesh and the mode of the ranks.

    Raises:
        Skip: this version of PyTorch cannot run several ranks in a process.
    """
    try:
        from torch.distributed._local_tensor import LocalTensorMode
    except ImportError:
        raise Skip(f"PyTorch {torch.__version__} has no LocalTensorMode") from None
    from torch.distributed.device_mesh import init_device_mesh

    world = math.prod(shape)
    with _group(world, "fake"), LocalTensorMode(world) as mode:
        yield init_device_mesh(device, tuple(shape)), mode


Placements = Sequence[Sequence[Any]]  # for each tensor, a placement for each dimension of the mesh


class _Sharded:
    """Calls of an operator on DTensors of one mesh.

    Attributes:
        mesh, mode: the mesh, and the mode of its ranks.
        ranks: the numbers of the ranks, as nested lists, one level for each dimension of the mesh.
        forward_collectives, collectives: the numbers of collectives of the last call, and of the last call and its
            gradient.
    """

    def __init__(self, subject: Subject, mesh: Any, mode: Any) -> None:
        self.subject, self.mesh, self.mode = subject, mesh, mode
        with mode.disable():
            self.ranks = mesh.mesh.tolist()  # PyTorch computes the tensor of ranks at each access
        self.forward_collectives = self.collectives = 0

    def place(self, x: Tensor, placements: Sequence[Any]) -> Any:
        """Returns the tensor as a DTensor. The ranks of a partial placement have equal parts of the sum."""
        from torch.distributed._local_tensor import LocalTensor
        from torch.distributed.tensor import DTensor

        with self.mode.disable():
            pieces = dict(pieces_of(x.detach(), placements, self.ranks))
        local = LocalTensor(pieces)
        return DTensor.from_local(local, self.mesh, placements, run_check=False, shape=x.shape, stride=x.stride())

    def whole(self, x: Any) -> Any:
        """Returns the whole tensor of a DTensor."""
        local: Any = x.detach().to_local()
        with self.mode.disable():
            # A replicated tensor may be a plain tensor.
            pieces = getattr(local, "_local_tensors", None)
            return local if pieces is None else joined(pieces, x.placements, self.ranks)

    def results(
        self,
        args: Arguments,
        placements: Placements,
        seeds: Mapping[int, Tensor],
        function: Callable[..., Any] | None = None,
    ) -> Results:
        """Returns outputs and gradients as plain tensors, by name. Each output's incoming gradient has its placements.

        Args:
            args: the arguments, as plain tensors.
            placements: the placements of each tensor.
            seeds: the incoming gradients, by the numbers of the outputs; no gradient is computed if there are none.
            function: called in place of the operator.
        """
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.debug import CommDebugMode

        subject = self.subject
        # PyTorch's own gradient of layer_norm is wrong for a partial input.
        partial = any(p.is_partial() for x in placements for p in x)
        wanted = [] if partial or not seeds or subject.refusal or subject.mutated else subject.wanted(args)
        leaves, given = list(args), iter(placements)
        for i in tensors_in(args):
            leaves[i] = self.place(args[i], next(given)).requires_grad_(i in wanted)
        gradients: Sequence[Any] = ()
        with CommDebugMode() as counted:
            with torch.enable_grad() if wanted else torch.no_grad():
                outputs: list[Any] = list(subject.call(leaves, function))
            self.forward_collectives = counted.get_total_counts()
            # The dispatcher may mark an empty result, which was not requested, as differentiable.
            ready = {k: y for k, y in enumerate(outputs) if y.requires_grad and k in seeds}
            if ready:
                # Each rank has the whole gradient of a sum.
                alike = {k: [Replicate() if p.is_partial() else p for p in y.placements] for k, y in ready.items()}
                placed = [self.place(seeds[k], alike[k]) for k in ready]
                by = [leaves[i] for i in wanted]
                gradients = torch.autograd.grad(list(ready.values()), by, placed, allow_unused=True)
        self.collectives = counted.get_total_counts()
        named = _named(subject, outputs, wanted, gradients)
        return {name: self.whole(x) for name, x in named.items()}


def _plain(subject: Subject, args: Arguments, only: int | None = None) -> tuple[Results, dict[int, Tensor]]:
    """Returns outputs and gradients of a call on plain tensors, by the names of :meth:`_Sharded.results`, and the
    incoming gradients by the numbers of the outputs: of all outputs, or of one.

    The incoming gradients are drawn outside LocalTensorMode, in which each rank would draw its own.
    """
    wanted = [] if subject.refusal or subject.mutated else subject.wanted(args)
    leaves = [x.detach().requires_grad_(i in wanted) if isinstance(x, Tensor) else x for i, x in enumerate(fresh(args))]
    with torch.enable_grad() if wanted else torch.no_grad():
        outputs = subject.call(leaves)
    ready = {k: y for k, y in enumerate(outputs) if y.requires_grad and only in (None, k)}
    seeds = dict(zip(ready, subject.seeds({str(k): y for k, y in ready.items()}).values(), strict=True))
    gradients: Sequence[Any] = ()
    if ready:
        by = [leaves[i] for i in wanted]
        gradients = torch.autograd.grad(list(ready.values()), by, list(seeds.values()), allow_unused=True)
    return _named(subject, outputs, wanted, gradients), seeds


def _named(subject: Subject, outputs: Sequence[Any], wanted: Sequence[int], gradients: Sequence[Any]) -> dict[str, Any]:
    named = {f"output {k}": y.detach() for k, y in enumerate(outputs)}
    return named | {
        f"gradient of {subject.schema[i].name}": g for i, g in zip(wanted, gradients, strict=False) if g is not None
    }


def _rule(subject: Subject) -> Any:
    rule = subject.op._scale.rule
    if rule is None:
        raise Skip("the operator declares no `sharding`")
    return rule


def _sharded_samples(subject: Subject) -> tuple[str, list[Arguments]]:
    """Returns the samples in the widest dtype, in which sums in another order differ least."""
    names = list(dict.fromkeys(name for name, _ in subject.variants))
    dtype = "float64" if "float64" in names else names[0]
    found = [args for args in subject.of_dtype(dtype) if lead_of(args).numel()]
    # One sample for each combination of shapes; each call runs once for each rank.
    by_shape = {tuple(tuple(args[i].shape) for i in tensors_in(args)): args for args in reversed(found)}
    return dtype, list(by_shape.values())[::-1][:MOST_SAMPLES]


MOST_SAMPLES = 2


def _placements_of(places: Sequence[Sequence[Any]], args: Arguments) -> list[list[Any]]:
    """Returns the placements of each tensor in splits, one split for each dimension of the mesh."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    def one(place: Any) -> Any:
        return Replicate() if place is None else Partial() if place == "sum" else Shard(place)

    return [[one(split[i]) for split in places] for i in tensors_in(args)]


def _fits(places: Sequence[Sequence[Any]], args: Arguments, shape: Sequence[int]) -> bool:
    """Returns whether each dimension that is split has an element for each rank."""
    for i in tensors_in(args):
        ranks = [1] * args[i].ndim
        for split, size in zip(places, shape, strict=True):
            if isinstance(split[i], int):
                ranks[split[i]] *= size
        if any(size < count for size, count in zip(args[i].shape, ranks, strict=True)):
            return False
    return True


def _told(args: Arguments, placements: Placements, shape: Sequence[int]) -> str:
    sizes = ", ".join(
        f"{tuple(args[i].shape)} as {'/'.join(map(str, p))}" for i, p in zip(tensors_in(args), placements, strict=True)
    )
    return f"on a mesh of {' x '.join(map(str, shape))} ranks, tensors {sizes}"


@check(
    "The rule in `sharding=` must name only dimensions along which separate calls give the pieces of the result, and "
    '"sum" for a result that the pieces add up to. Give a backward with a rule of its own its own `sharding`.',
    backends=("reference", "simulator"),
    needs=("fakes", "gradients", "gradgradcheck", "gradient_strides", "differentiable", "vmap"),
)
def sharding(subject: Subject) -> str:
    """On DTensors with every placement, results and gradients equal those of whole tensors; splits do not
    communicate."""
    rule = _rule(subject)
    dtype, samples = _sharded_samples(subject)
    right = [_plain(subject, args) for args in samples]
    tried = 0
    by_reference = subject.op._by_reference  # PyTorch's rules shard the gradient
    # The backend `reference` runs all meshes: the rule does not depend on the kernels.
    meshes = MESHES[:1] if subject.kernels and subject.op.reference is not None else MESHES
    for shape in meshes:
        with _ranks(shape, subject.device.type) as ranks:
            sharded = _Sharded(subject, *ranks)
            few = len(meshes) == 1 or shape != MESHES[0]
            for args, (wanted, seeds) in zip(samples[:1] if few else samples, right, strict=False):
                splits = [tuple(tensors) for _, tensors in rule(*args)]
                splits = splits[:: max(len(splits) - 1, 1)] if few else splits  # the first and the last
                given = {} if by_reference and few else seeds
                for places in _combined(splits, len(shape)):
                    if _fits(places, args, shape):
                        placements = _placements_of(places, args)
                        words = f"{dtype}, {_told(args, placements, shape)}"
                        _hold(sharded, args, placements, given, wanted, words)
                        count = sharded.forward_collectives if by_reference else sharded.collectives
                        if count:
                            raise Fault(f"{words}: {count} collectives, where the declared split needs none")
                        tried += 1
                # The loss may read one output alone.
                for only in seeds if len(seeds) > 1 and args is samples[0] and not few else ():
                    placements = _placements_of((splits[0],) * len(shape), args)
                    with ranks[1].disable():  # as _plain requires
                        alone, seed = _plain(subject, args, only)
                    words = f"{dtype}, gradient of output {only} alone, {_told(args, placements, shape)}"
                    _hold(sharded, args, placements, seed, alone, words)
                for placements in _alone(args) if args is samples[0] and not few else ():
                    given = {} if by_reference else seeds
                    _hold(sharded, args, placements, given, wanted, f"{dtype}, {_told(args, placements, shape)}")
                    tried += 1
    return f"{tried} placements of {dtype} on meshes of {', '.join(' x '.join(map(str, s)) for s in meshes)} ranks"


def _combined(splits: Sequence[Any], dims: int) -> list[tuple[Any, ...]]:
    """Returns the tuples of splits to try, with one split for each dimension of the mesh. For two dimensions, each
    split is paired with the next one in the list."""
    if dims == 1 or len(splits) == 1:
        return [(split,) * dims for split in splits]
    return list(itertools.pairwise([*splits, *splits[:1]]))


def _alone(args: Arguments) -> Iterator[list[list[Any]]]:
    """Yields placements on one mesh dimension in which one tensor is sharded or partial, and the others are whole."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    positions = tensors_in(args)
    for k, i in enumerate(positions):
        partial = [Partial()] if k == 0 and args[i].is_floating_point() else []
        for placement in (*(Shard(dim) for dim in range(args[i].ndim)), *partial):
            found: list[list[Any]] = [[Replicate()] for _ in positions]
            found[k] = [placement]
            yield found


def _hold(
    sharded: _Sharded,
    args: Arguments,
    placements: Placements,
    seeds: Mapping[int, Tensor],
    wanted: Results,
    words: str,
) -> None:
    try:
        got = sharded.results(args, placements, seeds)
    except Exception as error:
        raise Fault(f"{words}: {first_words(error)}") from error
    assert_close(words, got, {name: wanted[name] for name in got}, than="whole tensors give")


@check(
    "Add to the rule in `sharding=` the split in which the reference needs fewer collectives, such as the split along "
    "the rows of a weight.",
    backends=("reference",),
    needs=("sharding",),
)
def tensor_parallel(subject: Subject) -> str:
    """A layer whose weights and input are sharded needs no more collectives than the reference on DTensors."""
    _rule(subject)
    reference = subject.reference
    dtype, samples = _sharded_samples(subject)
    args = samples[0]
    _, seeds = _plain(subject, args)
    tried = []
    with _ranks((2,), subject.device.type) as ranks:
        sharded = _Sharded(subject, *ranks)
        for style, places in _styles(args):
            if not _fits([places], args, (2,)):
                continue
            placements = _placements_of([places], args)
            try:
                sharded.results(args, placements, seeds, reference)
            except (NotImplementedError, RuntimeError):
                continue  # PyTorch has no rule for an operation of the reference
            if sharded.forward_collectives:
                continue  # the placements are not a style of this operation
            theirs = sharded.collectives
            sharded.results(args, placements, seeds)
            if sharded.collectives > theirs:
                raise Fault(
                    f"{dtype}, {style}, {_told(args, placements, (2,))}: {sharded.collectives} collectives, and the "
                    f"reference needs {theirs}"
                )
            tried.append(style)
    if not tried:
        raise Skip("the reference has no style of tensor parallelism without collectives in the forward")
    return f"{', '.join(tried)}, in {dtype} on 2 ranks"


def _styles(args: Arguments) -> Iterator[tuple[str, list[Any]]]:
    """Yields the styles of tensor parallelism that the samples' shapes permit, and the place of each argument.

    The styles come from ``torch.distributed.tensor.parallel``. A weight is a tensor of two dimensions beside the
    lead, whose last dimension has the size of the lead's.
    """
    lead = next(i for i in tensors_in(args) if args[i] is lead_of(args))
    x = args[lead]
    others = [i for i in tensors_in(args) if i != lead]
    if x.ndim > 1:
        alike = {i: 0 for i in others if args[i].shape == x.shape}
        yield "SequenceParallel", [0 if i == lead else alike.get(i) for i in range(len(args))]
    for i in others:
        w = args[i]
        if w.ndim == 2 and x.ndim and w.shape[1] == x.shape[-1] and w.shape != x.shape:
            biases = [k for k in others if args[k].shape == w.shape[:1]]
            yield "ColwiseParallel", [0 if k == i or k in biases else None for k in range(len(args))]
            yield "RowwiseParallel", [x.ndim - 1 if k == lead else 1 if k == i else None for k in range(len(args))]


class _Layer(nn.Module):
    """A module that calls the operator; the tensors that are differentiated, except the lead, are parameters."""

    def __init__(self, subject: Subject, args: Arguments) -> None:
        super().__init__()
        self.subject, self.args = subject, args
        self.lead = next(i for i in tensors_in(args) if args[i] is lead_of(args))
        for i in subject.wanted(args):
            if i != self.lead:
                self.register_parameter(f"p{i}", nn.Parameter(args[i].detach().clone()))

    def forward(self, x: Tensor) -> Tensor:
        full = list(self.args)
        full[self.lead] = x
        for name, parameter in self.named_parameters():
            full[int(name[1:])] = parameter
        outputs = [y for y in self.subject.call(full) if y.requires_grad]
        return outputs[0]


@check(
    "fully_shard writes new values into the same parameter, without a new version. Keep nothing computed from a "
    "parameter between calls.",
    backends=("reference", "simulator"),
    needs=("gradients", "determinism"),
)
def fsdp(subject: Subject) -> str:
    """Two training steps of a layer under fully_shard give the losses and parameters of the layer alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dtype, samples = _sharded_samples(subject)
    args = samples[0]
    subject.need_gradients(args)
    if len(subject.wanted(args)) < 2:
        raise Skip("the operator has no tensor that could be a parameter")
    with _group(1, "gloo"):
        plain = _steps(subject, args, lambda layer: None)
        mesh = init_device_mesh(subject.device.type, (1,))
        try:
            got = _steps(subject, args, lambda layer: fully_shard(layer, mesh=mesh))
        except Exception as error:
            raise Fault(f"{dtype}, under fully_shard: {first_words(error)}") from error
    assert_close(f"{dtype}, under fully_shard", got, plain, than="the layer alone gives")
    return f"2 steps of {dtype}, {len(subject.wanted(args)) - 1} parameters"


def _steps(subject: Subject, args: Arguments, wrap: Callable[[nn.Module], Any]) -> Results:
    layer = _Layer(subject, args)
    wrap(layer)
    found: dict[str, Tensor] = {}
    for step in range(2):
        x = fresh(args)[layer.lead].detach().requires_grad_()
        with torch.enable_grad():
            y = layer(x)
        y.backward(subject.seeds({"output": y})["output"])
        found |= {f"output of step {step}": y.detach(), f"gradient of step {step}": x.grad}
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                gradient: Any = parameter.grad
                local = getattr(parameter, "_local_tensor", parameter)
                if gradient is not None:
                    local -= 0.1 * getattr(gradient, "_local_tensor", gradient)
                parameter.grad = None
                found[f"{name} after step {step}"] = local.detach().clone()
    return found
