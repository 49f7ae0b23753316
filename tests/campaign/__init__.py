"""A campaign: random trials of the whole library for a given time, with counts of trials and failures.

The suite asks named questions. A campaign draws its cases: declarations, shapes, strides, dtypes, ways to
differentiate, threads, streams, forks, kills and damaged files. It needs hypothesis, which shrinks failing cases.
"""
