"""The engine for production GPUs: a client of vLLM's own server (docs/vllm.md)."""
