"""The tensor language: a closed vocabulary, the prompt, the sentence and its grammar.

In: a `Computation`, a `TargetInfo` and `Sketch`es (what may be decided). Out: token ids for the
language model, the masks that keep it inside what is legal, and `Candidate`s read back exactly.
Python and numpy only; TVM and torch are not loaded here.
"""
