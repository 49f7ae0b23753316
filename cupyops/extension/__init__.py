"""Reads the file of a PyTorch C++/CUDA extension: the device half for NVRTC, and the host half as Python."""
