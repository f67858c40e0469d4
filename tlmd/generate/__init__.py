"""Writing candidates for a task, in four steps: propose, apply and dedupe, extract features, pick.

In: a task, its records, a checkpoint. Out: distinct proposals worth measuring, each with the
version that wrote it, and records of what TVM refused. `propose` asks the TLM, `refine` (small
changes of the best programs) and chance; `apply` lets TVM apply each candidate; `pick` asks the
cost model. `generator` puts them together. It runs on cores that belong to no slot.
"""
