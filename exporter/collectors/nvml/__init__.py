"""NVML: GPUs, their processes and use, and Xids. The only importer of pynvml."""
