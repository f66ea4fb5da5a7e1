"""A simulated node: five GPUs and three control daemons, to try the exporter without a GPU.

It makes observations in the wording of MPS, NVML and the kernel. The reducer, the watchdog and the service are real.
"""

from exporter.demo.scenario import initial_node, simulated_config
from exporter.demo.serve import serve_simulated
from exporter.demo.simulation import CALM_SECONDS, PAST_SECONDS, Simulation, advance

__all__ = [
    "CALM_SECONDS",
    "PAST_SECONDS",
    "Simulation",
    "advance",
    "initial_node",
    "serve_simulated",
    "simulated_config",
]
