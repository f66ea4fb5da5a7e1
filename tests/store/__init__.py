"""What outlives the exporter."""
