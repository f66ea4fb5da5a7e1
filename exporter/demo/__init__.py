"""A simulated node: five GPUs and three control daemons, to try the exporter without a GPU.

It makes observations in the wording of MPS, NVML and the kernel. The reducer, the watchdog and the service are real.
"""
