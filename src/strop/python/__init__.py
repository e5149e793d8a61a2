"""Strop from Python: `strop.train` and `strop.load`, for scripts and notebooks."""
