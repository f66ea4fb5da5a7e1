"""What the exporter costs, measured on stand-ins."""
