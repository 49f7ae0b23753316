"""Texts that use CUDA's libraries, and their expected values by NumPy."""
