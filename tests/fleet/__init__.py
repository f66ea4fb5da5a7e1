"""The answers about a fleet, compared with what was simulated."""
