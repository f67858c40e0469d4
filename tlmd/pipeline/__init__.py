"""What is measured next, and when to stop: no Ray, no TVM, no torch.

In: tasks and records. Out: batches for the slots. The loops talk to generator, measurer and store
through the protocols of `tlmd.pipeline.tuning`, so they run against simulated ones in the tests.
"""
