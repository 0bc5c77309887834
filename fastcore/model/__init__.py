"""What a model is: its config, ops, layers and weights."""
