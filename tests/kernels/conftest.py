"""Kernels run on a GPU where there is one, else in Triton's interpreter, to be asked for before they are imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
