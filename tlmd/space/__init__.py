"""The design space of a task: what may be decided, and what a decision means to TVM.

In: a `Task` (TensorIR as JSON) and its target. Out: a structural description for the prompt,
`Sketch`es with open decisions, the legal values of each, and scheduled modules for candidates.
Nothing is repaired silently: what was decided is what TVM applied, or the candidate is refused.
Import the submodules you need; each of them loads TVM.
"""
