"""The design space of a task: its open decisions, and how TVM applies the decisions.

In: a `Task` (TensorIR as JSON) and its target. Out: a structural description for the prompt,
`Sketch`es with open decisions, the legal values of each, and scheduled modules for candidates. If
TVM applies other decisions than those of the candidate, the candidate is refused. Import the
submodules you need; each of them loads TVM.
"""
