"""`demo`: the main loop for a simulated node."""

import contextlib
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from exporter import log
from exporter.clock import SystemClock
from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import CollectorThread, Inbox
from exporter.config.load import Reloader
from exporter.config.settings import Attribution, Config
from exporter.demo.scenario import initial_node, simulated_config
from exporter.demo.simulation import CALM_SECONDS, PAST_SECONDS, Simulation, advance, parse_planned
from exporter.history import History, HistoryStatus, Sample
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.policy import policy_of
from exporter.recent import with_points
from exporter.report.text import SIMULATED
from exporter.service import Service
from exporter.view import View
from exporter.web.server import listen, url_host
from exporter.web.web_config import WebSecurity


class SimulatedStore:
    """Accepts events and stores none: each demo starts anew."""

    status = HistoryStatus(writable=True, events_dropped=0)
    usage_totals = None
    has_watchdog_states = True

    def add(self, node: Node, events: Sequence[Event], samples: Sequence[Sample] = ()) -> None:
        """Store nothing."""

    def recovered_state(self) -> None:
        """Return nothing: all state could be read."""


def print_commands(origin: str) -> None:
    """Print the commands that can be tried beside the demo, as they are pasted into another terminal."""
    program = Path(sys.argv[0])
    words = [sys.executable, "-m", "exporter"] if program.name == "__main__.py" else [str(program.absolute())]
    own = shlex.join(words)
    text = (
        f"{SIMULATED}.\n\nTry in another terminal:\n\n"
        f"  curl -s {shlex.quote(f'{origin}/status')}\n"
        f"  curl -s {shlex.quote(f'{origin}/api/v1/incidents')}\n"
        f"  {own} replay --events sample:client_traps\n\n"
        "doctor and record examine this machine. They cannot examine the simulated node.\n"
    )
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def demo(arguments: Namespace, config: Config) -> int:
    """Serve a simulated node through the same reducer, watchdog and web server as a real one."""
    log.configure(config.log_level, config.log_format, sys.stderr, simulated=True)
    clock = SystemClock()
    plan = tuple(map(parse_planned, arguments.at))
    # Another failure would end a planned one, or hide its alert.
    calm = arguments.calm or bool(plan)
    past, probes = CALM_SECONDS if calm else PAST_SECONDS, config.attribution is Attribution.BPF
    simulation = Simulation(arguments.seed, clock, calm=calm, past=past, probes=probes)
    config = simulated_config(config)
    # Checked first, because the simulation takes long.
    protection = None if config.web_config_file is None else WebSecurity(config.web_config_file).current()
    for address in config.listen:
        listen(address).close()
    scheme = "http" if protection is None or protection.tls is None else "https"
    for host, port in config.listen:
        page = f"{scheme}://{url_host(host)}:{port}/" if port else "the web server"
        structlog.get_logger().info("simulating", page=page, ready_in="less than a minute")
    node, history = replace(initial_node(), simulated=True), History()
    for second in advance(node, simulation, policy_of(config)):
        node, events = second
        history.add(node, events)
        history.recent = with_points(history.recent, View(node))
    simulation.plan(plan)
    inbox: Inbox = Inbox()
    collector = CollectorThread("demo", simulation.collect, period=1.0, deadline=5.0, inbox=inbox, clock=clock)
    return Service(
        config,
        node,
        CollectorPool((collector,)),
        inbox,
        clock,
        reloader=Reloader(arguments, os.environ, config, completed=simulated_config),
        history=history,
        store=SimulatedStore(),
        runner=simulation,
        on_serving=lambda origins: print_commands(origins[0]),
    ).run()
