"""The exporter is killed again and again: its totals contain what it saw, once."""
