"""PyTorch models on this project's kernels: ATen's operators overridden, modules exchanged."""
