"""Engines sample completions from a policy; `protocol` says what each of them offers."""
