"""Experiments on runs: replay and what-if, ablations, compute-performance fits, planning."""
