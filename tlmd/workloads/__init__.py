"""From a model to tasks: what a user brings becomes tensor programs to tune.

In: a model (ONNX file, exported PyTorch program, Python factory, zoo name) and a target.
Out: `Task`s with weights, the corpus the TLM trains on, and compiled executables with records in.
One lowering (`lowering.lower`) serves extraction and the final compile, or no record would match.
Import the submodules you need: most load TVM; `zoo` and `corpus` list names without torch.
"""
