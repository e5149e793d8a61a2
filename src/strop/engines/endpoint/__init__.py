"""An OpenAI-compatible endpoint as an engine, and the HTTP client that asks it."""
