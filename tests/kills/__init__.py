"""The exporter is killed again and again: what its books have is what was seen, once."""
