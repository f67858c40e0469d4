"""The networks of `benchmarks.coverage`, as users would give them: small, with random weights.

In: the libraries torchvision, timm, transformers and onnx. Out: a list of factories for each
library (`lists`). ``benchmarks.networks_timm:NAME`` names one of them; `tlmd tune` takes it, too.
"""
