"""The shipped operators, one file each."""
