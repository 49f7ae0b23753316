"""The program that two processes of torchrun run for test_example_parallel.py: ``torchrun --max-restarts 1 -m
tests.examples.ranks DIR``.

The first start runs each way of --parallel, then begins a run in which a rank is killed. The second start, torchrun's
own, goes on with that run, and then with a run that one process began.
"""

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

# lightning_fabric asks torchmetrics for its version, whose import brings SciPy and matplotlib, in each of four processes.
sys.modules["torchmetrics"] = None  # type: ignore[assignment]

from examples import char_gpt, lenet5, run  # noqa: E402
from examples.command import processes  # noqa: E402
from tests.examples.example_support import TEST_SET, TRAIN_SET, gpt_arguments, lenet5_arguments  # noqa: E402

KILLED_AT = 6  # after the checkpoint of step 4


def gpt(out: Path, way: str, *more: object) -> None:
    assert char_gpt.main(gpt_arguments(out, "--parallel", way, *more)) == 0


def killed(folder: Path) -> None:
    """Begin a run in which the second rank is killed; a restart goes on after the kill."""
    step = char_gpt.Trainer.step

    def stepping(trainer: Any, number: int) -> Tensor:
        if number == KILLED_AT and processes().rank == 1 and not processes().restarts:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(trainer, number)

    char_gpt.Trainer.step = stepping  # type: ignore[method-assign]
    gpt(folder / "killed", "ddp")


def main(folder: Path) -> None:
    run.picture = lenet5.picture = lambda *_, **__: None  # type: ignore[attr-defined]
    lenet5.load_digits = lambda: (TRAIN_SET, TEST_SET)  # type: ignore[attr-defined]
    if not processes().restarts:
        for way in ("ddp", "fsdp", "tp"):
            gpt(folder / way, way)
        assert lenet5.main(lenet5_arguments(folder / "lenet5", "--batch-size", 31, "--parallel", "ddp")) == 0
    killed(folder)
    gpt(folder / "one_to_two", "fsdp", "--resume")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # The interpreter's end is left out. On a loaded machine, a thread of gloo may ask for the GIL during it. This aborts
    # the process, and torchrun starts all ranks again.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
