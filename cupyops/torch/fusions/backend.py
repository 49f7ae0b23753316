"""The class :class:`Fusions`, a backend of ``torch.compile`` that fuses operations before Inductor compiles the graph."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from cupyops.errors import expected
from cupyops.torch import ops
from cupyops.torch.compiled.graphs import before_gradients

from .norms import fuse_own_norms
from .rewrite import CALLED, FUSIONS, Site, rewrite

__all__ = ["Fusions"]

before_gradients(fuse_own_norms)


class Fusions:
    """A backend of ``torch.compile``: ``torch.compile(model, backend=cupyops.torch.Fusions())``.

    The backend finds operations that one operator computes together in the traced graph of any model: those of
    :data:`cupyops.torch.ops.fused_operations.FUSED`, a table that :func:`cupyops.torch.optimize` shares. ``add_layer_norm``:
    an addition of two tensors of equal shape, and a layer norm of the sum, whose other uses stay. ``add_rms_norm``: an
    addition and ``F.rms_norm`` of the sum, whose result has the dtype of the sum. ``linear_gelu``: a product with a bias
    (``F.linear``, or ``torch.addmm`` with a view of its result), and GELU of the product, as ``F.gelu`` or spelled out in
    elementary operations. ``swiglu``, ``geglu``, ``reglu``: SiLU, GELU or ReLU of a tensor, times a tensor of the same shape.
    ``adaptive_layer_norm``: a layer norm without weight, and a scale and a shift with a row for each sample;
    ``add_adaptive_layer_norm``: a product with such a gate, a sum, and the former. Each place becomes one call of the
    operator of the same name, with the operator's gradient.
    A second norm of a sum becomes ``layer_norm`` or ``rms_norm``. Inductor compiles the changed graph.

    The model, its parameters and other compilations of the same code stay as they are. The caches of PyTorch's compiler
    see the changed graph.

    Args:
        fusions: what to look for; by default all.
        devices: the types of the devices on which tensors are fused.
        backend: the name of the backend that compiles the changed graph.

    Attributes:
        sites: the places found in all graphs compiled so far, as a list of :class:`.rewrite.Site`. A graph with the
            places of an earlier graph adds none.

    Raises:
        ValueError: a fusion is unknown.
        TypeError: ``fusions`` or ``devices`` is neither a string nor a sequence of strings.

    >>> Fusions(["add_layer_norm", "linear_gelu"])
    <Fusions: add_layer_norm, linear_gelu; 0 found>
    """

    def __init__(
        self,
        fusions: Sequence[str] = tuple(FUSIONS),
        *,
        devices: Sequence[str] = ("cuda",),
        backend: str = "inductor",
    ) -> None:
        for name, given in (("fusions", fusions), ("devices", devices)):
            if not isinstance(given, Sequence) or not all(isinstance(x, str) for x in given):
                raise TypeError(expected("Fusions", name, "be a string or a sequence of strings", repr(given)))
        fusions = (fusions,) if isinstance(fusions, str) else tuple(fusions)
        for name in fusions:
            if name not in FUSIONS:
                raise ValueError(expected("Fusions", "fusions", f"be among {', '.join(FUSIONS)}", repr(name)))
        self.fusions = fusions
        self.devices = (devices,) if isinstance(devices, str) else tuple(devices)
        self.backend = backend
        self.__name__ = "Fusions"  # PyTorch's messages name a backend by this attribute
        self.sites: list[Site] = []
        self._seen: set[tuple[Site, ...]] = set()

    def __repr__(self) -> str:
        return f"<Fusions: {', '.join(self.fusions)}; {sum(not s.refusal for s in self.sites)} found>"

    def __str__(self) -> str:
        """Returns one line for each place found, with the reason if the operations stay apart."""
        return "\n".join(map(str, self.sites)) or "No operations found that an operator computes together."

    def __call__(
        self,
        graph: GraphModule,
        inputs: list[Tensor],
        *,
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compiles a graph. ``torch.compile`` calls the backend with the graph, and with its own ``mode`` and
        ``options``."""
        from torch._dynamo.backends.registry import lookup_backend

        sites = tuple(rewrite(graph, self.fusions, self.devices))
        if sites not in self._seen:  # Dynamo traces the same code again for other sizes
            self._seen.add(sites)
            self.sites += sites
        compile_graph: Callable[..., Any] = lookup_backend(self.backend)
        if self.backend != "inductor":
            return compile_graph(graph, inputs)
        compiled: Callable[..., Any] = compile_graph(graph, inputs, config_patches=_settings(mode, options))
        return compiled

    def reset(self) -> None:
        """Frees the CUDA graphs of the compiled graphs. ``torch.compiler.reset`` calls this method."""
        if torch.cuda.is_available():
            from torch._inductor.cudagraph_trees import reset_cudagraph_trees

            reset_cudagraph_trees()


def _settings(mode: str | None, options: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the settings of Inductor for the arguments of ``torch.compile``."""
    from torch._inductor import config, list_mode_options

    found = dict(list_mode_options(mode)) if mode and mode != "default" else {}
    found |= {name.replace("-", "_"): value for name, value in (options or {}).items()}
    cacheable = "unsafe_marked_cacheable_functions"
    if hasattr(config, cacheable):
        # AOTAutograd's cache takes graphs that call functions of PyTorch. Other functions need a name and a key.
        names = (f"{function.__module__}.{function.__name__}" for function in CALLED)
        found[cacheable] = {**getattr(config, cacheable), **found.get(cacheable, {}), **dict.fromkeys(names, _key())}
    return found


@cache
def _key() -> str:
    """Returns a hash of the code that a cached graph has been traced from: that of the operators."""
    files = sorted(Path(ops.__path__[0]).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
