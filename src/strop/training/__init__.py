"""From judged groups to an optimizer step: samples, packing, the learner, checkpoints and ranks."""
