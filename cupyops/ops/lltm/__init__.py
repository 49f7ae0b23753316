"""The LLTM, a recurrent cell, on arrays of any library: one step, and whole sequences."""
