"""Verifiers for mathematics and programs that cannot hang. They import neither torch nor strop."""

__version__ = "0.1.0"
