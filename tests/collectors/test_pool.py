"""Tests of CollectorPool: each known daemon has its own collector threads."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import structlog

from exporter.clock import SystemClock
from exporter.collectors.control_client import ControlClient
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from tests.eventually import PATIENCE_SECONDS, eventually


def node(*names: str) -> Node:
    return Node(daemons={name: Daemon(name=name, pipe_directory=f"/{name}", log_directory="/log") for name in names})


def locate(daemons: Mapping[str, Daemon]) -> Mapping[str, DaemonLocation]:
    """Return the locations of all daemons but `nowhere`."""
    pipes = {name: Path(daemon.pipe_directory) for name, daemon in daemons.items()}
    return {name: on_host(name, pipe, pipe) for name, pipe in pipes.items() if name != "nowhere"}


class FakeClient(ControlClient):
    """Sends nothing, and records its calls."""

    def __init__(self, daemon: str) -> None:
        self.daemon = daemon
        self.requested: tuple[str, ...] = ()
        self.closed = False
        self.locations: list[DaemonLocation] = []

    def set_location(self, location: DaemonLocation) -> None:
        """Record it."""
        self.locations.append(location)

    def request(self, commands: tuple[str, ...], **_known: object) -> None:
        """Record it."""
        self.requested = commands

    def close(self) -> None:
        """Record it."""
        self.closed = True


def control_thread(inbox: Inbox, daemon: str | None = None) -> CollectorThread:
    return CollectorThread(
        "control", Reading, period=None, deadline=PATIENCE_SECONDS, inbox=inbox, clock=SystemClock(), daemon=daemon
    )


class Pollers:
    """Creates pollers, and records their clients."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.clients: list[FakeClient] = []

    def __call__(self, location: DaemonLocation) -> ControlPoller:
        """Create the poller of a daemon."""
        self.clients.append(FakeClient(location.name))
        return ControlPoller(self.clients[-1], control_thread(self.inbox, location.name))


@pytest.fixture
def pollers() -> Pollers:
    return Pollers()


@pytest.fixture
def pool(pollers: Pollers) -> Iterator[CollectorPool]:
    pool = CollectorPool((), locate=locate, poller=pollers)
    yield pool
    pool.close(PATIENCE_SECONDS)


def idle_daemons(pool: CollectorPool) -> list[str]:
    return [name for name, _ in pool.idle_pollers()]


def test_queries_a_new_daemon(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one"))
    pool.update(node("one", "two"))

    assert idle_daemons(pool) == ["one", "two"]
    for _, poller in pool.idle_pollers():
        poller.request(("get_server_list",), node("one").daemons["one"])

    def both_collected() -> None:
        assert pollers.inbox.qsize() == 2

    eventually(both_collected)
    assert {pollers.inbox.get()[0].daemon for _ in range(2)} == {"one", "two"}  # type: ignore[union-attr]


def test_does_not_query_a_daemon_that_is_gone(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one", "two"))
    pool.update(node("two"))

    assert idle_daemons(pool) == ["two"]
    assert [client.closed for client in pollers.clients] == [True, False]


def test_queries_a_daemon_that_is_found_again(pool: CollectorPool, pollers: Pollers) -> None:
    for known in (node("one"), node(), node("one")):
        pool.update(known)

    assert [client.closed for client in pollers.clients] == [True, False]


def test_starts_no_thread_for_a_daemon_without_a_location(pool: CollectorPool) -> None:
    pool.update(node("nowhere", "one"))

    assert idle_daemons(pool) == ["one"]


def test_sets_the_location_at_each_update(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one"))
    pool.update(node("one"))

    assert [location.name for location in pollers.clients[0].locations] == ["one", "one"]


def test_triggers_all_permanent_threads() -> None:
    inbox = Inbox()
    pool = CollectorPool((control_thread(inbox),))
    pool.start()

    pool.trigger_all()

    assert inbox.get(timeout=PATIENCE_SECONDS)
    pool.close(PATIENCE_SECONDS)


def test_passes_the_node_to_the_permanent_collectors() -> None:
    watched: list[Node] = []
    pool = CollectorPool((), watch=watched.append)

    pool.update(node("one"))

    assert watched == [node("one")]


class UnstartableThread(CollectorThread):
    """A thread that the system does not permit."""

    def start(self) -> None:
        """Raise as the threading module does if there may be no more threads (TasksMax=)."""
        raise RuntimeError("can't start new thread")


def test_tries_again_to_start_a_thread_that_could_not_be_started(pollers: Pollers) -> None:
    unstartable = {"one"}

    def poller(location: DaemonLocation) -> ControlPoller:
        created = pollers(location)
        if location.name in unstartable:
            created.thread.__class__ = UnstartableThread
        return created

    pool = CollectorPool((), locate=locate, poller=poller)
    with structlog.testing.capture_logs() as logged:
        pool.update(node("one", "two"))
        assert idle_daemons(pool) == ["two"]
        pool.update(node("one", "two", "three"))
        pool.update(node("one", "two", "three"))
        assert idle_daemons(pool) == ["two", "three"]
    unstartable.clear()
    pool.update(node("one", "two", "three"))

    assert set(idle_daemons(pool)) == {"one", "two", "three"}
    assert [(each["event"], each["daemon"]) for each in logged] == [("daemon_not_asked", "one")]
    pool.close(PATIENCE_SECONDS)
