"""PyTorch models on this project's kernels: ATen operators overridden, modules exchanged."""
