"""With native(), autocast, streams, CUDA graphs, threads and several GPUs behave as without it."""

import threading

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops.launch.recording import recorded
from cupyops.torch import native
from tests.support import HANG

from .overriding import PLACES, inside, names
from .test_native_roads import both, operands


@pytest.mark.parametrize("place", PLACES)
def test_autocast_casts_as_it_does_without(place: str) -> None:
    def cast() -> list[Tensor]:
        x, weight, bias = (t.to(torch.float32).requires_grad_() for t in operands(place))
        with torch.autocast(place, torch.bfloat16):
            y = both(x @ torch.eye(8, device=place), weight, bias)
        return [y, *torch.autograd.grad(y.float().sum(), [x, weight, bias])]

    wanted = cast()
    with inside(place):
        found = cast()
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=0.05, rtol=0.05)


@pytest.mark.gpu
def test_side_streams_keep_their_order() -> None:
    x, weight, bias = operands("cuda")

    def step() -> list[Tensor]:
        a = x.clone().requires_grad_()
        y = both(a, weight, bias)
        return [y, *torch.autograd.grad(y.sin().sum(), [a])]

    wanted = step()
    stream = torch.cuda.Stream()
    with native():
        step()  # compiles the kernels
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)  # a kernel on the default stream would run after the comparison
        with torch.cuda.stream(stream), recorded() as launches:
            found = step()
            on_host = [t.cpu() for t in found]
    assert launches
    for a, b in zip(on_host, wanted, strict=True):
        torch.testing.assert_close(a, b.cpu(), atol=1e-12, rtol=1e-12)


@pytest.mark.gpu
def test_a_cuda_graph_replays_with_new_data() -> None:
    x, weight, bias = (t.requires_grad_() for t in operands("cuda"))

    def step() -> list[Tensor]:
        y = both(x, weight, bias)
        return [y, *torch.autograd.grad(y.sin().sum(), [x, weight, bias])]

    with native():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
    with torch.no_grad():
        x.copy_(x.flip(0))
    graph.replay()
    x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))  # the captured graph keeps its leaves
    for a, b in zip(found, step(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.gpu
def test_threads_on_a_gpu_give_the_same_bits() -> None:
    x, weight, bias = operands("cuda")
    faults: list[BaseException] = []
    together = threading.Barrier(4)

    def work() -> None:
        try:
            together.wait(HANG)
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    a = x.clone().requires_grad_()
                    y = both(a, weight, bias)
                    (grad,) = torch.autograd.grad(y.sum(), [a])
                    assert torch.equal(y, wanted)
                    assert torch.equal(grad, expected)
        except BaseException as error:
            faults.append(error)

    with native():
        a = x.clone().requires_grad_()
        wanted = both(a, weight, bias)
        (expected,) = torch.autograd.grad(wanted.sum(), [a])
        torch.cuda.synchronize()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults


@pytest.mark.multi_gpu
@pytest.mark.gpu
def test_the_second_gpu_computes_while_the_first_is_current() -> None:
    x, weight, bias = (t.to("cuda:1").requires_grad_() for t in operands("cuda"))
    wanted = both(x, weight, bias)
    with native(), recorded() as launches:
        y = both(x, weight, bias)
        y.sum().backward()
    assert names(launches)
    assert y.device.index == 1
    torch.testing.assert_close(y, wanted)


@pytest.mark.gpu
def test_cpu_tensors_beside_a_gpu_stay_pytorchs() -> None:
    with native(), cupyops.simulate(), recorded() as launches:
        both(*operands("cpu"))
    assert not launches
