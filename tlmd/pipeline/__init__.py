"""The loop that measures, trains and generates at the same time: no Ray, no TVM, no torch.

In: jobs with their tasks. Out: records, and checkpoints in force. `loop.Pipeline` has three parts,
`generating` (with `task_scheduler`), `measuring` and `learning`, which share one `state`. It sees
its workers through the protocols of `orders`, so tests run it on simulated workers and a simulated
clock. `jobs` holds what is known of each task, `convergence` when a campaign ends.
"""
