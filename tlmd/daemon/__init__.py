"""What a user starts: jobs composed of the other folders, their results, reports and displays.

In: a model, flags, a state directory. Out: a directory with the compiled model, its records, a
summary and a report. Import the submodules you need; most of them load TVM and torch.
"""
