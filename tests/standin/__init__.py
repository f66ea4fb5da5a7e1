"""Stand-ins for what needs a GPU: an NVML library and an MPS control daemon that behave as the measured ones do."""
