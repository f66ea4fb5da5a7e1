"""SM time and capacity: launch counts, kernel time estimates, attribution, accounting. Pure."""
