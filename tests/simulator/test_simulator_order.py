"""Order of accesses in the simulator without barriers: by flags after fences, and by shuffles."""

from collections.abc import Iterator

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, LaunchError, Rows
from tests.simulator import test_simulator
from tests.simulator.test_simulator import CLUSTER, END, run

pytestmark = test_simulator.pytestmark


@pytest.fixture(autouse=True)
def _simulated(sanitize: bool) -> Iterator[None]:
    with cupyops.simulate(sanitize=sanitize):
        yield


FLAG = """
__shared__ float data[64];
__shared__ unsigned long long ready;
if (t == 0) ready = 0;
__syncthreads();
if (t >= 32) { data[t] = x[t]; FENCE atomicAdd(&ready, 1ull); }
else { while (WAIT < 32) {} y[t] = data[t + 32]; }
"""


@pytest.mark.parametrize("wait", ["atomicAdd(&ready, 0ull)", "*(volatile unsigned long long*)&ready"])
def test_a_flag_behind_a_fence_orders_accesses(wait: str, sanitize: bool) -> None:
    body = FLAG.replace("WAIT", wait)
    assert run(body.replace("FENCE", "__threadfence_block();"))[:32].tolist() == list(range(32, 64))
    if sanitize:
        with pytest.raises(
            LaunchError, match="a race in shared memory: reads element 32 of `data`, which has 64, which thread"
        ):
            run(body.replace("FENCE", ""))


def test_what_a_barrier_told_is_told_on_by_a_flag(sanitize: bool) -> None:
    text = CLUSTER.replace(
        "__cluster_barrier_arrive();\n    __cluster_barrier_wait();",
        """
    __shared__ unsigned flags;
    if (threadIdx.x == 0) flags = 0;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    part[threadIdx.x] += 0.5;
    __syncthreads();
    if (threadIdx.x < size) { __threadfence(); atomicAdd((unsigned*)__cluster_map_shared_rank(&flags, threadIdx.x), 1u); }
    if (threadIdx.x == 40) while (atomicAdd(&flags, 0u) < size) __nanosleep(10);
    BARRIER
    """,
    ).replace("BEFORE_END", END)

    def result(barrier: str) -> np.ndarray:
        kernel = Kernel(
            text.replace("BARRIER", barrier), "k", Rows("M", block=64), dtypes=("float64",), constants={"SIZE": 4}
        )
        y = np.zeros(8)
        kernel(y, 8, 8)
        return y

    assert result("__syncthreads();")[0] == sum(100 * c + 58.5 for c in range(4))
    if sanitize:
        with pytest.raises(LaunchError, match="a race in shared memory"):
            result("")


def test_a_shuffle_orders_what_was_read_and_nothing_that_was_written(sanitize: bool) -> None:
    """A value that a shuffle carries has been read before it; a value that was written may still be on its way."""
    body = "__shared__ float s[64]; s[t] = x[t]; __syncthreads(); float v = s[t ^ 1]; v = __shfl_sync(0xffffffff, v, t % 32); s[t] = v; y[t] = v;"
    assert run(body)[:2].tolist() == [1, 0]
    if sanitize:
        with pytest.raises(LaunchError, match="a race in shared memory: reads element"):
            run("__shared__ float s[64]; s[t] = x[t]; __shfl_sync(0xffffffff, t, 0); y[t] = s[t ^ 1];")
