"""Uprobes on libcuda: count what each process launches, and measure how long its work is in flight.

A BPF program at each probe point counts by process, in the kernel. No code of the exporter runs in a client: a probe is
a breakpoint of the kernel. The kernel removes programs, maps and probes when their file descriptors are closed, at the
latest when the exporter ends.
"""
