"""Diagnostics of a step from its groups and samples: outcomes, lengths, reflection, repetition, credit, alerts.

Statistics of the update's tensors (ratios, entropies, clipping) are made where these are; here is what comes from
completions, verdicts and advantages, each as a mergeable statistic.
"""
