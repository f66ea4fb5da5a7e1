"""A client that a neighbour starves for minutes: what the exporter shows, and what each step of the runbook does."""
