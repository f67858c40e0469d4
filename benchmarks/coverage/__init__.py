"""Coverage: which networks and operators tlmd accepts, and whose fault it is where it does not.

In: lists of networks of libraries (`networks_*`), operators of PyTorch. Out: a page and JSON files
in `data/`.
"""
