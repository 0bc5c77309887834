"""Where models come from: folders, named models, the hub."""
