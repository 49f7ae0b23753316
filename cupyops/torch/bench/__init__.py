"""The benchmark of an operator and of other implementations: `bench_op` runs it."""

from cupyops.deprecated import moved_names

__getattr__ = moved_names(__name__, "cupyops.torch.bench.run")
