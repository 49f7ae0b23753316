"""Kernels generated from formulas."""
