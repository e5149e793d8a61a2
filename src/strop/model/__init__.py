"""The policy and its parts: model files, attention, the head, adapters, the critic and the kernels for CPUs."""
