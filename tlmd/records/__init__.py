"""Storage of everything that was measured.

In: tasks, records, baselines, jobs, and the daemon's plans. Out: the same, even after a crash.
`store.RecordStore` is the main storage (SQLite, one writer; a write that returned is on disk).
`metaschedule` reads and writes MetaSchedule's JSON databases, `dataset` reads and writes data set
files.
"""
