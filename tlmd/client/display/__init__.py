"""The terminal: tables, live lines and progress, and where the output of libraries goes.

In: documents of the daemon, and results. Out: text. Nothing here changes a job.
"""
