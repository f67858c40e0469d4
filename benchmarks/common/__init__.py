"""Code that several benchmarks use: reports, intervals, pinning, tasks, peers, measuring.

In: figures of one benchmark. Out: the printed table with machine and commit, and its JSON file.
"""
