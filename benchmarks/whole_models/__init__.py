"""Whole models: tlmd beside what people deploy instead, and what alternatives buy.

In: names of models. Out: tables of times, and their JSON files in `data/`. `end_to_end` is the main
comparison; `comparison` makes the page and the README's tables of its rows.
"""
