"""Linear layers x·Wᵀ + b, alone or followed by GELU, on arrays of any library."""
