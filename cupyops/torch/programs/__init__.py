"""Operators whose kernels are generated from formulas: elementwise operators and operators on rows."""
