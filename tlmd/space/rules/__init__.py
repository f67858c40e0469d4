"""The rules that make the sketches of a task: TVM's for the target, then tlmd's own.

In: the kind of target. Out: schedule rules (`rules`). The other modules are tlmd's own sketches:
for expansions, for windows and for copies.
"""
