"""The doors of libcuda, at which it is counted from outside what every process asks of its GPU.

Probes on user functions (uprobes), each with a small BPF program that counts by process, in the kernel. No code of ours
runs in a client, which meets the kernel's breakpoints; and whatever was loaded is gone when its file descriptors are,
which is when the exporter is.
"""
