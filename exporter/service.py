"""The service: the loop, the web server, the service socket and systemd notification."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from prometheus_client import ProcessCollector

from exporter import log
from exporter.accept_failures import AcceptFailures
from exporter.actions.locks import ActLocks
from exporter.clock import Clock
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import Inbox
from exporter.config.reload import Reloader
from exporter.config.settings import Config
from exporter.history import History, Keeper
from exporter.loop import Authority, Doer, Loop, Watchdog
from exporter.metrics.catalogue import Made, NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.daemon import NamedBy
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, Resumed
from exporter.model.watchdog import WatchdogState
from exporter.parse.printable import printable
from exporter.privilege import keep_capabilities_from_children
from exporter.report import objects, remedy, status_text
from exporter.report.incident_filter import IncidentFilter
from exporter.report.remedy import Address, address_of
from exporter.report.status_view import StatusInput
from exporter.service_socket import Commands, ServiceSocket
from exporter.view import View
from exporter.web.api import Api
from exporter.web.pages import Runbooks, Site
from exporter.web.server import WebServer, activated_listeners
from exporter.web.web_config import WebSecurity


class Notifier:
    """Speaks to the service manager; says nothing where there is none."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes the socket out of the environment: no child is to speak for the service."""
        path = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def ready(self) -> None:
        """The first cycle is complete, or a reload."""
        self._send("READY=1")

    def reloading(self, monotonic: float) -> None:
        """The configuration is read anew, from this time of CLOCK_MONOTONIC on; `ready` when that is done."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic * 1e6:.0f}")

    def alive(self, status: Callable[[], str]) -> None:
        """Another cycle is complete; `status` makes a line for a person, if the service manager listens."""
        if self._address:
            self._send("WATCHDOG=1", f"STATUS={status()}")

    def stopping(self) -> None:
        """The service ends."""
        self._send("STOPPING=1")

    def _send(self, *fields: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
        ):
            # A manager that does not listen must hold nobody up.
            channel.setblocking(False)
            channel.sendto("\n".join(fields).encode(), self._address)


@dataclass(frozen=True, slots=True)
class Wishes:
    """To end (SIGTERM, SIGINT), and to read the configuration anew (SIGHUP)."""

    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def wishes(*, reloads: bool = False, heard: Callable[[], object] = lambda: None) -> Iterator[Wishes]:
    """Hear signals, until they mean again what they meant before. Who does not reload ends with its terminal.

    `heard` is called after each signal, in the main thread, so that what waits there need not wait on.
    """
    told = Wishes()
    meant = {signal.SIGTERM: told.stop, signal.SIGINT: told.stop}
    meant[signal.SIGHUP] = told.reload if reloads else told.stop

    def hear(number: int, _frame: object) -> None:
        meant[signal.Signals(number)].set()
        heard()

    before = {each: signal.signal(each, hear) for each in meant}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


HEALTHY_SECONDS = 30.0
"""The cycle turns at least once a second; after this long without a turn it has stopped."""

PAUSE_SECONDS = 15.0
"""How long `pause` waits for a call into the driver that is under way."""


class Service:
    """Serves what a lookout sees, until it is told to stop."""

    def __init__(
        self,
        config: Config,
        node: Node,
        pool: CollectorPool,
        inbox: Inbox,
        clock: Clock,
        *,
        reloader: Reloader | None = None,
        driver: Nvml | None = None,
        history: History | None = None,
        writer: Keeper | None = None,
        hands: Doer | None = None,
        locks: ActLocks | None = None,
        stderr: log.BackgroundStream | None = None,
    ) -> None:
        """`reloader` reads the configuration anew, `driver` is what can be paused, and `writer` keeps what happens.

        `hands` do as the watchdog decides, for daemons whose lock is held. A demo has no driver and needs no `locks`.
        `history` is what is known from before. `stderr` takes the exporter's own log.
        """
        self._config = config
        self._clock = clock
        self._reloader = reloader
        self._driver = driver
        self._hands = hands
        self._stderr = stderr
        self._writer = writer
        self._pool = pool
        self._history = History() if history is None else history
        self._exposition = Exposition(clock)
        self._itself = ProcessCollector(registry=None)
        self._made: Made = {}
        self._notifier = Notifier(os.environ)
        self._log = structlog.get_logger()
        self._paused = False
        self._ready = False
        self._host = os.uname().nodename
        self._accept_failures = {name: AcceptFailures(name) for name in ("web", "service_socket")}
        self._turned_at = clock.monotonic()
        self._authority = Authority(config, clock, locks=locks, keeper=writer)
        self._watchdog = Watchdog(self._authority.policy, clock, do=None if hands is None else hands.do)
        self._cycle = Loop(
            node,
            pool,
            inbox=inbox,
            clock=clock,
            rhythm=config.constants.intervals,
            publish=self._publish,
            told=self._keep,
            turned=self._turned,
            watchdog=self._watchdog,
        )

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. ConfigError and ListenError come at once."""
        keep_capabilities_from_children()
        web = self._web()
        self._watchdog.follow(self._authority.begin(self._cycle.node))
        with wishes(reloads=self._reloader is not None, heard=self._cycle.wake) as told, self._answering():
            web.open()
            for origin in web.origins:
                self._log.info("serving", metrics=f"{origin}{self._config.telemetry_path}")
            self._cycle.run(lambda: self._goes_on(told))
            self._notifier.stopping()
            web.close()

    def _web(self) -> WebServer:
        config = self._config
        api = Api(self._history, now=self._clock.now, address_of=self._address_of)
        site = Site(
            self._exposition,
            healthy=lambda: self._still_for() < HEALTHY_SECONDS,
            status=lambda: status_text.status_table(self._cycle.node, self._authority.policy),
            page_data=self._sight,
            monotonic=self._clock.monotonic,
            telemetry_path=config.telemetry_path,
            extra_routes={**api.routes, **Runbooks.installed().routes},
        )
        security = None if config.web_config_file is None else WebSecurity.load(config.web_config_file)
        listeners = activated_listeners(os.environ, os.getpid()) if config.systemd_socket else ()
        failures = self._accept_failures["web"]
        return WebServer(
            site, () if listeners else config.listen, security, config.max_requests, listeners, failures=failures
        )

    def _sight(self) -> StatusInput:
        still_for = self._still_for()
        return StatusInput(
            node=self._cycle.node,
            at=self._clock.now(),
            host=self._host,
            incidents=self._history.incidents,
            events=self._history.events,
            policy=self._authority.policy,
            stalled_seconds=None if still_for < HEALTHY_SECONDS else still_for,
        )

    def _answering(self) -> contextlib.AbstractContextManager[object]:
        """The service socket, open; none where there is nothing to be told."""
        if self._driver is None:
            return contextlib.nullcontext()
        commands: Commands = {
            "status": self._status,
            "incidents": self._incidents,
            "pause": self._pause,
            "resume": self._resume,
        }
        socket = ServiceSocket(self._config.runtime_directory, commands, self._accept_failures["service_socket"])
        socket.open()
        return contextlib.closing(socket)

    def _still_for(self) -> float:
        """How many seconds ago the cycle turned last."""
        return self._clock.monotonic() - self._turned_at

    def _status(self, **asked: Any) -> Mapping[str, Any]:
        return self._stood_still() or status_text.status_answer(self._cycle.node, self._authority.policy, **asked)

    def _incidents(self, *, as_json: bool, width: int | None = None, **wanted: Any) -> Mapping[str, Any]:
        return self._stood_still() or objects.incidents_answer(
            self._history.incidents,
            IncidentFilter(**wanted),
            as_json=as_json,
            now=self._clock.now(),
            address_of=self._address_of,
            width=width,
        )

    def _stood_still(self) -> Mapping[str, Any] | None:
        """What is told instead of old news."""
        still_for = self._still_for()
        if still_for < HEALTHY_SECONDS:
            return None
        return {"problem": f"the cycle has stood still for {still_for:.0f} s: nothing that it knows is current"}

    def _address_of(self, daemon: str) -> Address | None:
        return address_of(self._cycle.node, daemon, self._authority.policy)

    def _pause(self) -> Mapping[str, Any]:
        """Let go of the driver, so that its modules can be unloaded and GPUs reset."""
        before, self._paused = self._paused, True
        self._log.info("paused")
        if self._driver is not None and not self._driver.pause(PAUSE_SECONDS):
            return {"problem": "a call into the driver hangs; its handles are let go of as soon as it returns"}
        return remedy.pause_answer(before=before)

    def _resume(self, daemon: object = None) -> Mapping[str, Any]:
        """Take up the driver again; or let a `daemon` be restarted again that was not to be any more."""
        if daemon is not None:
            return self._resume_daemon(daemon)
        before, self._paused = self._paused, False
        if before:
            self._log.info("resumed")
        if self._driver is not None:
            self._driver.resume()
        return remedy.resume_answer(self._cycle.node, before=before)

    def _resume_daemon(self, wanted: object) -> Mapping[str, Any]:
        watched = sorted(daemon.name for daemon in self._cycle.node.daemons.values() if daemon.declared.expected)
        daemon = next((name for name in watched if name == wanted), None)
        if daemon is None:
            there = ", ".join(map(printable, watched)) or "none"
            return {"problem": f"no daemon {printable(str(wanted))} is watched here; there are: {there}"}
        watch = self._cycle.node.watches.get(daemon, WatchdogState())
        self._cycle.hear(Resumed(at=self._clock.now(), daemon=daemon))
        self._log.info("resumed", daemon=daemon)
        return remedy.resume_daemon_answer(daemon, watch)

    def _goes_on(self, told: Wishes) -> bool:
        if told.reload.is_set():
            told.reload.clear()
            self._notifier.reloading(self._clock.monotonic())
            self._reload()
            if self._ready:
                self._notifier.ready()
        stops = told.stop.is_set()
        if stops and self._hands is not None:
            # Before anybody is waited for: each is given up after a time of its own.
            self._hands.break_off()
        return not stops

    def _reload(self) -> None:
        if self._reloader is None:
            return
        before, reloaded = self._config, self._reloader.reload()
        if reloaded.problem is not None:
            self._log.error("reload_failed", problem=reloaded.problem, now="what was in force stays so")
        else:
            self._log.info("reloaded", needs_restart=list(reloaded.unchanged))
        self._config = after = reloaded.config
        log.configure(after.log_level, after.log_format, sys.stderr)
        self._watchdog.follow(self._authority.configure(after))
        self._cycle.tell(_named(before, after, self._clock.now()), after.constants.intervals)
        self._pool.trigger_all()

    def _keep(self, node: Node, events: Sequence[Event]) -> None:
        self._history.take(node, events)
        if self._writer is not None:
            self._writer.take(node, events)

    def _publish(self, node: Node) -> None:
        config = self._config
        view = View(
            node,
            config.client_min_age,
            self._clock.step(),
            configuration=None if self._reloader is None else self._reloader.status,
            paused=self._paused,
            history=None if self._writer is None else self._writer.status,
            log_records_dropped=None if self._stderr is None else self._stderr.dropped,
            policy=self._authority.policy,
            ledger=None if self._writer is None else self._writer.ledger,
            accept_failures={name: each.total for name, each in self._accept_failures.items()},
        )
        self._exposition.publish(NodeCollector(view, beside=self._itself, made=self._made))

    def _turned(self) -> None:
        self._turned_at = self._clock.monotonic()
        self._cycle.node = self._authority.renewed(self._cycle.node)
        self._watchdog.follow(self._authority.policy)
        if self._cycle.node.sources and not self._ready:
            self._ready = True
            self._notifier.ready()
        self._notifier.alive(lambda: status_text.summary_line(self._cycle.node, self._authority.policy))


def _named(before: Config, after: Config, at: float) -> Sequence[DaemonFound]:
    """The daemons that the configuration names, and those that it names no more, under whatever name."""
    named = [(daemon, True, NamedBy.CONFIGURATION) for daemon in after.daemons]
    names = {daemon.name for daemon in after.daemons}
    directories = {daemon.pipe_directory for daemon in after.daemons}
    dropped = [
        (daemon, False, NamedBy.DISCOVERED)
        for daemon in before.daemons
        if daemon.name not in names and daemon.pipe_directory not in directories
    ]
    return [
        DaemonFound(
            at=at,
            daemon=daemon.name,
            pipe_directory=str(daemon.pipe_directory),
            log_directory=str(daemon.log_directory),
            expected=is_expected,
            unit=daemon.unit,
            owner=daemon.owner,
            by=by,
        )
        for daemon, is_expected, by in (*dropped, *named)
    ]
