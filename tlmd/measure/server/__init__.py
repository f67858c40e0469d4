"""The measuring server: it has TVM loaded and forks one child for each candidate.

In: messages of `measure.protocol`. Out: one `Outcome` for each candidate. `server` forks, `child`
does one request (`candidate_run`, `finalist_comparison`), `sandbox` limits it, `verify` checks
outputs.
"""
