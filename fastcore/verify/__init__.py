"""Is the engine right about a model, on this machine."""
