"""The zoo: networks that tlmd builds by name, with random weights that are always the same.

In: a name and input shapes. Out: a PyTorch module and example inputs. `catalogue` lists the
networks; the other modules build them.
"""
