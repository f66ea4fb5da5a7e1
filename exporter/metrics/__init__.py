"""What is known of the node, said as Prometheus metrics. Metric names stand here and nowhere else."""
