"""Strassen's algorithm: large GEMMs with constant weights by fewer products.

In: the direct program of a task. Out: a program in parts of matrices (`strassen`), its sketches
(`strassen_sketches`), its matrices and weights (`declaration`).
"""
