"""Triton kernels for CUDA; imported only where one runs. With TRITON_INTERPRET=1 they run on CPU tensors, slowly."""
