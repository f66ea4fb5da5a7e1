"""The lookout has an eye for each daemon that is known, and none for one that is not."""

from collections.abc import Iterator, Mapping

import pytest

from exporter.clock import SystemClock
from exporter.model.node import Daemon
from exporter.sources.control import ControlClient
from exporter.sources.eye import Eye, Inbox
from exporter.sources.lookout import Asker, Lookout
from exporter.sources.reading import Reading
from tests.eventually import PATIENCE_SECONDS, eventually


def daemons(*names: str) -> Mapping[str, Daemon]:
    return {name: Daemon(name=name, pipe_directory=name, log_directory=name) for name in names}


class Client(ControlClient):
    """Asks nobody, and remembers whether it may."""

    def __init__(self, daemon: str) -> None:
        self.daemon = daemon
        self.wanted: tuple[str, ...] = ()
        self.closed = False

    def want(self, commands: tuple[str, ...]) -> None:
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

    def __call__(self, daemon: Daemon) -> Asker | None:
        """One for each daemon, except that which is called so."""
        if daemon.name == "unasked":
            return None
        client = Client(daemon.name)
        self.made.append(client)
        eye = Eye(
            "control",
            Reading,
            period=None,
            deadline=PATIENCE_SECONDS,
            inbox=self.inbox,
            clock=SystemClock(),
            daemon=daemon.name,
        )
        return Asker(client, eye)


@pytest.fixture
def askers() -> Askers:
    return Askers()


@pytest.fixture
def lookout(askers: Askers) -> Iterator[Lookout]:
    lookout = Lookout((), asker=askers)
    lookout.open()
    yield lookout
    lookout.close(PATIENCE_SECONDS)


def test_a_daemon_that_is_new_is_asked_from_then_on(lookout: Lookout, askers: Askers) -> None:
    lookout.attend(daemons("one"))
    lookout.attend(daemons("one", "two"))

    assert [name for name, _ in lookout.idle()] == ["one", "two"]
    for _, asker in lookout.idle():
        asker.ask(("get_server_list",))

    def both_looked() -> None:
        assert askers.inbox.qsize() == 2

    eventually(both_looked)
    assert {askers.inbox.get()[0].daemon for _ in range(2)} == {"one", "two"}  # type: ignore[union-attr]


def test_a_daemon_that_is_no_more_is_asked_no_more(lookout: Lookout, askers: Askers) -> None:
    lookout.attend(daemons("one", "two"))
    lookout.attend(daemons("two"))

    assert [name for name, _ in lookout.idle()] == ["two"]
    assert [client.closed for client in askers.made] == [True, False]


def test_a_daemon_that_is_found_again_is_asked_anew(lookout: Lookout, askers: Askers) -> None:
    for known in (daemons("one"), daemons(), daemons("one")):
        lookout.attend(known)

    assert [client.closed for client in askers.made] == [True, False]


def test_a_daemon_that_is_not_to_be_asked_has_no_eye(lookout: Lookout, askers: Askers) -> None:
    lookout.attend(daemons("unasked", "one"))

    assert [name for name, _ in lookout.idle()] == ["one"]


def test_whoever_follows_the_daemons_hears_which_there_are() -> None:
    heard: list[list[str]] = []
    lookout = Lookout((), attend=lambda known: heard.append(sorted(known)))

    lookout.attend(daemons("one"))
    lookout.attend(daemons("one", "two"))

    assert heard == [["one"], ["one", "two"]]
