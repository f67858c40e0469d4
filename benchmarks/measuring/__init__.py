"""Measuring: how fast candidates are measured, and what their times are worth.

In: the tasks of `common.setting`. Out: throughput, noise, prediction of whole models, and shares of
the machine's limits, with their JSON files in `data/`.
"""
