"""Experiments on runs and models: replay and what-if, benchmarks, ablations, compute-performance fits, planning."""
