"""The figures of evaluations, ablations, plans and compute-performance fits."""
