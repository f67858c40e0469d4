"""Programs of our own: other implementations of a task's computation, which may be faster.

In: the direct program of a task (`DirectProgram`). Out: other programs (`Implementation`), their
weights in numpy, and their sketches. Each folder is a kind and declares its `Alternative`s in
`declaration`; `catalogue` lists all of them, and the rest of tlmd asks only it.
The other files are shared: `contraction` finds what is replaced, `kernel` and `scheduling` say how
it is scheduled, `prefetch` adds what fetches weights in time to programs that are built.
"""
