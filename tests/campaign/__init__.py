"""A campaign: random trials of the whole library for as long as it is given, with a count of what was tried and held.

The suite asks named questions. A campaign draws the questions: declarations, shapes, strides, dtypes, roads to
derivatives, threads, streams, forks, kills and damaged files. It needs hypothesis, which shrinks what fails.
"""
