"""Writing candidates for a task: propose, search, apply and dedupe, extract features, pick.

In: a task, its records, a checkpoint. Out: distinct proposals worth measuring, each with the
version that wrote it, and records of what TVM refused. `propose` asks the TLM, `refine` (small
changes of the best programs) and chance; `search` ranks the decisions of hundreds and improves
them; `apply` lets TVM apply the best; `pick` asks the cost model about whole programs. `generator`
puts them together. It runs on cores that belong to no slot.
"""
