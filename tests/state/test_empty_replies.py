"""An empty reply to a query for a list proves nothing: a refused command can have one too (1 to 3 % of them, R580)."""

from exporter.model.daemon import Daemon
from exporter.model.observation import Observation
from tests.builders import (
    AT,
    CLIENT,
    SERVER,
    clients,
    daemon_process,
    gpu_reading,
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
