"""Launches kernels: parses the declaration, checks the arguments, computes the grid and calls the driver."""
