"""A seeded monkey that kills, stops and damages what a daemon consists of, while three jobs run.

`simulated_daemon` is a real daemon with a real slot and two simulated ones of other hardware;
`daemon_process` starts it and looks into it. `blows` says what can happen to it, `checks` what must
hold afterwards, `monkey` puts both together; ``pytest tests/chaos --blows 100`` runs long.
"""
