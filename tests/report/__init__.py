"""The catalogue of problems, and what is found on a node."""
