"""Kernels in C for training on a CPU, compiled by the machine's own compiler.

    compiled   from C sources to a library in strop's cache
    native     the kernels of a decoder layer and of logits over tensors, forward and backward (layers.c, attention.c,
               softmax.c)
    products   matrix products of packed weights, and of the head in bfloat16 (product.c)
    modules    modules of transformers that compute with them
    sharing    packed sequences whose common beginnings are computed once
"""
