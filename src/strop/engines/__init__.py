"""Engines sample completions from a policy; see `base` for the protocol."""
