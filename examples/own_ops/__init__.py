"""Operators of one's own, each in one screen: programs for the common shapes of kernels, and texts for the others."""
