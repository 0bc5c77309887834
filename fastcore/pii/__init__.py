"""Personal data: spans of labels, masking, files."""
