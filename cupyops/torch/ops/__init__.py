"""The shipped operators, one file each. :mod:`cupyops.ops.registry` lists them."""
