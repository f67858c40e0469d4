"""GEMMs and convolutions as one GEMM whose weights lie as the kernel reads them.

In: the direct program of a task. Out: a program (`packed`) in float32 or in words, its sketches
(`packed_sketches`), its weights and what else tlmd knows of it (`declaration`).
"""
