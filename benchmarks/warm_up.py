"""Compile in several processes what one process would compile case by case: most of the time of a run over many shapes.

Inductor and Triton keep what they have compiled on disk, where the process that measures finds it.
"""

import contextlib
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from . import rows
from .cases import Case, Choice, host_cases
from .peers import Unavailable

__all__ = ["compile_each", "run"]

COMPILED = ("ours", "compile", "triton", "liger", "quack")


def run(
    choice: Choice,
    ops: Sequence[str],
    kinds: Sequence[str],
    names: Sequence[str],
    jobs: int,
    *,
    echo: Callable[[str], object] = print,
) -> None:
    """Compile these implementations of the chosen cases; build the extension, if it is among them, beside that."""
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    # The processes are the parallelism: Inductor's own would start as many again in each.
    before = os.environ.get("TORCHINDUCTOR_COMPILE_THREADS")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    try:
        workers = [
            context.Process(target=_work, args=(choice, ops, kinds, names, part, jobs), daemon=True)
            for part in range(jobs)
        ]
        for worker in workers:
            worker.start()
    finally:
        if before is None:
            del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]
        else:
            os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = before
    with ThreadPoolExecutor(1) as pool:
        if "extension" in names:
            pool.submit(_build_extension)
        for worker in workers:
            worker.join()
    lost = [worker.exitcode for worker in workers if worker.exitcode]
    echo(
        f"warmed up in {time.perf_counter() - began:.0f} s"
        + (f"; processes that ended with {lost} leave their share to be compiled later" if lost else "")
    )


def _build_extension() -> None:
    from .peers.extension import built

    with contextlib.suppress(Unavailable):  # each case that needs it reports this
        built()


def _work(
    choice: Choice, ops: Sequence[str], kinds: Sequence[str], names: Sequence[str], part: int, parts: int
) -> None:
    import torch._inductor.config as inductor

    # Which of several configurations is fastest is found out where nothing else runs.
    inductor.autotune_local_cache = False
    compile_each(share(choice, ops, kinds, part, parts), names, torch.device("cuda", torch.cuda.current_device()))


def share(choice: Choice, ops: Sequence[str], kinds: Sequence[str], part: int, parts: int) -> Iterator[Case]:
    """Every parts-th of the chosen cases, shuffled: forward and backward, which takes longer, alternate."""
    cases: list[Case] = []
    if choice.of_rows:
        for n in choice.row_lengths:
            cases += rows.cases(n, max(choice.sizes), dtypes=choice.dtypes, directions=choice.directions, ops=ops)
        ops = ()
    for op in ops:
        cases += host_cases(op) if "host" in kinds else ()
        cases += choice.cases(op) if "device" in kinds else ()
    random.Random(0).shuffle(cases)
    return iter(cases[part::parts])


def compile_each(cases: Iterable[Case], names: Sequence[str], device: torch.device) -> None:
    """Call every compiled implementation once. A failure here happens again in the measurement, which records it."""
    for case in cases:
        for name in COMPILED:
            if name not in names or name not in case.implementations:
                continue
            try:
                inputs = [torch.zeros(x.shape, dtype=x.dtype, device=device) for x in case.operands]
                case.bind(case.implementations[name](), inputs)()
            except Exception:
                continue
            finally:
                inputs = []
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
