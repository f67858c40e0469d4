"""Writing candidates for a task: TLM and local refinement propose, the ranker picks.

In: a task, what is known about it, a checkpoint. Out: distinct proposals worth measuring, each with
the version that wrote it, and those that TVM refused. Runs on cores that no slot owns; composes
`space`, `language` and `model`, which know nothing of each other.
"""
