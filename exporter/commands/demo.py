"""`demo`: serve a simulated node."""

import os
import sys
from argparse import Namespace

from exporter import log
from exporter.clock import SystemClock
from exporter.config.reload import Reloader
from exporter.config.settings import Config
from exporter.demo.failures import parse_planned
from exporter.demo.scenario import simulated_config
from exporter.demo.serve import serve_simulated
from exporter.demo.simulation import CALM_SECONDS, PAST_SECONDS, Simulation


def demo(arguments: Namespace, config: Config) -> int:
    """Serve a simulated node through the same reducer, watchdog and web server as a real one."""
    log.configure(config.log_level, config.log_format, sys.stderr)
    clock = SystemClock()
    plan = tuple(map(parse_planned, arguments.at))
    past = CALM_SECONDS if arguments.calm else PAST_SECONDS
    simulation = Simulation(arguments.seed, clock, calm=arguments.calm, past=past)
    config = simulated_config(config)
    reloader = Reloader(arguments, os.environ, config, clock, completed=simulated_config)
    serve_simulated(config, simulation, plan, reloader, clock)
    return 0
