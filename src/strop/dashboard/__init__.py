"""A web page that follows runs while they go on: curves, health, settings, completions. It only reads their folders."""
