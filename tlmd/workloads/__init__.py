"""From a user's model to tasks, and from records to the compiled model.

In: a model (ONNX file, exported PyTorch program, Python factory, zoo name) and a target.
Out: `Task`s with weights, the training corpus of the TLM, and compiled executables that use the
records. Extraction and the final compile use the same lowering (`lowering.lower`); otherwise no
record would match. Import the submodules you need: most load TVM; `zoo` and `corpus` do not.
"""
