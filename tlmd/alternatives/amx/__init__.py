"""Programs for the matrix unit of Intel CPUs (AMX), in bfloat16, bytes or parts of float32.

In: the direct program of a task. Out: programs (`amx_packed`; of convolutions with stride 1
`amx_grid`, with few channels `amx_lines`, of attention `amx_attention`), their sketches, their
weights (`declaration`), the intrinsics (`amx`) and their code (`amx_code`).
"""
