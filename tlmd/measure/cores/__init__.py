"""The cores of a slot: which ones time and which ones build, and who may use them when.

In: the layout of the machine. Out: a plan (`core_plan`), the lock of a slot (`slot_lock`),
processes that stand still while others are timed (`suspension`), and the background share
(`background`).
"""
