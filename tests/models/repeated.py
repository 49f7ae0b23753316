"""Prints the launches of a call in generated code, by the body and by repeated steps. Runs in a separate process with a
fake GPU (tests/gpu/stub_h200.py), and prints JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.gpu import stub_h200


def main() -> int:
    machine = stub_h200.install()
    import torch

    import autograd_bridge  # noqa: F401  declares the operators
    from cupyops.launch import debug, recording
    from cupyops.torch import Operator, elementwise
    from cupyops.torch.compiled.calls import direct
    from tests.models.repeated_ops import cases, dispatching, mixing, overwriting, reading, returning

    torch.set_grad_enabled(False)

    def asked(call: Callable[..., Any], args: Any) -> list[Any]:
        machine.watch([a for a in args if isinstance(a, torch.Tensor)])
        call(*args)
        return list(machine.events)

    found: dict[str, Any] = {}
    for name, args in cases(torch, Operator, elementwise).items():
        scope: dict[str, Any] = {}
        scope["f"] = direct(name, "cuda", scope, "f", True)
        body = scope["f"].__self__.body
        right = asked(body, args)
        first = asked(scope["f"], args)
        # Other tensors of the same shapes: nothing of the first call's memory may be left in the repeated launches.
        others = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
        second = asked(scope["f"], others)
        results = [
            tuple((tuple(y.shape), y.stride(), str(y.dtype)) for y in _several(f(*args))) for f in (body, scope["f"])
        ]
        found[name] = {
            "repeated": scope["f"] is not body,
            "same": right == first == second and len(right) > 0,
            "results": results[0] == results[1],
        }
    gelu = "cupyops::gelu"
    x = torch.randn(4, 8)
    scope = {}
    scope["f"] = direct(gelu, "cuda", scope, "f", True)
    scope["f"](x, "none")
    repeated = scope["f"]
    with recording.recorded() as launches:
        scope["f"](x, "none")
    found["recorded"] = len(launches)
    scope["f"](x, "none")
    found["repeated again"] = scope["f"] is not repeated and scope["f"].__name__ == "repeat"
    submitted: list[Any] = []
    launch, debug.launch = debug.launch, lambda *rest: submitted.append(rest)
    with debug.debug_mode():
        scope["f"](x, "none")
        scope["f"](x, "none")
    found["guarded"] = len(submitted)
    debug.launch = launch
    found["not fixed"] = direct(gelu, "cuda", {}, "f", False).__name__ != "repeat"
    found["refused"] = [_kept(torch, direct, make(torch, Operator)) for make in (reading, returning)]
    found["dispatched"] = _alike(torch, direct, dispatching(torch, Operator))
    found["mixed"] = _alike(torch, direct, mixing(torch, Operator))
    writing, scope = overwriting(torch, Operator), {}
    scope["f"] = direct(writing.qualified_name, "cuda", scope, "f", True)
    scope["f"](torch.eye(4))
    machine.watch([])
    try:
        scope["f"](-torch.eye(4))
    except torch.linalg.LinAlgError:
        found["failed"] = [scope["f"].__name__, len(machine.events)]
    x = torch.randn(4, 8)
    scope = {}
    scope["f"] = direct("cupyops::gelu_backward", "cuda", scope, "f", True)
    scope["f"](x, x, "none")
    found["one tensor twice"] = scope["f"].__name__ != "repeat"
    json.dump(found, sys.stdout)
    return 0


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _kept(torch: Any, direct: Any, op: Any) -> bool:
    """Returns whether the body stays in use, since its record cannot be repeated."""
    scope: dict[str, Any] = {}
    scope["f"] = direct(op.qualified_name, "cuda", scope, "f", True)
    scope["f"](torch.randn(4, 8))
    return scope["f"].__name__ != "repeat"


def _alike(torch: Any, direct: Any, op: Any) -> list[bool]:
    """Whether a body with PyTorch's functions is repeated, and whether these give the same of another tensor. The kernels run
    nowhere, so the memory that they would write is set to zero."""
    scope: dict[str, Any] = {}
    scope["f"] = direct(op.qualified_name, "cuda", scope, "f", True)
    empty_like, empty_strided = torch.empty_like, torch.empty_strided
    scope["f"](torch.randn(4, 8))
    x, call = torch.randn(4, 8), scope["f"]
    if call.__name__ == "repeat":
        call.__globals__["empty"] = lambda shape, strides, dtype: empty_strided(shape, strides, dtype=dtype).zero_()
    torch.empty_like = torch.zeros_like
    right, got = op.body(x), call(x)
    torch.empty_like = empty_like
    same = [bool(torch.equal(a, b)) for a, b in zip(_several(got), _several(right), strict=True)]
    return [call is not op.body, *same]


if __name__ == "__main__":
    sys.exit(main())
