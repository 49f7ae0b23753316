"""Turns a ``.cu`` text into a binary: scans the text, assembles the final text, compiles it and caches the binary."""
