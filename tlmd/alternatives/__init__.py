"""Alternatives: other implementations of a task's computation, which may be faster.

In: the program of a task, which computes directly what the model says. Out: other programs
(`winograd`, `packed`), how their weights are made from the direct program's (`transforms`), and
sketches where TVM's rules make none (`winograd_sketches`). `tlmd.workloads.alternatives` makes
tasks of them.
"""
