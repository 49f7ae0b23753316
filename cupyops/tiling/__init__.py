"""Configs of kernels: how a kernel's work is distributed among threads and blocks."""
