"""A service in this process, of which only the socket is open, and its commands."""

from dataclasses import replace
from pathlib import Path

from exporter.cli import parse_arguments
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import Inbox
from exporter.config.load import build_config
from exporter.history import History
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.service import Service
from tests.builders import node
from tests.clocks import HandClock


class Running:
    """The service, its clock and its history."""

    def __init__(self, directory: Path, present: Node, clock: HandClock) -> None:
        self.clock = clock
        self.history = History()
        config = build_config(parse_arguments(["serve", "--path.runtime-directory", str(directory)]), {}, None)
        self.service = Service(
            config, present, CollectorPool(()), Inbox(), clock, driver=Nvml(clock).driver, history=self.history
        )

    def knows(self, present: Node) -> None:
        """Set the node."""
        self.service.loop.node = present

    def remember(self, *incidents: Incident) -> None:
        """Add incidents to the history."""
        self.history.add(replace(node(), incidents={each.id: each for each in incidents}), ())
