"""Real podman, containerd and Slurm, of which the exporter labels the clients."""
