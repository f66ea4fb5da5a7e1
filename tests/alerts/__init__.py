"""The alerts, their runbooks, and what Alertmanager makes of them."""
