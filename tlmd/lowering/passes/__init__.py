"""Rewrites of a model's graph before its operators become loops, one file for each.

In: a Relax module. Out: an equal Relax module with fewer or better operators. `lowering.lower` runs
them in order. `rewrites` and `reshapes` have small ones and what the others share.
"""
