"""What was measured, kept for good.

In: tasks, records, baselines, plans and states of the daemon. Out: the same, after any crash.
`store.RecordStore` is the truth (SQLite, one writer, acknowledged = committed). The demonstrations
to train on are chosen from it; MetaSchedule's JSON database is read and written in `database`.
"""
