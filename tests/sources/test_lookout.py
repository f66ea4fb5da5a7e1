"""The lookout has an eye for each daemon that is known, and none for one that is not."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import structlog

from exporter.clock import SystemClock
from exporter.collectors.control import ControlClient
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from tests.eventually import PATIENCE_SECONDS, eventually


def node(*names: str) -> Node:
    return Node(daemons={name: Daemon(name=name, pipe_directory=f"/{name}", log_directory="/log") for name in names})


def located(daemons: Mapping[str, Daemon]) -> Mapping[str, DaemonLocation]:
    """Where the daemons are, but for one that is nowhere."""
    pipes = {name: Path(daemon.pipe_directory) for name, daemon in daemons.items()}
    return {name: on_host(name, pipe, pipe) for name, pipe in pipes.items() if name != "nowhere"}


class Client(ControlClient):
    """Asks nobody, and remembers whether it may."""

    def __init__(self, daemon: str) -> None:
        self.daemon = daemon
        self.wanted: tuple[str, ...] = ()
        self.closed = False
        self.locations: list[DaemonLocation] = []

    def set_location(self, location: DaemonLocation) -> None:
        """Remember it."""
        self.locations.append(location)

    def request(self, commands: tuple[str, ...], **_known: object) -> None:
        """Remember it."""
        self.wanted = commands

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class Pollers:
    """Makes what asks a daemon, and remembers all that it made."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.made: list[Client] = []

    def __call__(self, location: DaemonLocation) -> ControlPoller:
        """One for each place."""
        client = Client(location.name)
        self.made.append(client)
        thread = CollectorThread(
            "control",
            Reading,
            period=None,
            deadline=PATIENCE_SECONDS,
            inbox=self.inbox,
            clock=SystemClock(),
            daemon=location.name,
        )
        return ControlPoller(client, thread)


@pytest.fixture
def pollers() -> Pollers:
    return Pollers()


@pytest.fixture
def pool(pollers: Pollers) -> Iterator[CollectorPool]:
    pool = CollectorPool((), locate=located, poller=pollers)
    pool.open()
    yield pool
    pool.close(PATIENCE_SECONDS)


def test_a_daemon_that_is_new_is_asked_from_then_on(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one"))
    pool.update(node("one", "two"))

    assert [name for name, _ in pool.idle()] == ["one", "two"]
    for _, poller in pool.idle():
        poller.ask(("get_server_list",), node("one").daemons["one"])

    def both_looked() -> None:
        assert pollers.inbox.qsize() == 2

    eventually(both_looked)
    assert {pollers.inbox.get()[0].daemon for _ in range(2)} == {"one", "two"}  # type: ignore[union-attr]


def test_a_daemon_that_is_no_more_is_asked_no_more(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one", "two"))
    pool.update(node("two"))

    assert [name for name, _ in pool.idle()] == ["two"]
    assert [client.closed for client in pollers.made] == [True, False]


def test_a_daemon_that_is_found_again_is_asked_anew(pool: CollectorPool, pollers: Pollers) -> None:
    for known in (node("one"), node(), node("one")):
        pool.update(known)

    assert [client.closed for client in pollers.made] == [True, False]


def test_a_daemon_that_is_nowhere_has_no_eye(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("nowhere", "one"))

    assert [name for name, _ in pool.idle()] == ["one"]


def test_whoever_asks_a_daemon_hears_where_it_is_now(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one"))
    pool.update(node("one"))

    assert [location.name for location in pollers.made[0].locations] == ["one", "one"]


def test_all_eyes_look_anew_when_told_to() -> None:
    inbox = Inbox()
    thread = CollectorThread("units", Reading, period=None, deadline=PATIENCE_SECONDS, inbox=inbox, clock=SystemClock())
    pool = CollectorPool((thread,))
    pool.open()

    pool.trigger_all()

    assert inbox.get(timeout=PATIENCE_SECONDS)
    pool.close(PATIENCE_SECONDS)


def test_the_sources_hear_what_is_known() -> None:
    heard: list[Node] = []
    pool = CollectorPool((), watch=heard.append)

    pool.update(node("one"))

    assert heard == [node("one")]


class Threadless(CollectorThread):
    """An eye for which there is no thread."""

    def open(self) -> None:
        """As the threading module does where there may be no more (TasksMax=)."""
        raise RuntimeError("can't start new thread")


def test_a_daemon_for_which_there_is_no_thread_costs_itself_alone_and_is_tried_again(pollers: Pollers) -> None:
    full = {"one"}

    def poller(location: DaemonLocation) -> ControlPoller:
        made = pollers(location)
        if location.name in full:
            made.thread.__class__ = Threadless
        return made

    pool = CollectorPool((), locate=located, poller=poller)
    pool.update(node("one", "two"))
    with structlog.testing.capture_logs() as logged:
        pool.open()
        assert [name for name, _ in pool.idle()] == ["two"]
        pool.update(node("one", "two", "three"))
        pool.update(node("one", "two", "three"))
        assert [name for name, _ in pool.idle()] == ["two", "three"]
    full.clear()
    pool.update(node("one", "two", "three"))

    assert {name for name, _ in pool.idle()} == {"one", "two", "three"}
    assert [(each["event"], each["daemon"]) for each in logged] == [("daemon_not_asked", "one")]
    pool.close(PATIENCE_SECONDS)
