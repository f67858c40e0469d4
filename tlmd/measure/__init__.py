"""Build, run, time and check candidates on the real device.

In: jobs (a task, a trace, the incumbent's time). Out: one `Outcome` per job, failures included.
A server process that has TVM loaded forks one child per candidate: whatever a candidate does costs
that candidate only. `client.Measurer`, `cores` and `peak` load no TVM and are what others import;
everything else here runs in the server or its children. `timing`, `noise` and `finals` decide how
often to run and what the times mean, in pure Python.
"""
