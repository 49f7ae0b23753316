"""Texts that use CUDA's libraries, and what NumPy says of them."""
