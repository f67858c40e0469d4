"""The time of a program: how often it runs, how noise is removed, and what the machine can do.

In: programs that can run, and seconds of repeats. Out: samples, times with intervals, the order of
finalists (`interleaving`), the limits of the machine (`peak`), and its drift (`reference`).
"""
