"""Kernels written from formulas."""
