"""The code that calls on a GPU run on the host, with a fake GPU (:mod:`tests.gpu.stub_h200`), in a process of its own.

    python -m tests.torch.host_paths            # prints what was seen, as JSON

Results of operators have unwritten memory, so values are not compared.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.gpu import stub_h200


@contextmanager
def autocast(dtype: Any, *, enabled: bool = True) -> Iterator[None]:
    """``torch.autocast("cuda")``, which asks a real GPU what it can do."""
    import torch

    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", enabled)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def dtypes(y: Any, *leaves: Any) -> list[str]:
    """The dtypes of a result, and of the gradients of leaves."""
    import torch

    y = y[0] if isinstance(y, tuple) else y
    grads = torch.autograd.grad(y, leaves, torch.ones_like(y)) if leaves else ()
    return [str(t.dtype).removeprefix("torch.") for t in (y, *grads)]


def casts(bridge: Any, left: list[str]) -> dict[str, Any]:
    """Dtypes under autocast; ``left`` is called for each call that leaves the generated dispatch."""
    import torch
    from torch import nn

    from cupyops.ops.linear import config as linear_config
    from cupyops.torch import Operator

    x = torch.randn(64, 32, requires_grad=True)
    half = x.detach().bfloat16().requires_grad_()
    wide = x.detach().double().requires_grad_()
    weight, bias = torch.randn(48, 32, requires_grad=True), torch.randn(48, requires_grad=True)
    affine = [torch.randn(32, requires_grad=True) for _ in range(2)]
    own = Operator(
        "cupyops_test::host_path(Tensor x, Tensor? y, float factor) -> Tensor",
        lambda x, y, factor: torch.empty_like(x),
        backward=lambda grad_out, x: grad_out.clone(),
        wrt=["x"],
        autocast="lower",
    )
    found: dict[str, Any] = {}
    linear_config.LEAST_GRADIENT = 0
    left.clear()
    with autocast(torch.bfloat16):
        found["layer_norm"] = dtypes(bridge.layer_norm(half, 32, *affine), half, *affine)
        found["layer_norm of float64"] = dtypes(bridge.layer_norm(wide, 32), wide)
        found["linear"] = dtypes(bridge.linear(x, weight, bias), x, weight, bias)
        found["linear_gelu"] = dtypes(bridge.linear_gelu(x, weight, bias), x, weight, bias)
        found["gelu"] = dtypes(bridge.gelu(x), x) + dtypes(bridge.gelu(half), half)
        found["add_layer_norm"] = dtypes(bridge.add_layer_norm(half, half, 32), half)
        found["own"] = dtypes(own(x, None, 1.0), x) + dtypes(own(wide, wide, 1.0), wide)
        with autocast(torch.bfloat16, enabled=False):
            found["disabled within"] = dtypes(bridge.linear_gelu(x, weight, bias), x)
        with autocast(torch.float16):
            found["another dtype within"] = dtypes(bridge.linear_gelu(x, weight, bias), x)
        with torch.no_grad():
            found["without gradients"] = [*dtypes(bridge.linear(x, weight, bias)), *dtypes(bridge.layer_norm(half, 32))]
        module = nn.Sequential(bridge.Linear(32, 48), bridge.LinearGELU(48, 32), bridge.LayerNorm(32))
        y = module(x)
        found["modules"] = dtypes(y, x, *module.parameters())
        # A backward that runs under autocast computes in the dtypes of the forward.
        found["backward within"] = dtypes(bridge.layer_norm(half, 32, *affine), half, *affine)
    found["afterwards"] = dtypes(bridge.linear_gelu(x, weight, bias), x)
    found["calls that left the generated dispatch"] = list(left)
    return found


def backwards(bridge: Any) -> dict[str, Any]:
    """Records which backwards call their operators, and what happens to a gradient of another shape."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    gelu, layer_norm, linear_gelu = (
        sys.modules[f"cupyops.torch.ops.{name}"] for name in ("gelu", "layer_norm", "linear_gelu")
    )

    x = torch.randn(64, 32, requires_grad=True)
    weight, bias = torch.randn(32, 32, requires_grad=True), torch.randn(32, requires_grad=True)
    calls: dict[str, tuple[Any, Callable[[], Any]]] = {
        "gelu": (gelu.gelu_backward_operator, lambda: bridge.gelu(x)),
        "layer_norm": (layer_norm._layer_norm_backward, lambda: bridge.layer_norm(x, 32, bias, bias)),
        "add_layer_norm": (layer_norm._layer_norm_backward, lambda: bridge.add_layer_norm(x, x, 32)[0]),
        "linear_gelu": (linear_gelu._linear_gelu_backward, lambda: bridge.linear_gelu(x, weight, bias)),
    }

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    found: dict[str, Any] = {}
    for name, (operator, call) in calls.items():
        asked: list[str] = []
        names: list[str] = []

        # The generated dispatch of the gradient's operator looks these two names up at each call.
        scope = operator.call.__globals__
        held = {name: scope[name] for name in ("body", "apply", "dispatch")}
        scope.update({name: telling(function, asked) for name, function in held.items()})
        for options in ({}, {"create_graph": True}):
            asked.clear()
            y = call()
            torch.autograd.grad(y, x, torch.ones_like(y), **options)
            found[f"{name} {options}"] = bool(asked)
        scope.update(held)
        y = call()
        with Seen():
            torch.autograd.grad(y, x, torch.ones_like(y))
        found[f"{name} in a mode"] = operator.qualified_name in names
        others = [None] if name in ("linear_gelu", "add_layer_norm") else []  # the gradient of the second result
        try:
            call().grad_fn.apply(torch.ones(3, 32), *others)
            found[f"{name} of another shape"] = "no error"
        except (ValueError, RuntimeError) as error:
            found[f"{name} of another shape"] = f"{type(error).__name__}: {error}"
    return found


def telling(original: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    """A function that records its calls."""

    def told(*args: Any) -> Any:
        asked.append("operator")
        return original(*args)

    return told


def odd(bridge: Any, machine: Any) -> dict[str, Any]:
    """Shapes and strides of padded products, and what the library is asked for."""
    import torch

    from cupyops.ops.linear import odd as rule

    found: dict[str, Any] = {}
    rule.ODD = rule.Odd(least=1, least_size=1)
    sys.modules["cupyops.torch.ops.linear"]._LEAST_ODD = 1
    for about, m, n, k in (("N", 64, 129, 136), ("K", 64, 136, 129), ("both", 64, 131, 133), ("neither", 64, 136, 128)):
        x = torch.randn(4, m // 4, k).bfloat16().requires_grad_()
        weight, bias = (torch.randn(*shape).bfloat16().requires_grad_() for shape in ((n, k), (n,)))
        for operator in (bridge.linear, bridge.linear_gelu):
            machine.watch([x, weight, bias])
            y = operator(x, weight, bias)
            grads = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
            products = [event.arguments for event in machine.events if hasattr(event, "what")]
            strides = [ast.literal_eval(operand[operand.rindex("(") :]) for each in products for operand in each]
            found[f"{operator.__name__} {about}"] = {
                "y": [list(y.shape), list(y.stride()), y._base is None],
                "grads": [[list(g.shape), g.is_contiguous(), g._base is None] for g in grads],
                "products": len(products),
                "aligned": all(step == 1 or step % 8 == 0 for each in strides for step in each),
            }
            y.add_(1)  # a result may be written to
    x = torch.randn(64, 136).bfloat16()
    weight = torch.randn(129, 136).bfloat16()
    found["dense"] = []
    for choice in (rule.Odd(least=1, least_size=1), rule.Odd(least=1, least_size=1, strided=False), None):
        rule.ODD = choice
        found["dense"].append(list(bridge.linear(x, weight).stride()))
    return found


def main() -> None:
    """Prints what was seen."""
    machine = stub_h200.install()
    import autograd_bridge as bridge
    from cupyops.torch.core.operator import Operator

    left: list[str] = []
    dispatch = Operator._dispatch

    def told(self: Operator, *args: Any) -> Any:
        left.append(self.name)
        return dispatch(self, *args)

    Operator._dispatch = told  # type: ignore[method-assign]
    seen = {"casts": casts(bridge, left), "backwards": backwards(bridge), "odd": odd(bridge, machine)}
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
