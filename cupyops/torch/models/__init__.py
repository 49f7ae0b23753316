"""Models as a whole: :func:`.swap.optimize` has their modules call the shipped operators."""
