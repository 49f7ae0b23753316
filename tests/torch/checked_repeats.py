"""The check ``repeats`` on the GPU that is not there, for tests/torch/eager_repeats.py."""

from contextlib import nullcontext
from typing import Any


def checked(torch: Any, operator: Any, elementwise: Any) -> dict[str, Any]:
    """Returns what the check finds: the number of changes, or the fault; and which calls it compares on repeated steps."""
    from cupyops.torch.check import repeats
    from cupyops.torch.check.registry import Fault
    from cupyops.torch.check.subject import Subject
    from cupyops.torch.core.operator import _DECLARED
    from tests.models.repeated_ops import cases, dispatching, mixing, reading

    class OnAGpu(Subject):
        """Its tensors claim to be on a GPU. Random gradients cannot be copied there."""

        refusal = ""

        def __init__(self, op: Any, args: Any) -> None:
            self.op, self.backend, self.samples, self.refused = op, "cuda", [args], {}
            self.device, self.schema, self.tolerance = torch.device("cuda", 0), op.op._schema.arguments, 1.0

        @property
        def each(self) -> Any:
            return [("float32", self.samples[0])]

        def seeds(self, outputs: Any) -> Any:
            return {name: torch.ones_like(y) for name, y in outputs.items()}

    class Stream:
        def synchronize(self) -> None:
            pass

    repeats._on_stream = lambda subject: nullcontext()
    torch.cuda.current_stream = lambda device: Stream()
    found: dict[str, Any] = {}
    operators = [(_DECLARED[name], args) for name, args in cases(torch, operator, elementwise).items()]
    operators += [(make(torch, operator), (torch.randn(4, 8),)) for make in (mixing, reading, dispatching)]
    for op, args in operators:
        try:
            found[op.qualified_name] = repeats._assert_same_steps(OnAGpu(op, args), "float32", op, args)
        except Fault as fault:
            found[op.qualified_name] = str(fault)

    # No kernel writes what is compared, so this looks at how the results were made.
    compared: list[Any] = []
    norm, backward = (
        _DECLARED[f"cupyops::{name}"].eager.__globals__["repeats"] for name in ("layer_norm", "layer_norm_backward")
    )

    def compare(what: str, got: Any, right: Any, than: str) -> None:
        made = [{f.__name__ for key, f in steps.items() if key[0] == (5, 72)} for steps in (norm, backward)]
        compared.append([what, sorted(got) == sorted(right), made == [{"repeat"}, {"repeat"}]])

    repeats.assert_same_bits = compare
    args = (torch.randn(5, 72), torch.randn(72), torch.randn(72), [72], 1e-5, None)
    repeats._assert_repeated_bits(OnAGpu(_DECLARED["cupyops::layer_norm"], args))
    return {"steps": found, "compared": compared}
