"""Who of a run is alive, what made progress last, and an end with every process's stacks where nothing does."""
