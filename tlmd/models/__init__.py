"""Step 1: a user's model becomes one loaded form, whatever kind of model it is.

In: an ONNX file, an exported PyTorch program, a directory of transformers, a Python factory, or a
name. Out: a `SourceModel` (`sources`): a Relax module with parameters, and the structure of inputs
and outputs (`structure`). `frontends` chooses the loader of one of the kinds: `pytorch`, `onnx`,
`zoo`.
"""
