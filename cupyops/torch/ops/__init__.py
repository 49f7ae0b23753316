"""The shipped operators, one file each, in the order of :mod:`cupyops.ops.registry`."""
