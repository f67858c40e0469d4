"""Step 10: the records of a job become files: model.so, run.py, a summary, a report.

In: a job, its records, its model. Out: what `tlmd export` writes (`job_export`), the libraries with
the best programs (`libraries`), times of whole models (`whole_model`), and `tlmd.load`
(`compiled_model`). It runs in the process that holds the user's model.
"""
