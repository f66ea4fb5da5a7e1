"""Reads NVML: GPUs, the processes on them, their use, and their Xids. The only importer of pynvml."""

from exporter.sources.nvml.source import Nvml

__all__ = ["Nvml"]
