"""Tests from a failure to the notification: the demo's nodes with a real Prometheus and Alertmanager."""
