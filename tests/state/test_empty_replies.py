"""An empty reply to a query for a list proves nothing: a refused command can have one too (1 to 3 % of them, R580)."""

from dataclasses import replace

import pytest

from exporter.model.daemon import Daemon
from exporter.model.observation import Observation
from tests.builders import (
    AT,
    CLIENT,
    SERVER,
    at_work,
    clients,
    daemon_process,
    exited,
    gpu_reading,
    process,
    reduced,
    refusal,
    servers,
)

FIVE = tuple(range(CLIENT, CLIENT + 5))


def known_clients(*seen: Observation) -> int | None:
    """Return the number of clients after these observations; None if it is not known."""
    daemon: Daemon = reduced(daemon_process(), *seen).daemon
    return len(daemon.clients) if daemon.clients_known else None


def test_an_empty_list_is_one_if_nvml_shows_no_client() -> None:
    assert known_clients(gpu_reading(), servers()) == 0
    assert known_clients(servers()) == 0


def test_what_is_known_outlasts_a_later_session() -> None:
    """The log reports what connects since."""
    assert known_clients(servers(), servers(at=AT + 30), refusal(at=AT + 40), refusal(at=AT + 50)) == 0
    assert known_clients(servers(SERVER), clients(*FIVE), refusal(at=AT + 0.1)) == len(FIVE)


@pytest.mark.parametrize(("seconds", "connected"), [(0.9, True), (1.0, False)])
def test_two_empty_lists_prove_an_end_if_a_second_lies_between_them(seconds: float, connected: bool) -> None:
    """A daemon that quits lists no server, and one that starts a server lists no client."""
    empty = (clients(at=AT + 10), clients(at=AT + 10 + seconds))
    assert (CLIENT in reduced(*at_work(CLIENT), *empty).daemon.clients) is connected
    empty = (servers(at=AT + 10), servers(at=AT + 10 + seconds))
    assert (SERVER in reduced(*at_work(CLIENT), *empty).daemon.servers) is connected


@pytest.mark.parametrize(("seconds", "connected"), [(0.4, True), (0.6, False)])
def test_one_list_of_others_proves_an_end_unless_the_client_has_just_connected(seconds: float, connected: bool) -> None:
    other = clients(CLIENT + 1, at=AT + seconds)
    assert (CLIENT in reduced(*at_work(CLIENT), replace(other, seconds=0.0)).daemon.clients) is connected


@pytest.mark.parametrize(("left_at", "connected"), [(2, False), (0.5, True)])
def test_a_list_connects_no_client_that_left_after_it_was_asked_for(left_at: float, connected: bool) -> None:
    gone = exited(CLIENT, at=AT + left_at)
    listed = replace(clients(CLIENT, at=AT + 3), seconds=2.0)
    assert (CLIENT in reduced(*at_work(CLIENT), process(), gone, listed).daemon.clients) is connected
