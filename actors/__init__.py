"""Ray actors: thin shells around classes of `tlmd` that do the work and know nothing of Ray.

In: orders of `tlmd.pipeline.orders` as msgpack. Out: their answers. `cluster.Cluster` starts or
joins Ray, places the actors, replaces those that die, and is the crew that the pipeline sees.
Orders are never retried by Ray: what was in flight with a dead actor is reported lost.
"""
