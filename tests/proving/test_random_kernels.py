"""Random kernels that are proved inside run in the simulator without a fault, for sizes small and odd."""

import random

import numpy
import pytest

import cupyops
from cupyops import Kernel, Threads
from cupyops.testing import prove_bounds

pytest.importorskip("z3")
pytest.importorskip("cupy")
pytestmark = pytest.mark.simulator


def random_kernel(rng: random.Random) -> tuple[Kernel, tuple[str, ...]]:
    """Returns a kernel on arrays of (M, N) and (n) elements with a random guard and a random index."""
    kind = rng.choice(["int", "unsigned", "long long"])
    index = f"const {kind} i = blockIdx.x * {rng.choice(['blockDim.x', '32', '64'])} + threadIdx.x;"
    guard = rng.choice(
        [
            "i < n",
            "i <= n",
            "i + 1 < n",
            "i < n && i >= 2",
            "2 * i < n",
            "i * 2 + 1 < n",
            "i < M * N",
            "i < N",
            "i != n",
            "n > 3 && i < n",
        ]
    )
    where = rng.choice(
        [
            "i",
            "i + 1",
            "i - 1",
            "n - 1 - i",
            "2 * i",
            "i / 2",
            "i % n",
            "i & 15",
            "i >> 1",
            "min((long long)i + 3, n - 1LL)",
            "i ^ 1",
            "(i | 1)",
            "i * N / (N + 1)",
        ]
    )
    target = rng.choice(["x", "t", "m"])
    store = {
        "x": f"x[{where}] = 1;",
        "t": f"t[({where}) {rng.choice(['% 64', '& 63', '/ 2'])}] = 1;",
        "m": "m[(i / N) * N + i % N] = 1;",
    }[target]
    if rng.random() < 0.3:
        store = f"for ({kind} j = 0; j < {rng.choice(['2', '3', 'N'])}; ++j) x[i {rng.choice(['* 2 + j', '+ j', '- j'])}] = j;"
    if rng.random() < 0.3:
        store = f"if (i {rng.choice(['> 1', '+ 4 < n', '< N', '< 7'])}) {{ {store} }}"
    text = (
        'extern "C" __global__ void k(float* x, /* (n) */ float* m, /* (M, N) */ int n, int M, int N) {\n'
        f"__shared__ float t[64]; {index}\nif ({guard}) {{ {store} }}\nif (n < 0) x[0] = t[0];\n}}"
    )
    return Kernel(text, "k", Threads("n", block=64)), ("N >= 1", "n <= 1000000", "M <= 1000", "N <= 1000")


@pytest.mark.parametrize(
    ("first", "count"), [(0, 6), *(pytest.param(i, 30, marks=pytest.mark.thorough) for i in range(100, 1000, 100))]
)
def test_a_random_kernel_that_is_proved_runs_without_a_fault(first: int, count: int) -> None:
    answers = []
    for seed in range(first, first + count):
        rng = random.Random(seed)
        kernel, assume = random_kernel(rng)
        (proof,) = prove_bounds(kernel, assume=assume, seconds=20)
        answers.append(proof.answer)
        if proof.answer != "inside":
            continue
        for n in (1, 2, 3, 4, 5, 31, 63, 64, 65, 130, rng.randrange(1, 400)):
            rows, columns = rng.choice([(0, 1), (1, 1), (3, 5), (rng.randrange(1, 20), rng.randrange(1, 20))])
            x, m = numpy.zeros(n, numpy.float32), numpy.zeros((rows, columns), numpy.float32)
            with cupyops.simulate():
                kernel(x, m, n, rows, columns)  # raises LaunchError for an access out of bounds
    assert "inside" in answers
