"""Layer normalisation."""
