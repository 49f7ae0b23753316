"""Watches the sizes of a program's calls, so that ``native()`` takes no time of calls on few elements.

PyTorch's dispatcher enters Python for each call of an operator that has a kernel in Python, even if the kernel then calls
PyTorch's own. A call on few elements waits for the host (:mod:`.small`), so it loses this time. While all calls of a
program are on few elements, no kernel is registered, and PyTorch's dispatch tables are what they were. A function in the
place of ``torch.layer_norm``, which ``F.layer_norm`` calls, tells the sizes then: :class:`Sizes` registers the kernels at the
first large tensor, before the call that has the tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cupyops.torch.compiled.frames import inlined_only

from .small import is_traced

__all__ = ["CALLS", "Sizes", "watch"]

# Norms on few elements in a row after which the kernels are removed. In ViT-B and BERT with a batch of one, on a Hopper
# GPU, a norm, a GELU and their backwards take 40 to 110 us less of the host's time without kernels in Python. To remove
# the kernels and to register them again takes 600 us, a small part of the time of the calls that the decision needs.
CALLS = 256

function_modes = torch._C._len_torch_function_stack


class Sizes:
    """Decides from the sizes of a program's calls whether the kernels of a type of device are registered.

    A decision stays for later blocks. The kernels compute no call on few elements, so the decision changes no result. A
    program that never calls ``F.layer_norm`` keeps the kernels registered.

    Args:
        device: the type of device.
        least: the least number of elements of a call that the kernels compute.
        change: registers or removes the kernels, as :attr:`wanted` says.

    Attributes:
        wanted: whether the kernels are to be registered.
    """

    def __init__(self, device: str, least: int, change: Callable[[], None]) -> None:
        self.device, self.least, self.change = device, least, change
        self.wanted = True
        self._few = 0

    def is_few(self, x: Tensor) -> bool:
        """Returns whether PyTorch's kernel computes a call; called by the kernels."""
        if x.numel() < self.least:
            return True
        self._few = 0  # of another operator, perhaps, whose calls torch.layer_norm does not see
        return False

    def see(self, x: Any) -> None:
        """Takes note of a call of ``torch.layer_norm``, before the call."""
        if type(x) is not Tensor or function_modes():  # a mode would see the questions
            return
        if x.numel() < self.least:
            if self.wanted and x.device.type == self.device:
                self._few += 1
                if self._few >= CALLS:
                    self._few, self.wanted = 0, False
                    self.change()
        elif x.device.type == self.device:
            self._few = 0
            if not self.wanted:
                self.wanted = True
                self.change()


_own = torch.layer_norm
_watching: list[Callable[[Any], None]] = []


@inlined_only
def _layer_norm(*args: Any, **kwargs: Any) -> Any:
    if args and not is_traced():
        for see in _watching:
            see(args[0])
    return _own(*args, **kwargs)


_layer_norm.__module__, _layer_norm.__name__, _layer_norm.__qualname__ = "torch", "layer_norm", "layer_norm"


def watch(see: Callable[[Any], None]) -> Callable[[], None]:
    """Calls ``see`` with the operand of each call of ``torch.layer_norm``, and returns the function that ends this.

    Dynamo puts a call of ``F.layer_norm`` into its graphs and does not look inside, so no guard fails when a block begins
    or ends. Other code in ``F.layer_norm`` would fail a guard. If another library has replaced ``torch.layer_norm``, its
    function stays, and ``see`` is not called.
    """
    if torch.layer_norm is _own:
        # torch.jit compiles F.layer_norm from its source, and finds the builtin operator by the identity of the function.
        torch.jit._builtins._register_builtin(_layer_norm, "aten::layer_norm")
        torch.layer_norm = _layer_norm
    _watching.append(see)

    def end() -> None:
        _watching.remove(see)
        if not _watching and torch.layer_norm is _layer_norm:
            torch.layer_norm = _own

    return end
