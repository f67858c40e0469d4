"""Programs of our own: other implementations of a task's computation, which may be faster.

In: the program of a task, which computes directly what the model says. Out: other programs
(`winograd`, `packed`, `strassen`), and how their weights are made from the direct program's
(`transforms`).
`winograd_tiles` arranges tiles; `groups` makes blocks of grouped convolutions; `words` are short
numbers (`bfloat16`, `int8`) that the CPU multiplies several at a time. `amx` has the intrinsics of
Intel's matrix unit (`amx_code` their code), `amx_packed` programs for it; of convolutions with
stride 1 `amx_grid`, with few channels `amx_lines`.
`attention` is the program of several operators of a graph together, `attention_short` makes those
in short numbers (`attention_amx` for the matrix unit). `sketches` finds the sketches of all of
them. `prefetch` adds to scheduled programs what fetches their weights in time.
`tlmd.lowering` makes tasks of them (`alternatives`, `passes.fuse_attention`).
"""
