"""How to install the exporter in a cluster."""
