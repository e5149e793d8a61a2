"""Evaluation: avg@n, pass@k and majority votes with bootstrap intervals, from any engine."""
