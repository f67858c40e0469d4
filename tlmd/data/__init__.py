"""The data that all parts of tlmd share: structs, their wire format, settings and errors.

In: nothing of tlmd. Out: `types` (what crosses processes), `computation` (what a task computes),
`wire` (msgpack), `config` and `config_file` (settings), `model_spec` (how a user names a model),
`errors` and exit codes, `selection` (which record is a task's best), `state_dir`, `units`.
Importing these modules loads neither TVM, torch nor Ray.
"""
