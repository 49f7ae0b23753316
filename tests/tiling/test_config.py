"""Configs: their macros, and the kernels that are compiled with them."""

from dataclasses import dataclass

from cupyops import Rows
from cupyops.tiling.config import CLUSTERS_SINCE, Config

TEXT = """
#ifndef EACH
#define EACH 1
#endif
extern "C" __global__ void copy(const scalar_t* x, scalar_t* y, long long M) {
    extern __shared__ scalar_t kept[];
    for (int i = 0; i < EACH * WIDTH; ++i) y[blockIdx.x + i] = x[blockIdx.x + i];
}
"""


@dataclass(frozen=True)
class Cut(Config):
    launch_only = frozenset({"block", "cluster", "shared"})

    block: int
    width: int
    each: int = 1
    cluster: int = 1
    shared: int = 0

    @property
    def geometry(self) -> Rows:
        return Rows("M", self.block, blocks_per_row=self.cluster)


def test_fields_are_macros_where_they_differ_from_their_defaults() -> None:
    assert Cut(64, 3).constants == {"WIDTH": 3}
    assert Cut(64, 3, 2, shared=128).constants == {"WIDTH": 3, "EACH": 2}


def test_a_plan_makes_the_kernel() -> None:
    kernel = Cut(64, 3, cluster=2, shared=128).kernel(TEXT, "copy", {"scalar_t": "float32"}, constants={"MORE": 1})
    assert kernel.constants == {"BLOCK_THREADS": 64, "CLUSTER": 2, "WIDTH": 3, "MORE": 1}
    assert (kernel.hardware.shared, kernel.hardware.since) == (128, CLUSTERS_SINCE)
    assert list(kernel.type_choices()) == [{"scalar_t": "float32"}]
    plain = Cut(64, 3).kernel(TEXT, "copy", dtypes=("float32", "float64"), since=70)
    assert (plain.hardware.since, plain.hardware.shared, len(list(plain.type_choices()))) == (70, 0, 2)
