"""Operators written as formulas: elementwise and by rows."""
