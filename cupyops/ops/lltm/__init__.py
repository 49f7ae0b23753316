"""The LLTM, a recurrent cell: one step, and whole sequences."""
