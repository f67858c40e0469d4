"""Learning: what was measured becomes the next checkpoint.

In: tasks and their records, a base checkpoint, a plan of how to train. Out: a checkpoint with a
report, and questions that were held out, by which the gate judges whether it may be published.
`demonstrations` loads neither torch nor TVM; `finetune` composes generator, space and model, and
`pretrain` makes TLM-base from a data set.
"""
