"""Operators of PyTorch that TVM lacks, written in others that it has.

In: calls of such operators. Out: decompositions for `normalise`. `special` has functions of single
elements, `products` has products and distances, `resizing` images, `scattering` searches and bags.
"""
