"""Operators in several threads, on several streams, and in CUDA graphs."""

import sys
import threading
import time
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import cupyops
from tests.support import alike

from .operators import DTYPES, Call, calls, on, tensor

__all__ = ["lanes", "streams", "threads"]


def _gradients(drawn: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The result and all gradients of a call."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = drawn.ours(*leaves)
    return [y.detach(), *torch.autograd.grad(y.sum(), leaves)]


def _work(data: st.DataObject, backend: str, device: str, count: int) -> list[tuple[Call, list[Tensor]]]:
    found = []
    for _ in range(count):
        drawn, dtype = data.draw(calls(backend)), data.draw(st.sampled_from(DTYPES))
        found.append((drawn, [tensor(data, shape, dtype, device) for shape in drawn.shapes]))
    return found


def threads(data: st.DataObject, backend: str) -> None:
    """Threads that begin together get the bits that the same calls give one after the other."""
    with on(backend) as device:
        work = _work(data, backend, device, data.draw(st.integers(2, 5)))
        rounds = data.draw(st.integers(1, 4))
        right = [_gradients(*w) for w in work]
        together, failures = threading.Barrier(len(work)), []

        def run(i: int) -> None:
            try:
                for _ in range(rounds):
                    together.wait()
                    for got, wanted in zip(_gradients(*work[i]), right[i], strict=True):
                        assert alike(got, wanted), f"{work[i][0].name} in one of {len(work)} threads"
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                failures.append(error)
                together.abort()

        runners = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        if failures:
            raise failures[0]


def lanes(data: st.DataObject, backend: str) -> None:
    """A thread that enters and leaves simulation does not make the calls of another thread fail, or wrong."""
    with on("reference") as device:
        work = _work(data, backend, device, 2)
        right = [_gradients(*w) for w in work]
    with cupyops.simulate():
        kernels = [_gradients(*w) for w in work]
    rounds, failures = data.draw(st.integers(100, 300)), list[BaseException]()
    stop = threading.Event()

    def check(i: int) -> None:
        for got, wanted, simulated in zip(_gradients(*work[i]), right[i], kernels[i], strict=True):
            scale = float(wanted.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if wanted.numel() else 0.0
            # In 16 bits, the sum of all elements of a gradient may be rounded at every step.
            off = 64 * torch.finfo(wanted.dtype).eps * max(scale, 1.0)
            # Where the terms of a gradient cancel, as in rows of one element, what is left are the roundings of each lane.
            apart = (simulated.double() - wanted.double()).abs().nan_to_num(0.0, 0.0, 0.0)
            off += 4 * float(apart.max()) if apart.numel() else 0.0
            assert torch.allclose(got, wanted, rtol=0, atol=off, equal_nan=True), f"{work[i][0].name}, of thread {i}"

    def simulating() -> None:
        while not stop.is_set():
            with cupyops.simulate():
                check(0)
            time.sleep(0)

    def calling() -> None:
        for _ in range(rounds):
            check(1)

    def caught(function: Any) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        other = threading.Thread(target=caught, args=(simulating,))
        other.start()
        caught(calling)
        stop.set()
        other.join()
    finally:
        stop.set()
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]


def streams(data: st.DataObject, backend: str) -> None:
    """Calls on drawn streams, after a busy GPU, and replayed from a graph, give the bits of the default stream."""
    with on(backend) as device:
        work = _work(data, backend, device, data.draw(st.integers(1, 4)))
        right = [_gradients(*w) for w in work]
        torch.cuda.synchronize()
        for (drawn, inputs), wanted in zip(work, right, strict=True):
            stream: Any = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                if data.draw(st.booleans()):
                    torch.cuda._sleep(data.draw(st.integers(1000, 2_000_000)))
                found = _gradients(drawn, inputs)
                if data.draw(st.booleans()):
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=stream):
                        found = _gradients(drawn, inputs)
                    graph.replay()
            torch.cuda.current_stream().wait_stream(stream)
            for got, w in zip(found, wanted, strict=True):
                assert alike(got, w), f"{drawn.name} on a side stream"
            torch.cuda.synchronize()
