"""Makes the disk cache of compiled graphs distinguish operators that are declared in different ways.

AOTAutograd and Inductor keep compiled graphs on disk. A key has the text of a graph, and the text has only the names of
custom operators. AOTAutograd's key is that of Dynamo's graph, from which it traces the operators' references and gradients.
Inductor's key is that of the graph that AOTAutograd has traced. Its code also follows from the dtypes, shapes and strides of
the operators' results, from the forms in place (:mod:`.in_place`), and from the setting of choices (:mod:`.choices`). Without
these facts, after an edit that changes the dtype of a result, cached code would read the result as the former dtype.

PyTorch has no public setting for such facts. This module adds them to the object that PyTorch hashes. If PyTorch lacks
the object (:mod:`.private`), graphs are compiled anew in each process, by the public tag of all keys. A composite
operator has its code in its name (:mod:`cupyops.torch.core.composite`).
"""

import functools
import hashlib
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree

from cupyops.errors import expected

from .calls import Bodies, bodies_of
from .choices import setting
from .private import KEYS, has

__all__ = ["code_of", "prepare"]

# Dynamo imports the module before it traces. Inductor hashes an object of the class, and AOTAutograd one of a subclass.
_MODULE, _HASHED = "torch._inductor.codecache", "FxGraphHashDetails"
_TAG = " cupyops "
# The folders of the package that define operators (bodies, references, gradients), or trace and lower them.
_ROOMS = "ops", "programs", "torch/compiled", "torch/core", "torch/ops", "torch/programs"


def code_of(namespace: str, name: str, version: object) -> str:
    """Returns a key for the code of an operator: its body, its reference, its gradient.

    For a shipped operator, and for an operator whose author gives a version, the text is the same in each process. No
    hash covers the functions that another operator's code calls, so each declaration of it has a new key.

    Args:
        namespace, name: the operator's.
        version: the version that the author gives the code, or None.

    Raises:
        ValueError: the version is neither a text nor None.
    """
    if version is not None and not isinstance(version, str):
        raise ValueError(expected(name, "version", "be a string or None", repr(version)))
    return f"{_hash_of_code()} {version}" if namespace == "cupyops" or version is not None else secrets.token_hex()


@functools.cache
def _hash_of_code() -> str:
    """Returns a hash of this package's code that runs while a graph is traced and compiled."""
    package = Path(__file__).parents[2]
    files = [path for room in _ROOMS for path in sorted((package / room).rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def prepare() -> None:
    """Adds the facts to the keys from now on."""
    if (module := sys.modules.get(_MODULE)) is None:
        return
    if not has(KEYS):
        config: Any = torch.compiler.config
        config.cache_key_tag = f"{config.cache_key_tag.partition(_TAG)[0]}{_TAG}{secrets.token_hex()}"
    elif not hasattr((hashed := getattr(module, _HASHED)).__init__, "cupyops"):
        hashed.__init__ = _with_facts(hashed, hashed.__init__)


def _with_facts(hashed: Any, init: Any) -> Any:
    @functools.wraps(init)
    def with_facts(self: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        init(self, graph, *args, **kwargs)
        of_inductor = type(self) is hashed
        facts = [
            (name, setting(), *(_facts_of_inductor(node, bodies) if of_inductor else (bodies.code,)))
            for node, name, bodies in _calls(graph)
        ]
        if facts:
            self.cupyops = facts

    with_facts.cupyops = True  # type: ignore[attr-defined]
    return with_facts


def _calls(graph: Any) -> Iterator[tuple[Node, str, Bodies]]:
    """Yields the nodes of a graph that call an operator of this package, with the operator's name and functions."""
    for module in graph.modules() if isinstance(graph, GraphModule) else ():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            # A call of an operator that writes to its arguments is a node of PyTorch's that has the operator as argument.
            for operator in (node.target, *node.args):
                name = operator._qualified_op_name if isinstance(operator, torch._ops.OpOverloadPacket) else ""
                name = operator.name() if isinstance(operator, torch._ops.OpOverload) else name
                if (bodies := bodies_of(name)) is not None:
                    yield node, name, bodies


def _facts_of_inductor(node: Node, bodies: Bodies) -> Iterator[str]:
    yield _hash_of_code()
    yield "" if bodies.in_place is None else bodies.in_place.name()
    for value in _pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            layout = *value.shape, "|", *value.stride(), "|", value.storage_offset()
            yield " ".join(map(str, (value.dtype, value.device, *layout)))
        else:
            yield str(value)
