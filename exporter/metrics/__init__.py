"""The state of the node as Prometheus metrics. No other package contains names of metrics."""
