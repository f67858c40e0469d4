"""The tensor language: a closed vocabulary, the prompt, the sentence and its grammar.

In: a `Computation`, a `TargetInfo` and `Sketch`es with their open decisions. Out: token ids for the
language model, masks that allow only legal tokens, and `Candidate`s decoded from tokens. This
folder needs Python and numpy only; it loads neither TVM nor torch.
"""
