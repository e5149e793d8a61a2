"""The configuration of a run: one tree of frozen settings and pieces, its checks, edits and presets."""
