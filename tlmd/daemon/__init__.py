"""The daemon: it accepts jobs over HTTP and tunes them until it is stopped.

In: jobs over HTTP. Out: records in the store, checkpoints, status, events, metrics. `service`
connects actors, store and pipeline. `job_manager` manages the jobs. `task_extraction` lowers each
model in a child process. The daemon's own process never loads TVM or torch.
"""
