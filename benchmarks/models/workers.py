"""Measures cases in processes: all compile at the same time, and are timed one after the other on each GPU.

A compilation takes far longer than the timed steps, and most of the time on one core of the CPU. The parent process lets
each process prepare one case, waits for the last of them, and then times the cases in turn, so that no model compiles
while another is timed. Cases on different GPUs are timed at the same time.
"""

import gc
import importlib
import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

__all__ = ["Case", "Worker", "measured"]


@dataclass(frozen=True)
class Case:
    """One case of a model.

    Attributes:
        batch: samples of a step.
        mode: one of the modes of :mod:`.steps`.
        variants: the variants that take turns.
        rounds: turns of each variant.
    """

    batch: int
    mode: str
    variants: Sequence[str]
    rounds: int


def _work(pipe: Connection, name: str, device: str, zoo: str) -> None:
    """Prepares and times cases of a model until the pipe is closed. Replies with None, rows, or the text of an error."""
    import torch

    from .steps import prepared, rows, timed

    model = next(m for m in importlib.import_module(zoo).MODELS if m.name == name)
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    built: Any = None
    rounds = 0
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        found: Any = None
        try:
            if isinstance(asked, Case):
                built = prepared(model, asked.batch, asked.mode, asked.variants, where)
                rounds = asked.rounds
            else:
                found = rows(timed(built, rounds))
                built = None
        except Exception as error:
            # One model that cannot be compiled must not lose the rows of the others.
            traceback.print_exc()
            found, built = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", None
        if built is None:
            torch.compiler.reset()  # else CUDA graphs keep their memory
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()  # the other models of this GPU need memory
        pipe.send(found)


class Worker:
    """A process that measures cases of one model.

    Args:
        name: the model's name.
        device: the device of the process, such as "cuda:1".
        zoo: the name of the Python module whose ``MODELS`` has the model.
    """

    def __init__(self, name: str, device: str, zoo: str = "benchmarks.models.zoo") -> None:
        context = multiprocessing.get_context("spawn")
        self.name, self.device = name, device
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, name, device, zoo), daemon=True)
        self.process.start()
        theirs.close()

    def reply(self) -> Any:
        """The reply to the last request; the text of an error if the process has died."""
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            return f"the process ended with exit code {self.process.exitcode}"

    def close(self) -> None:
        """Ends the process, which frees its memory."""
        self.pipe.close()
        self.process.join()

    def ask(self, what: Any) -> None:
        if self.process.is_alive():
            self.pipe.send(what)


def measured(asked: Sequence[tuple[Worker, Case]]) -> Iterator[tuple[Worker, Case, dict[str, Any] | str]]:
    """Yields each process and its case with the rows by variant, or with the text of an error."""
    for worker, case in asked:
        worker.ask(case)
    ready = []
    for worker, case in asked:
        failed = worker.reply()
        if failed is None:
            ready.append((worker, case))
        else:
            yield worker, case, failed
    queues = {device: [r for r in ready if r[0].device == device] for device in {worker.device for worker, _ in ready}}
    timed: dict[str, tuple[Worker, Case]] = {}
    while queues or timed:
        for device in [d for d in queues if d not in timed]:
            timed[device] = queues[device].pop(0)
            timed[device][0].ask("time")
            if not queues[device]:
                del queues[device]
        answered = wait([worker.pipe for worker, _ in timed.values()])
        for device in [d for d, (worker, _) in timed.items() if worker.pipe in answered]:
            worker, case = timed.pop(device)
            yield worker, case, worker.reply()
