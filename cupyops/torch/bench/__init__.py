"""The benchmark of an operator and of other implementations: `bench_op` runs it."""
