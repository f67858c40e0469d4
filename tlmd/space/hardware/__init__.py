"""The description of hardware: the TVM target, the facts for the prompt, the fingerprint.

In: what a user calls a target, what the system says of its CPU. Out: `TargetInfo`s (`target`), and
whether this machine can run a target's programs (`host_cpu`).
"""
