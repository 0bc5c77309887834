"""Checkpoints in every format that is read."""
