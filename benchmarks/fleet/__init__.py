"""A simulated fleet whose use, faults and refusals are known exactly; for Prometheus and VictoriaMetrics."""
