"""Build, run, time and check candidates on the real device.

In: tasks with `MeasureInput`s. Out: one `Outcome` each, failures included. A server process that
has TVM loaded forks one child per candidate: a candidate that crashes costs only itself.
`measurer.Measurer` starts the server and is what others import; it, `cores` and `peak` load no TVM.
`timing`, `noise` and `interleaving` are pure Python: they decide how often a program runs, and what
its true time is. The README of `tlmd/` shows how one candidate travels.
"""
