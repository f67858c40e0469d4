"""Learning: makes the next checkpoint from the measured records.

In: tasks, their records, a base checkpoint, the section ``train`` of the configuration. Out: a
checkpoint with a report, and held-out examples, on which `gate` decides whether it is published.
`demonstrations` chooses the records to train on; `task_datasets` encodes them; `finetune` trains
language model and cost model. TLM-base is made from data sets: `make_base` fits the cost model,
`encode_records` and `distill` make demonstrations from records and from the cost model,
`tlm.pretrain` (which needs no TVM) trains the language model on them.
"""
