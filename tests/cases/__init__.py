"""Small models of the kinds that people report, each compared with PyTorch."""
