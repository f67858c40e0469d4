"""A seeded monkey that kills, stops and damages what a daemon consists of, while two jobs run.

`simulated_daemon` is a real daemon whose slots and generators cost no CPU; `monkey` strikes and
checks; ``pytest tests/chaos --blows 100`` runs long.
"""
