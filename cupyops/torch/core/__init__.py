"""The class Operator, which registers a Python function that launches kernels as a PyTorch operator."""
