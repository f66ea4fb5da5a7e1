"""Stand-ins for NVML and for the MPS control daemon, with the measured behaviour."""
