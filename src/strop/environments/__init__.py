"""Environments: problems that take several turns, with tools or without."""
