"""A run from its configuration to its folder: the loop, the curriculum, assembly, supervision and fine-tuning."""
