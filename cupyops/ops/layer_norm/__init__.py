"""Layer normalisation on arrays of any library."""
