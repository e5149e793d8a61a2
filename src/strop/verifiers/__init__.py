"""Verifiers: what makes a response right."""
