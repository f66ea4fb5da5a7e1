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
        self.places: list[DaemonLocation] = []

    def move(self, place: DaemonLocation) -> None:
        """Remember it."""
        self.places.append(place)

    def want(self, commands: tuple[str, ...], **_known: object) -> None:
        """Remember it."""
        self.wanted = commands

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class Askers:
    """Makes what asks a daemon, and remembers all that it made."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.made: list[Client] = []

    def __call__(self, place: DaemonLocation) -> ControlPoller:
        """One for each place."""
        client = Client(place.name)
        self.made.append(client)
        thread = CollectorThread(
            "control",
            Reading,
            period=None,
            deadline=PATIENCE_SECONDS,
            inbox=self.inbox,
            clock=SystemClock(),
            daemon=place.name,
        )
        return ControlPoller(client, thread)


@pytest.fixture
def askers() -> Askers:
    return Askers()


@pytest.fixture
def lookout(askers: Askers) -> Iterator[CollectorPool]:
    lookout = CollectorPool((), locate=located, asker=askers)
    lookout.open()
    yield lookout
    lookout.close(PATIENCE_SECONDS)


def test_a_daemon_that_is_new_is_asked_from_then_on(lookout: CollectorPool, askers: Askers) -> None:
    lookout.attend(node("one"))
    lookout.attend(node("one", "two"))

    assert [name for name, _ in lookout.idle()] == ["one", "two"]
    for _, asker in lookout.idle():
        asker.ask(("get_server_list",), node("one").daemons["one"])

    def both_looked() -> None:
        assert askers.inbox.qsize() == 2

    eventually(both_looked)
    assert {askers.inbox.get()[0].daemon for _ in range(2)} == {"one", "two"}  # type: ignore[union-attr]


def test_a_daemon_that_is_no_more_is_asked_no_more(lookout: CollectorPool, askers: Askers) -> None:
    lookout.attend(node("one", "two"))
    lookout.attend(node("two"))

    assert [name for name, _ in lookout.idle()] == ["two"]
    assert [client.closed for client in askers.made] == [True, False]


def test_a_daemon_that_is_found_again_is_asked_anew(lookout: CollectorPool, askers: Askers) -> None:
    for known in (node("one"), node(), node("one")):
        lookout.attend(known)

    assert [client.closed for client in askers.made] == [True, False]


def test_a_daemon_that_is_nowhere_has_no_eye(lookout: CollectorPool, askers: Askers) -> None:
    lookout.attend(node("nowhere", "one"))

    assert [name for name, _ in lookout.idle()] == ["one"]


def test_whoever_asks_a_daemon_hears_where_it_is_now(lookout: CollectorPool, askers: Askers) -> None:
    lookout.attend(node("one"))
    lookout.attend(node("one"))

    assert [place.name for place in askers.made[0].places] == ["one", "one"]


def test_all_eyes_look_anew_when_told_to() -> None:
    inbox = Inbox()
    thread = CollectorThread("units", Reading, period=None, deadline=PATIENCE_SECONDS, inbox=inbox, clock=SystemClock())
    lookout = CollectorPool((thread,))
    lookout.open()

    lookout.trigger_all()

    assert inbox.get(timeout=PATIENCE_SECONDS)
    lookout.close(PATIENCE_SECONDS)


def test_the_sources_hear_what_is_known() -> None:
    heard: list[Node] = []
    lookout = CollectorPool((), direct=heard.append)

    lookout.attend(node("one"))

    assert heard == [node("one")]


class Threadless(CollectorThread):
    """An eye for which there is no thread."""

    def open(self) -> None:
        """As the threading module does where there may be no more (TasksMax=)."""
        raise RuntimeError("can't start new thread")


def test_a_daemon_for_which_there_is_no_thread_costs_itself_alone_and_is_tried_again(askers: Askers) -> None:
    full = {"one"}

    def asker(place: DaemonLocation) -> ControlPoller:
        made = askers(place)
        if place.name in full:
            made.thread.__class__ = Threadless
        return made

    lookout = CollectorPool((), locate=located, asker=asker)
    lookout.attend(node("one", "two"))
    with structlog.testing.capture_logs() as logged:
        lookout.open()
        assert [name for name, _ in lookout.idle()] == ["two"]
        lookout.attend(node("one", "two", "three"))
        lookout.attend(node("one", "two", "three"))
        assert [name for name, _ in lookout.idle()] == ["two", "three"]
    full.clear()
    lookout.attend(node("one", "two", "three"))

    assert {name for name, _ in lookout.idle()} == {"one", "two", "three"}
    assert [(each["event"], each["daemon"]) for each in logged] == [("daemon_not_asked", "one")]
    lookout.close(PATIENCE_SECONDS)
