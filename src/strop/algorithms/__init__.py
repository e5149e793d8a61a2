"""Pure tensor pieces: rewards, selection, advantages, losses, regularizers, aggregation, and diagnostics of a step."""
