"""The doors of libcuda, at which it is counted from outside what every process asks of its GPU.

Probes on user functions (uprobes), each with a small BPF program that counts by process, in the kernel. Nothing enters
a client, and whatever was loaded is gone when its file descriptors are: when the exporter is.
"""
