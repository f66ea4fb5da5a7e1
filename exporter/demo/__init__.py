"""A simulated node that lives: three GPUs under two daemons, for trying everything without a GPU.

It makes observations, in the words that MPS and NVML use; the core is the real one.
"""

from exporter.demo.simulation import PAST_SECONDS, Simulation

__all__ = ["PAST_SECONDS", "Simulation"]
