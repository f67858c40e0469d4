"""The TLM: the language model and the cost model; sampling, training and checkpoints of them.

In: prompts, sketches, the legal values of each decision (a callback lists legal locations), and
demonstrations for training. Out: legal decisions, scores, and checkpoints. This folder uses torch
and xgboost, but not TVM.
"""
