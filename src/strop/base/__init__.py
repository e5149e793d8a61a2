"""Used by every part: types, pieces, metrics, seeds and files. Nothing here imports torch."""
