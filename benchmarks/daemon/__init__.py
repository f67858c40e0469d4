"""The daemon: whether pipeline, store and processes keep up with many slots, jobs and records.

In: real actors, or simulated ones (`simulated`). Out: rates, gaps, memory, and their JSON files in
`data/`.
"""
