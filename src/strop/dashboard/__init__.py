"""A web page that follows runs while they go on: curves, state, settings, completions. It only reads their folders."""
