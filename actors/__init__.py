"""Ray actors: thin shells around classes of `tlmd`, which do the work and do not know Ray.

In: orders of `tlmd.pipeline.orders` as msgpack. Out: their answers. `cluster.Cluster` starts or
joins Ray, places the actors, replaces those that die, and is the worker pool of the pipeline. Ray
never retries an order: an order that was with a dead actor is reported as lost.
"""
