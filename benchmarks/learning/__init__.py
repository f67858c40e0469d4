"""Learning: what the language model and the cost model know, and what more records teach them.

In: checkpoints, data sets, and the bank of held-out tasks in `data/`. Out: tables of how well
candidates are ordered and written, on the bank and on the device.
"""
