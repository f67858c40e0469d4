"""What a user starts: the service, its HTTP interface and commands; one job from end to end.

In: models, flags, a state directory. Out: a directory with the compiled model, its records, a
summary and a report. `service` puts actors, store and pipeline together and never loads TVM or
torch: `intake` lowers models in processes of their own, `delivery` compiles them for the user.
"""
