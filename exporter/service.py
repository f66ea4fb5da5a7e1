"""The service: a cycle, and those who tell of it: the web server, the service socket and the service manager."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import structlog
from prometheus_client import ProcessCollector

from exporter import status
from exporter.clock import Clock
from exporter.config import Config
from exporter.cycle import Cycle
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.node import Node
from exporter.notify import Notifier
from exporter.privilege import keep_capabilities_from_children
from exporter.service_socket import Commands
from exporter.sources.eye import Inbox
from exporter.sources.lookout import Lookout
from exporter.view import View
from exporter.web import Site, WebServer

HEALTHY_SECONDS = 30.0
"""The cycle turns at least twice a second; after this long without a turn it has stopped."""


class Service:
    """Serves what a lookout sees, until it is told to stop."""

    def __init__(self, config: Config, node: Node, lookout: Lookout, inbox: Inbox, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._exposition = Exposition(clock)
        self._itself = ProcessCollector(registry=None)
        self._notifier = Notifier(os.environ)
        self._turned_at = clock.monotonic()
        self._ready = False
        self._cycle = Cycle(
            node,
            lookout,
            inbox=inbox,
            clock=clock,
            rhythm=config.rhythm,
            publish=self._publish,
            turned=self._turned,
        )

    def run(self, commands: Commands) -> None:
        """Serve until SIGTERM or SIGINT; `commands` are those of the service socket beside `status`."""
        keep_capabilities_from_children()
        site = Site(
            self._exposition,
            healthy=lambda: self._clock.monotonic() - self._turned_at < HEALTHY_SECONDS,
            status=lambda: status.table(self._cycle.node),
        )
        web = WebServer(site, self._config.listen)
        with stopping() as stop:
            web.open()
            host = self._config.listen[0][0] or "localhost"
            structlog.get_logger().info("serving", metrics=f"http://{host}:{web.port}/metrics")
            self._cycle.run(lambda: not stop.is_set())
            self._notifier.stopping()
            web.close()

    def _publish(self, node: Node) -> None:
        view = View(node, self._config.client_min_age, self._clock.step())
        self._exposition.publish(NodeCollector(view, beside=self._itself))

    def _turned(self) -> None:
        self._turned_at = self._clock.monotonic()
        if self._cycle.node.sources and not self._ready:
            self._ready = True
            self._notifier.ready()
        self._notifier.alive(status.line(self._cycle.node))


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets."""
    event = threading.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda *_: event.set()) for each in signals]
    try:
        yield event
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
