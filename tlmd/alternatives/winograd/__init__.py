"""Winograd's minimal filtering: 3 x 3 convolutions of stride 1 with fewer products.

In: the direct program of a task. Out: a program for tiles of two or four outputs (`winograd`), how
its tiles lie (`winograd_tiles`), its sketches (`winograd_sketches`), its matrices and weights
(`declaration`).
"""
