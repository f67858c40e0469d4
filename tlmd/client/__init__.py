"""Everything that runs in the user's process: commands, terminal output, `tlmd tune`, reports.

In: a model, flags, a state directory. Out: the compiled model, its records, a summary, a report.
`connection` talks to the daemon over HTTP; `lifecycle` starts and finds it. `tune` runs one job
from the model to the files, `export` compiles the model with its best programs, and `doctor` checks
the machine. Nothing here imports `tlmd.daemon`.
"""
