"""The embedded engine: continuous batching over the module that is trained, on a CPU or one GPU."""
