"""The simulated node's daemons, as a configuration has them, and as the story begins with them."""

from dataclasses import replace
from pathlib import Path

from exporter.config import Config
from exporter.config.settings import DaemonConfig
from exporter.core.watchdog.rehearsal import START
from exporter.demo.cast import GIBIBYTE, NOTEBOOKS, SERVING, TRAINERS
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.gpus import GPUS
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.settings import Mode

PLACES = 12
"""Clients that a server takes at most, so that one can be seen to be full."""

TRAINING, INFERENCE, NOTEBOOK = (
    DaemonConfig(
        pipe_directory=Path(f"/run/nvidia/mps/{name}/pipe"),
        log_directory=Path(f"/run/nvidia/mps/{name}/log"),
        watchdog=mode,
        restart_command=START,
        active_thread_percentage=percentage,
        pinned_memory_limits=limits,
    )
    for name, mode, percentage, limits in (
        ("training", Mode.OBSERVE, 60.0, tuple((device, 48 * GIBIBYTE) for device in range(3))),
        ("inference", Mode.ACT, 40.0, ((0, 64 * GIBIBYTE),)),
        ("notebooks", Mode.ACT, 25.0, ((0, 16 * GIBIBYTE),)),
    )
)
DAEMONS = (TRAINING, INFERENCE, NOTEBOOK)


def simulated(config: Config) -> Config:
    """The configuration, with the simulated node's daemons."""
    return replace(config, daemons=DAEMONS)


def beginning() -> Node:
    """The node before anything is seen."""
    return Node(
        daemons={
            each.name: Daemon(
                name=each.name,
                pipe_directory=str(each.pipe_directory),
                log_directory=str(each.log_directory),
                expected=True,
                clients_limit=PLACES,
            )
            for each in DAEMONS
        }
    )


def simulated_daemons() -> tuple[SimulatedDaemon, ...]:
    """The daemons, before they are started: two GPUs that some clients join, and three that are apart."""
    return (
        SimulatedDaemon(TRAINING.name, (GPUS[:2], GPUS[2:3]), TRAINERS, TRAINING.limits, PLACES),
        SimulatedDaemon(INFERENCE.name, (GPUS[3:4],), SERVING, INFERENCE.limits, PLACES),
        SimulatedDaemon(NOTEBOOK.name, (GPUS[4:],), NOTEBOOKS, NOTEBOOK.limits, PLACES),
    )
