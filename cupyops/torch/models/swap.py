"""The function :func:`optimize`: the modules of a model call the shipped operators."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from cupyops.errors import expected

from .measured import Measured, measured
from .plan import Plan, sealed
from .report import OptimizeReport

__all__ = ["optimize"]

Filter = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def optimize(
    model: nn.Module,
    *,
    include: Filter = None,
    exclude: Filter = None,
    fuse: bool = True,
    lazy_logits: bool = False,
    step: Callable[[], Any] | None = None,
) -> OptimizeReport:
    """Makes the modules of a model call the shipped operators, in place.

    ===============================================  ================================
    what is found                                    what it calls then
    ===============================================  ================================
    LayerNorm, and modules that compute the same     :func:`autograd_bridge.layer_norm`
    RMSNorm, and modules that compute the same       :func:`autograd_bridge.rms_norm`
    GELU and its tanh form, in every spelling        :func:`autograd_bridge.gelu`
    Linear and Conv1D with odd sizes, such as 50257  :func:`autograd_bridge.linear`
    Linear whose weight is a DTensor                 :func:`autograd_bridge.linear`
    a linear layer, and GELU after it               :func:`autograd_bridge.linear_gelu`
    SiLU, GELU or ReLU, and a product after it      :func:`autograd_bridge.swiglu`, ``geglu``, ``reglu``
    a norm without weight, and a scale and a shift   :func:`autograd_bridge.adaptive_layer_norm`
    a sum with a gated branch, in diffusion models   :func:`autograd_bridge.gated_add`
    such a sum, and the norm, scale and shift of it  :func:`autograd_bridge.add_adaptive_layer_norm`
    functions that apply rotary position embedding   :func:`autograd_bridge.rotary_embedding`
    a head and its loss, with ``lazy_logits=True``   :func:`autograd_bridge.linear_cross_entropy`
    an addition, and a layer norm after it          :func:`autograd_bridge.add_layer_norm`
    an addition, and an RMS norm after it           :func:`autograd_bridge.add_rms_norm`
    ===============================================  ================================

    A module stays the same object, with its parameters, buffers, hooks, dtype, device, mode and ``state_dict``. Only
    its class becomes a subclass of its class. A module that is not a module of ``torch.nn`` is found by what it computes.
    Calls of ``F.gelu``, ``F.layer_norm`` and ``F.rms_norm`` in a module's methods are replaced as well. Pickled modules
    have their own classes. Deep copies stay optimised.

    A fused call observes in every call whether its modules have hooks, and then calls them one after the other.
    Operators compute DTensors, too, and other tensor subclasses take the module's own ``forward``. In eager mode on a
    GPU, PyTorch's own functions compute norms and GELU of at most 2^23 elements, since these calls take less of the
    host's time.

    Call ``optimize`` before ``torch.compile``, before or after ``.to()`` and ``DistributedDataParallel``, and after
    ``parallelize_module``.

    With ``step``, the choice is measured: a step is timed in turns with all changes and without each kind of them, and a
    kind that saves no more than the noise is undone. This takes some tens of seconds, and some hundred steps. Parameters,
    buffers, gradients and random generators are put back afterwards; the state of an optimizer that the step uses is
    not, so let the step end with ``backward()``, or call ``optimize`` before the training.

    Args:
        model: the model, on any device, the meta device included.
        include: which modules to change, by name: a pattern such as ``"blocks.*.mlp*"``, several, or a function
            ``(name, module) -> bool``. The default is every module.
        exclude: which modules to leave alone, in the same form.
        fuse: whether consecutive calls become one operator.
        lazy_logits: whether the head of a language model and its loss become :func:`autograd_bridge.linear_cross_entropy`, whose
            logits are never in memory as a whole. In training mode, a linear layer with more columns than its argument, whose
            result the same method passes to a loss, or returns to a method that does, then returns an object that computes
            the logits when something else than ``F.cross_entropy`` reads them: ``outputs.logits.argmax(-1)`` works, and
            ``isinstance(outputs.logits, Tensor)`` is false. Logits that are read first after the weight has changed raise a
            RuntimeError. In eval mode, without gradients and in ``torch.compile``, logits are tensors.
        step: runs the model once as it will be used, eagerly and without arguments:
            ``lambda: loss(model(x), y).backward()``. The default measures nothing.

    Returns:
        The report: what was replaced, what was left alone and why, and ``undo()``.

    Raises:
        TypeError: ``model`` is not a module, or is compiled or scripted; a filter is of another type; or ``step`` cannot be
            called. If ``step`` raises an error, all changes are undone.

    >>> model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32))
    >>> print(optimize(model, exclude="2"))
    optimize(Sequential): 2 places call cupyops, 1 are left alone
      gelu: 1 x GELU: 1
      linear_gelu: 1 x 0, 1: (the model)
    left alone:
      excluded by name: 1 x LayerNorm: 2
    """
    root = _checked(model)
    if step is not None and not callable(step):
        raise TypeError(expected("optimize", "step", "be a function without arguments", type(step).__name__))
    wanted, notes = _selection(root, include, exclude)
    plan = Plan(wanted, fuse, lazy_logits)
    for name, module in _modules(root):
        plan.leaf(name, module)
    plan.settle()
    for name, module in _modules(root):
        plan.methods(name, module)
    plan.settle()
    before = {module: type(module) for module in plan.classes}
    found: tuple[Measured, ...] = ()
    try:
        for module, made in plan.classes.items():
            module.__class__ = made
        if step is not None:
            found = measured(root, plan.groups(), step, before)
            plan.drop(found)
    except BaseException:
        for module, cls in before.items():
            module.__class__ = cls
        raise
    replaced = [site for sites in plan.replaced.values() for site in sites]
    return OptimizeReport(model, replaced, plan.skipped, notes, plan.classes, found)


def _checked(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(expected("optimize", "model", "be a torch.nn.Module", type(model).__name__))
    while isinstance(model, _WRAPPERS):
        model = model.module
    if sealed(model) == "compiled":
        wanted = "be the model before torch.compile: torch.compile(model) comes after optimize(model)"
        raise TypeError(expected("optimize", "model", wanted, "a compiled model"))
    if sealed(model):
        raise TypeError(expected("optimize", "model", "be a model in Python", "a scripted model"))
    return model


def _modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the names and modules of a model; a module with two names is yielded twice."""
    stack: list[tuple[str, nn.Module]] = [("", root)]
    while stack:
        name, module = stack.pop()
        yield name, module
        if not sealed(module):
            inner = [(f"{name}.{n}" if name else n, m) for n, m in module._modules.items() if m is not None]
            stack.extend(reversed(inner))


def _selection(root: nn.Module, include: Filter, exclude: Filter) -> tuple[Callable[[str, nn.Module], bool], list[str]]:
    """Returns the filter of modules, and a line for each pattern that matches no name."""
    names = [name for name, _ in _modules(root)]
    notes: list[str] = []

    def test(argument: str, given: Filter, otherwise: bool) -> Callable[[str, nn.Module], bool]:
        if given is None:
            return lambda name, module: otherwise
        if callable(given):
            return given
        patterns = [given] if isinstance(given, str) else given
        if not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
            wanted = "be a pattern, a sequence of patterns or a function (name, module) -> bool"
            raise TypeError(expected("optimize", argument, wanted, repr(given)))
        unmatched = (p for p in patterns if not any(fnmatchcase(name, p) for name in names))
        notes.extend(f"{argument}: no name matches {p!r}" for p in unmatched)
        return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)

    included, excluded = test("include", include, True), test("exclude", exclude, False)
    return lambda name, module: bool(included(name, module)) and not excluded(name, module), notes
