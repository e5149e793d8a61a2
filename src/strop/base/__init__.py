"""What every part builds on: types, pieces, metrics, seeds and files. Nothing here imports torch."""
