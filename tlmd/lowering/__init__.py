"""Step 2: a loaded model becomes tasks, and with their records the model that is compiled.

In: a `SourceModel` and a target. Out: `Task`s with weights and ids (`identity`), their alternatives
(`alternatives`), and at the end the same module with the chosen programs. Extraction and the final
compile use the same lowering (`lowering.lower`); otherwise no record would match.
`acceptance` says whether a model works before anything is measured.
"""
