"""ONNX models: files, rewritten so that TVM's importer reads them rightly.

In: a .onnx file. Out: a Relax module with the same outputs. `onnx_frontend` loads and checks it,
`simplify` rewrites the graph, `recurrent` writes out LSTM, GRU and RNN.
`rewriting` replaces single nodes, and `node_writer` adds them; the rewriters are those of `resize`,
`windows`, `arithmetic`, `quantised`, `fused`, `attention`, `rotary`, `sequences` and
`loops`.
"""
