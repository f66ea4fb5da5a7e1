"""Incidents: what a fault affected, its possible cause, and its end. Pure."""
