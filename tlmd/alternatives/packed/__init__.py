"""GEMMs and convolutions as one GEMM whose weights lie as the kernel reads them.

In: the direct program of a task. Out: a program with packed weights (`packed`), in float32 or in
words, and its sketches (`packed_sketches`).
"""
