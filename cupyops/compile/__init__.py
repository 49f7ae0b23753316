"""From a ``.cu`` text to a binary: reading, assembling, compiling, keeping."""
