"""The service: the loop, the web server, the service socket, systemd notification and signals."""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import Any

import structlog
from prometheus_client import ProcessCollector

from exporter import log
from exporter.actions.locks import ActLocks
from exporter.clock import Clock
from exporter.collectors.child import keep_capabilities_from_children
from exporter.collectors.nvml.driver import Driver
from exporter.collectors.pool import CollectorPool
from exporter.collectors.processes import affordable_connections
from exporter.collectors.thread import Inbox
from exporter.config.load import Reloader
from exporter.config.settings import Config
from exporter.history import History, Store
from exporter.loop import Loop, Runner, Watchdog
from exporter.metrics.catalogue import NAMESPACE, Made, NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.daemon import NamedBy
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, Paused, Resumed
from exporter.model.values import plain, replace
from exporter.model.watchdog import WatchdogState
from exporter.parse.printable import printable, printable_value
from exporter.recent import with_points
from exporter.report import remedy
from exporter.report.document import StatusDocument
from exporter.report.document_parts import MOST_LISTED, IncidentFilter, IncidentStatus
from exporter.report.node_status import incident_as_seen, status_document, summary_line
from exporter.view import StatusInput, View
from exporter.web.api import Api, encode_within
from exporter.web.pages import Site
from exporter.web.server import AcceptFailures, ServiceSocket, WebServer, activated_listeners
from exporter.web.web_config import WebSecurity

HEALTHY_SECONDS = 30.0
"""The main loop runs at least once a second. If it has not run for this long, it has stopped."""

MOST_BYTES = 1 << 24
"""Size limit of the JSON of all incidents. An incident with many clients has about 100 KB."""

PAUSE_SECONDS = 15.0
"""How long `pause` waits until a call into the driver returns."""


class Notifier:
    """Sends the state of the service to systemd (sd_notify(3)), if systemd started it."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Remove the socket from the environment, so that no child process can send for the service."""
        path = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def ready(self) -> None:
        """Report that the first cycle, or a reload, is complete."""
        self._send("READY=1")

    def reloading(self, monotonic: float) -> None:
        """Report that a reload began at this time of CLOCK_MONOTONIC. Call `ready` at its end."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic * 1e6:.0f}")

    def alive(self, status: Callable[[], str] | None = None) -> None:
        """Report a complete cycle. `status` returns a new line of text, and is called only if systemd gets it."""
        if self._address:
            self._send("WATCHDOG=1", *(() if status is None else (f"STATUS={status()}",)))

    def stopping(self) -> None:
        """Report that the service stops."""
        self._send("STOPPING=1")

    def _send(self, *fields: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as connection:
            # If systemd does not read, the message is lost, and the loop does not wait.
            connection.setblocking(False)
            connection.sendto("\n".join(fields).encode(), self._address)


@dataclass(slots=True)
class Signals:
    """Signals that were received: to stop (SIGTERM, SIGINT), and to reload the configuration (SIGHUP).

    The attributes have no locks: a signal can interrupt the thread that would hold one.
    """

    stop: bool = False
    reload: bool = False


@contextlib.contextmanager
def handle_signals(wake: Callable[[], object], *, reloads: bool = False) -> Iterator[Signals]:
    """Receive signals until the end of the block. Without `reloads`, SIGHUP means to stop.

    `wake` is called in the main thread after each signal. It ends a wait there.
    """
    signals = Signals()

    def receive(number: int, _frame: object) -> None:
        if reloads and number == signal.SIGHUP:
            signals.reload = True
        else:
            signals.stop = True
        wake()

    before = {each: signal.signal(each, receive) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@dataclass(eq=False)
class Service:
    """Runs the loop and serves its results, until a signal stops it.

    Without `driver`, as in the demo, there is no service socket. `stderr` is the stream of the log. `history` has the
    incidents and events of previous runs. `runner` acts for daemons whose lock is held, and for all daemons if there
    are no `locks`. `on_serving` is called with the URLs when the web server serves.
    """

    config: Config
    node: InitVar[Node]
    pool: CollectorPool
    inbox: InitVar[Inbox]
    clock: Clock
    _: KW_ONLY
    reloader: Reloader | None = None
    driver: Driver | None = None
    history: History = field(default_factory=History)
    store: Store | None = None
    runner: InitVar[Runner | None] = None
    locks: InitVar[ActLocks | None] = None
    stderr: log.BackgroundStream | None = None
    on_serving: Callable[[Sequence[str]], object] = lambda _: None

    def __post_init__(self, node: Node, inbox: Inbox, runner: Runner | None, locks: ActLocks | None) -> None:
        self._exposition = Exposition(self.clock)
        self._process_metrics = ProcessCollector(registry=None)
        self._made: Made = {}
        self._notifier = Notifier(os.environ)
        self._log = structlog.get_logger()
        self._summary: Callable[[], str] | None = None
        self._paused = False
        self._ready = False
        self._accept_failures = {name: AcceptFailures(name) for name in ("web", "service_socket")}
        self._cycle_ended_at = self.clock.monotonic()
        self._watchdog = Watchdog(self.config, self.clock, runner=runner, locks=locks, store=self.store)
        self.loop = Loop(
            node,
            self.pool,
            inbox=inbox,
            clock=self.clock,
            intervals=self.config.constants.intervals,
            publish=self._publish,
            on_events=self._add_to_history,
            on_cycle=self._end_cycle,
            watchdog=self._watchdog,
        )

    def run(self) -> int:
        """Serve until a signal or the end of the driver, and return the exit code.

        ConfigError and ListenError are raised before the first cycle.
        """
        keep_capabilities_from_children()
        web = self._web_server()
        self._watchdog.take_locks(self.loop.node)
        with handle_signals(self.loop.put, reloads=self.reloader is not None) as signals, self.service_socket():
            web.open()
            for origin in web.origins:
                self._log.info("serving", metrics=f"{origin}{self.config.telemetry_path}")
            self.on_serving(web.origins)
            self.loop.run(lambda: self.proceed(signals))
            self._notifier.stopping()
            web.close()
            return 0 if signals.stop else os.EX_TEMPFAIL

    def service_socket(self) -> contextlib.AbstractContextManager[object]:
        """Open the service socket, and return it as a context manager."""
        if self.driver is None:
            return contextlib.nullcontext()
        opened = ServiceSocket(self.config.runtime_directory, self._commands, self._accept_failures["service_socket"])
        opened.open()
        return contextlib.closing(opened)

    def _commands(self, viewer: int) -> Mapping[str, Callable[..., Mapping[str, Any]]]:
        return {
            "status": partial(self._status, viewer),
            "incidents": partial(self._incidents, viewer),
            "metrics": self._metrics,
            "pause": self._pause,
            "resume": self._resume,
        }

    def proceed(self, signals: Signals) -> bool:
        """Do what signals request, and return whether the loop continues. It ends if the driver was replaced.

        A process that starts with such a driver serves until another one is loaded, so this cannot repeat without end.
        While the exporter is paused it goes on: a new process would open the driver.
        """
        if signals.reload:
            signals.reload = False
            self._notifier.reloading(self.clock.monotonic())
            self._reload()
            if self._ready:
                self._notifier.ready()
        stops = signals.stop
        if not (stops or self._paused) and self.driver is not None and self.driver.replaced:
            # An action that is under way is verified first.
            stops = all(watch.acting is None for watch in self.loop.node.watches.values())
            if stops:
                self._log.warning("driver_replaced", now="the exporter ends, to be started with the new libraries")
        if stops:
            # Before the service waits for any thread: each wait has its own timeout.
            self._watchdog.stop()
        return not stops

    def status_document(self, viewer: int | None) -> StatusDocument | str:
        """Return the status of the node as a user may see it, or that it is out of date."""
        data = replace(self._status_input(), at=self.loop.node.at, viewer=viewer)
        return self._stalled_problem() or status_document(data)

    def _status(self, viewer: int) -> Mapping[str, Any]:
        document = self.status_document(viewer)
        return {"problem": document} if isinstance(document, str) else {"status": printable_value(plain(document))}

    def _incidents(self, viewer: int, clients: int = MOST_LISTED, **wanted: Any) -> Mapping[str, Any]:
        problem = self._stalled_problem()
        if problem is not None:
            return {"problem": problem}
        found = IncidentFilter(**wanted).apply(self.history.incidents)
        objects = (plain(self._incident(viewer, each, clients)) for each in found)
        encoded = encode_within(objects, MOST_BYTES)
        return {"incidents": list(map(json.loads, encoded))}

    def _incident(self, viewer: int | None, incident: Incident, clients: int) -> IncidentStatus:
        return incident_as_seen(replace(self._status_input(), viewer=viewer), incident, clients)

    def _status_input(self) -> StatusInput:
        return StatusInput(
            node=self.loop.node,
            at=self.clock.now(),
            host=os.uname().nodename,
            incidents=self.history.incidents,
            events=self.history.timeline,
            samples=self.history.samples,
            recent=self.history.recent,
            policy=self._watchdog.policy,
            stalled_seconds=self._stalled_seconds(),
        )

    def _metrics(self) -> Mapping[str, Any]:
        text = self._exposition.text_of(NAMESPACE)
        if text is None:
            return {"problem": "the first collection is not complete; try again"}
        problem = self._stalled_problem()
        return {"metrics": text} if problem is None else {"problem": problem}

    def _pause(self) -> Mapping[str, Any]:
        """Close the driver, so that its modules can be unloaded and GPUs can be reset."""
        before, self._paused = self._paused, True
        self._log.info("paused")
        if not before:
            self.loop.put(Paused(at=self.clock.now(), paused=True))
        if self.driver is not None and not self.driver.pause(PAUSE_SECONDS):
            return {"problem": "a call into the driver hangs; the exporter closes the driver when it returns"}
        return remedy.pause_answer(before=before)

    def _resume(self, daemon: str | None = None) -> Mapping[str, Any]:
        """Open the driver again, or permit restarts of one daemon again."""
        if daemon is not None:
            return self._resume_daemon(daemon)
        before, self._paused = self._paused, False
        if before:
            self._log.info("resumed")
            self.loop.put(Paused(at=self.clock.now(), paused=False))
        if self.driver is not None:
            self.driver.resume()
        return remedy.resume_answer(self.loop.node, before=before)

    def _resume_daemon(self, daemon: str) -> Mapping[str, Any]:
        expected = sorted(each.name for each in self.loop.node.daemons.values() if each.declared.expected)
        if daemon not in expected:
            names = ", ".join(map(printable, expected)) or "none"
            return {"problem": f"{printable(str(daemon))} is not an expected daemon; the expected daemons are: {names}"}
        watch = self.loop.node.watches.get(daemon, WatchdogState())
        self.loop.put(Resumed(at=self.clock.now(), daemon=daemon))
        self._log.info("resumed", daemon=daemon)
        return remedy.resume_daemon_answer(daemon, watch)

    def _stalled_problem(self) -> str | None:
        """Return why no query is answered, if the main loop has stopped."""
        seconds = self._stalled_seconds()
        return None if seconds is None else f"the main loop has not run for {seconds:.0f} s, so its data is out of date"

    def _stalled_seconds(self) -> float | None:
        """Return how long ago the last cycle ended, None if the main loop is healthy."""
        seconds = self.clock.monotonic() - self._cycle_ended_at
        return None if seconds < HEALTHY_SECONDS else seconds

    def _web_server(self) -> WebServer:
        config, simulated = self.config, self.loop.node.simulated
        api = Api(self.history, status=self.status_document, incident=self._incident, simulated=simulated)
        site = Site(
            self._exposition,
            healthy=lambda: self._stalled_seconds() is None,
            status=self._status_input,
            monotonic=self.clock.monotonic,
            telemetry_path=config.telemetry_path,
            extra_routes=api.routes,
            simulated=simulated,
            monitoring={
                "prometheus": config.prometheus_url,
                "grafana": config.grafana_url,
                "host": os.uname().nodename,
                "port": config.listen[0][1],
            },
        )
        security = None if config.web_config_file is None else WebSecurity(config.web_config_file)
        listeners = activated_listeners(os.environ, os.getpid()) if config.systemd_socket else ()
        listen, failures = () if listeners else config.listen, self._accept_failures["web"]
        most = min(config.max_requests, affordable_connections())
        return WebServer(site, listen, security, listeners, failures, max_requests=most, clock=self.clock)

    def _reload(self) -> None:
        if self.reloader is None:
            return
        before, after, problem = self.config, self.reloader.reload(), self.reloader.problem
        if problem is not None:
            self._log.error("reload_failed", problem=problem, now="the previous configuration stays in effect")
        else:
            self._log.info("reloaded", needs_restart=list(self.reloader.needs_restart))
        self.config = after
        log.configure(after.log_level, after.log_format, sys.stderr, simulated=self.loop.node.simulated)
        self._watchdog.configure(after)
        self.loop.intervals = after.constants.intervals
        self.loop.put(*configured_daemons(before, after, self.clock.now()))
        self.pool.trigger_all()

    def _add_to_history(self, node: Node, events: Sequence[Event]) -> None:
        samples = self.history.add(node, events)
        if self.store is not None:
            self.store.add(node, events, samples)

    def _publish(self, node: Node) -> None:
        view = View(
            node,
            self.config.client_min_age,
            self.clock.step(),
            config_valid=None if self.reloader is None else self.reloader.problem is None,
            paused=self._paused,
            history=None if self.store is None else self.store.status,
            log_records_dropped=None if self.stderr is None else self.stderr.dropped,
            policy=self._watchdog.policy,
            usage_totals=None if self.store is None else self.store.usage_totals,
            accept_failures={name: each.total for name, each in self._accept_failures.items()},
        )
        self._exposition.publish(NodeCollector(view, beside=self._process_metrics, made=self._made))
        self.history.recent = with_points(self.history.recent, view)
        self._summary = partial(summary_line, view, view.policy)

    def _end_cycle(self) -> None:
        self._cycle_ended_at = self.clock.monotonic()
        if self.loop.node.sources and not self._ready:
            self._ready = True
            self._notifier.ready()
        summary, self._summary = self._summary, None
        self._notifier.alive(summary)


def configured_daemons(before: Config, after: Config, at: float) -> Sequence[DaemonFound]:
    """Return observations of the configured daemons, and of those that a reload removes from the configuration.

    A daemon that has only another name is not removed.
    """
    names = {daemon.name for daemon in after.daemons}
    directories = {daemon.pipe_directory for daemon in after.daemons}
    removed = [each for each in before.daemons if each.name not in names and each.pipe_directory not in directories]
    return [
        DaemonFound(
            at=at,
            daemon=daemon.name,
            pipe_directory=str(daemon.pipe_directory),
            log_directory=str(daemon.log_directory),
            expected=by is NamedBy.CONFIGURATION,
            unit=daemon.unit,
            owner=daemon.owner,
            by=by,
        )
        for daemons, by in ((removed, NamedBy.DISCOVERED), (after.daemons, NamedBy.CONFIGURATION))
        for daemon in daemons
    ]
