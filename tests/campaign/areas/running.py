"""Operators in several threads, on several streams, and in CUDA graphs."""

import threading
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.support import alike

from .operators import DTYPES, Call, calls, on, tensor

__all__ = ["streams", "threads"]


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


def streams(data: st.DataObject, backend: str) -> None:
    """Calls on drawn streams, behind a busy GPU, and replayed from a graph, give the bits of the default stream."""
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
