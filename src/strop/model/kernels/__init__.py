"""Kernels in C for training on a CPU, compiled by the machine's own compiler.

    compiled   compiles C sources to a library in strop's cache
    native     calls the kernels on tensors: decoder layers, logits and matrix products, forward and backward
    modules    modules of transformers that compute with the kernels, and packed sequences that share their beginnings
"""
