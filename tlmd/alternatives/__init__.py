"""Alternatives: other implementations of a task's computation, which may be faster.

In: a task whose program computes directly what the model says. Out: tasks of the same group with
other programs (`group.alternatives_of`), how their weights are made from the direct program's
(`transforms`), and their sketches (`winograd_sketches`). The model needs the fastest of a group.
"""
