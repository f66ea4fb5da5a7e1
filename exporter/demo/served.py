"""The simulated node, served as a real one is: the past is told first, then it goes on with the clock."""

import contextlib
import os
import tempfile
from argparse import Namespace
from pathlib import Path

from exporter.clock import SystemClock
from exporter.config import Config, Reloader, orders_of, planned
from exporter.demo.node import configured
from exporter.demo.simulation import Simulation
from exporter.demo.told import told
from exporter.history import MOST_EVENTS, History
from exporter.model.event import Event
from exporter.service import Service
from exporter.sources.eye import Eye, Inbox
from exporter.sources.lookout import Lookout
from exporter.store.archive import Archive
from exporter.store.writer import Writer


def serve_simulated(arguments: Namespace, config: Config) -> None:
    """Serve until told to stop. What is kept on disk is gone with it."""
    clock = SystemClock()
    plan = tuple(map(planned, arguments.at))
    config = configured(config)
    reloader = Reloader(arguments, os.environ, config, clock, completed=configured)
    simulation = Simulation(arguments.seed, clock, plan=plan, calm=arguments.calm)
    node, events = simulation.node(), list[Event]()
    for second in told(node, simulation, orders_of(config)):
        node, news = second
        events.extend(news)
    history = History(incidents=node.incidents.values(), events=events[-MOST_EVENTS:])
    inbox: Inbox = Inbox()
    eye = Eye("demo", simulation.look, period=1.0, deadline=5.0, inbox=inbox, clock=clock)
    with tempfile.TemporaryDirectory(prefix="cuda-mps-exporter-demo-") as kept:
        writer = Writer(Archive(Path(kept), config.history, clock), clock)
        with contextlib.closing(writer):
            writer.open()
            Service(
                config,
                node,
                Lookout((eye,)),
                inbox,
                clock,
                reloader=reloader,
                history=history,
                writer=writer,
                hands=simulation.hands,
            ).run()
