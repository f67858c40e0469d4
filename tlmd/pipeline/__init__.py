"""The loop that measures, trains and generates at once: no Ray, no TVM, no torch.

In: jobs with their tasks. Out: records, and checkpoints in force. `loop.Pipeline` composes planning
(`allocation`, `generating`), `measuring` and `learning` on one `board`; it sees its workers through
the protocols of `orders`, so that the tests run it on simulated ones under a simulated clock.
"""
