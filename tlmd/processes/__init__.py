"""The processes and files of tlmd: how they start, end, and survive a kill.

In: commands, messages, bytes. Out: child processes with limits (`guarded_child`), a daemon that is
started again (`supervisor`), the environment of child processes (`children`), files that are whole
or not there (`durable`), and a time of day that never goes back (`wall_clock`).
"""
