"""strop: reinforcement learning from verifiable rewards, one straight loop and five papers as recipes."""

__version__ = "0.1.0"
