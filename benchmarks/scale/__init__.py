"""Training on several GPUs: ``python -m benchmarks --ops scale``, and the collectives of many ranks, counted without them."""
