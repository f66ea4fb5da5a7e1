"""From a failure to the message that wakes somebody: the demo's nodes, and a real Prometheus and Alertmanager."""
