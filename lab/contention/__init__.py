"""Trials of how much the clients of a GPU are slowed by their neighbours."""
