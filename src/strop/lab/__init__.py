"""Experiments over many runs: compute-performance fits, ablations and planning."""
