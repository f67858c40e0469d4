"""A model that TVM cannot compile as a whole: it compiles parts, the framework runs the rest.

In: a loaded model. `graph` is what the kinds of models have in common, `torch_graph` and
`onnx_graph` are the two kinds, `levels` finds which operators form a part. Out: a `Flow`, the parts
in the order in which they run. Those of the framework are programs that can be saved and loaded
(`torch_program`, `onnx_program`, `original`).
"""
