"""Prints the launches of eager calls, by the body and by repeated steps. Runs in a separate process with a fake GPU
(tests/gpu/stub_h200.py), and prints JSON."""

import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

from tests.gpu import stub_h200


def main() -> int:
    machine = stub_h200.install()
    import torch

    import autograd_bridge as bridge
    from cupyops.launch import debug, recording
    from cupyops.torch import Operator, elementwise
    from cupyops.torch.core import operator as declared
    from cupyops.torch.core import repeated
    from tests.models.repeated_ops import cases, mixing, reading

    repeated.AFTER = 3

    def asked(call: Callable[..., Any], args: Any) -> list[Any]:
        machine.watch([a for a in args if isinstance(a, torch.Tensor)])
        call(*args)
        return list(machine.events)

    def steps(operator: Any) -> Any:
        found = inspect.unwrap(operator.eager).__globals__["repeats"]
        return {key: call for key, call in found.items() if type(call) is not repeated._Count}

    def others(args: Any) -> Any:
        return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)

    found: dict[str, Any] = {"cases": {}}
    with torch.no_grad():
        for name, args in cases(torch, Operator, elementwise).items():
            operator = declared._DECLARED[name]
            right = asked(operator.body, args)
            events = [asked(operator.eager, others(args)) for _ in range(5)]
            results = [
                [(tuple(y.shape), y.stride(), str(y.dtype)) for y in _several(f(*args))]
                for f in (operator.body, operator.eager)
            ]
            found["cases"][name] = {
                "same": len(right) > 0 and all(each == right for each in events),
                "results": results[0] == results[1],
                "steps": [f.__name__ for f in steps(operator).values()],
            }

    found["Dynamo"] = "torch._dynamo" in sys.modules

    # The check of check_op, whose import brings Dynamo.
    from tests.torch.checked_repeats import checked

    found["checked"] = checked(torch, Operator, elementwise)

    # Gradients of the modules, whose forward and backward both repeat.
    found["modules"] = {}
    for make in (bridge.LayerNorm, bridge.RMSNorm, lambda n: bridge.GELU()):
        module = make(64)
        launches = []
        for _ in range(6):
            x = torch.randn(2, 3, 64, requires_grad=True)
            machine.watch([x, *module.parameters()])
            y = module(x)
            y.backward(torch.ones_like(y))
            launches.append([(event.kernel.name, event.grid) for event in machine.events])
        found["modules"][type(module).__name__] = all(each == launches[0] for each in launches)

    # Arguments that compare equal, or have equal shapes, and are different.
    scaled = elementwise("y = a * s", name="tests::scaled", scalars=["s"])
    x = torch.randn(4, 8)
    with torch.no_grad():
        for number in (0.0, -0.0, 1.0):
            for _ in range(4):
                events = asked(scaled.call, (x.clone(), number))
            found[f"scaled by {number}"] = events[0].arguments[2:]
        transposed = [asked(scaled.eager, (x.clone().T.contiguous().T, 1.0)) for _ in range(5)]
        found["another layout"] = [all(e == transposed[0] for e in transposed), len(steps(scaled))]
        before = len(steps(scaled))
        for _ in range(5):
            scaled.eager(x.clone(), 2.0)
        found["new numbers"] = len(steps(scaled)) - before
    try:
        scaled.eager(x.clone(), [])
    except TypeError as error:
        found["no number"] = str(error)

    # Settings.
    rms = declared._DECLARED["cupyops::rms_norm_without_weight"]
    summing = _summing(torch, Operator)
    for _ in range(4):
        summing.eager(x.clone())
    (key,) = steps(summing)
    ran: list[str] = []
    steps(summing)[key].__globals__["body"] = lambda *args: ran.append("body")
    summing.eager(x.clone())
    torch.set_autocast_enabled("cuda", True)
    summing.eager(x.clone())
    torch.set_autocast_enabled("cuda", False)
    found["under another autocast"] = ran
    for make in (mixing, reading):
        operator = make(torch, Operator)
        for _ in range(5):
            operator.eager(x.clone())
        found[operator.name] = [f is operator.body for f in steps(operator).values()]
    # The other current GPU, and a device of the tensors that is not current.
    count, scope = len(steps(rms)), rms.eager.__globals__
    scope["current_device"] = lambda: 1
    scope["first"].__self__.current = lambda: 1
    for _ in range(5):
        rms.eager(x.clone(), 1e-5)
    found["another GPU"] = len(steps(rms)) - count

    # Recordings and debug mode.
    with torch.no_grad():
        bridge.gelu(x)
        for _ in range(5):
            bridge.gelu(x.clone())
        with recording.recorded() as launches:
            bridge.gelu(x.clone())
        found["recorded"] = len(launches)
        submitted: list[Any] = []
        bridge.gelu(x.clone())
        launch, debug.launch = debug.launch, lambda *rest: submitted.append(rest)
        with debug.debug_mode():
            bridge.gelu(x.clone())
            bridge.gelu(x.clone())
        found["guarded"] = len(submitted)
        debug.launch = launch

    # The greatest number of records.
    repeated.MOST = len(steps(scaled)) + 1
    with torch.no_grad():
        for n in range(5):
            for _ in range(4):
                scaled.eager(torch.randn(3, 10 + n), 1.0)
    found["beyond the most"] = len(steps(scaled)) - repeated.MOST
    json.dump(found, sys.stdout)
    return 0


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _summing(torch: Any, operator: Any) -> Any:
    """A body with a function of PyTorch after its launch."""
    from tests.models.repeated_ops import _launches

    kernel = _launches(torch)

    def body(x: Any) -> Any:
        y = torch.empty_like(x)
        kernel(x, y, x.numel())
        return y.sum(0)

    return operator("tests::summing(Tensor x) -> Tensor", body, repeats=True)


if __name__ == "__main__":
    sys.exit(main())
