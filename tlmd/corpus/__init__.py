"""The tasks that the TLM is trained on: networks, and synthetic operators.

In: a name of a corpus and a target. Out: tasks, without those of the held-out networks. `corpus`
names the networks; `synthetic` draws single operators from `synthetic_operators`.
"""
