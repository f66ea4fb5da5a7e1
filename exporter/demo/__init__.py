"""A simulated node that lives: five GPUs under three daemons, for trying everything without a GPU.

It makes observations, in the words that MPS and NVML use; the core is the real one, and so is the watchdog.
"""

from exporter.demo.node import simulated
from exporter.demo.served import serve_simulated
from exporter.demo.simulation import CALM_SECONDS, PAST_SECONDS, Simulation
from exporter.demo.told import told

__all__ = ["CALM_SECONDS", "PAST_SECONDS", "Simulation", "serve_simulated", "simulated", "told"]
