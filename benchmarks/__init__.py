"""What tlmd can do, measured on the machine in front of you.

Each module is a program, ``python -m benchmarks.NAME [--json FILE]``, that pins itself, prints the
machine, the commit and a table, and writes its figures. The headline of a comparison is the key
``ratio``: ours over the peer's, higher is better.

- ``throughput``: measured candidates per second per core against MetaSchedule's ``tune_tir``
- ``end_to_end``: whole models against untuned TVM and PyTorch eager
- ``sampling``: legal sentences that a language model writes per second on one core
- ``overlap``: the free-running pipeline against a serial loop of the same actors
- ``hot_swap``: from a checkpoint being in force to the first candidates it has written
- ``scale``: 1 to 100 simulated slots, real actors otherwise

``setting`` and ``report`` are what they share: tasks, checkpoints and pinning; table and JSON.
"""
