"""The commands of `tlmd`: their options, and the functions that carry them out.

In: parsed arguments. Out: an exit code, and lines on the terminal. Each command imports heavy
packages only when it runs.
"""
