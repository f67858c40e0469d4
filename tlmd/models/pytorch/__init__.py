"""PyTorch models: exported programs, rewritten so that TVM's importer reads them rightly.

In: a module with example inputs, or a .pt2 file (`archives`). Out: a Relax module with the same
outputs. `torch_frontend` does it: `normalise` rewrites the program by decompositions (`functions`,
`indexing`, `index_writes`, `pools`, `promotion`, `reductions`, and those of `lacking/`),
`importer` imports it with converters (`operators`), `folding` computes constants, `tensors`
converts them.
"""
