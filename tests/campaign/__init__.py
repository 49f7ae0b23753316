"""A campaign: random trials of the whole library for a given time, with counts of trials and failures.

The tests have fixed cases. A campaign draws its cases at random: declarations, shapes, strides, dtypes, ways to
differentiate, threads, streams, forks, kills and damaged files. It needs hypothesis, which shrinks failing cases.
"""
