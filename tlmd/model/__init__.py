"""The TLM: language model and ranker, how they are sampled, trained and kept on disk.

In: prompts, sketches and the legal values of each decision (asked of the space through a callback);
demonstrations to train on. Out: decisions that are legal by construction, scores, and checkpoints.
torch, transformers and xgboost live here; TVM does not.
"""
