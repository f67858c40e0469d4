"""Learning: makes the next checkpoint from what was measured.

In: tasks, their records, a base checkpoint, the section ``train`` of the configuration. Out: a
checkpoint with a report, and held-out examples, on which `gate` decides whether it is published.
`demonstrations` chooses the records to train on; `task_datasets` encodes them; `finetune` trains
language model and cost model. TLM-base is made from a data set by `encode`, `model.pretrain` (which
needs no TVM) and `pretrain`.
"""
