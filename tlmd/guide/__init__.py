"""The guide: pages for users, which `tlmd help` shows.

In: the settings, `JobRequest`, the HTTP interface, the Python interface. Out: Markdown pages. Most
are written by hand; `reference` makes ``settings``, ``http`` and ``python``, and `python -m
tlmd.guide` writes them here. A test keeps them equal to the code.
"""
