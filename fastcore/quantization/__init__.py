"""Writing a model as a packed folder, and measuring what was lost in it."""
