"""`demo`: a node is simulated, and told of until the end."""

import os
import sys
from argparse import Namespace

from exporter import log
from exporter.clock import SystemClock
from exporter.config import Config
from exporter.config.reload import Reloader
from exporter.demo import CALM_SECONDS, PAST_SECONDS, Simulation, serve_simulated, simulated
from exporter.demo.mishap import planned


def demo(arguments: Namespace, config: Config) -> int:
    """Serve a simulated node, through the same core."""
    log.configure(config.log_level, config.log_format, sys.stderr)
    clock = SystemClock()
    plan = tuple(map(planned, arguments.at))
    past = CALM_SECONDS if arguments.calm else PAST_SECONDS
    simulation = Simulation(arguments.seed, clock, calm=arguments.calm, past=past)
    config = simulated(config)
    reloader = Reloader(arguments, os.environ, config, clock, completed=simulated)
    serve_simulated(config, simulation, plan, reloader, clock)
    return 0
